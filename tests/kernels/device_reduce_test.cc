// Tests of the device's reductions, on an emulated GPU. The results must be equal bit by bit to the host's reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/reduce.h"
#include "kernels/device/plain.h"
#include "support.h"
#include "tests/device/emulator/emulator.h"

namespace tutti::kernels::testing {
namespace {

struct Case {
  Layout layout;
  Reduction reduction;
  Values values = Values::kWild;
  std::uint64_t seed = 1;
  device::ReduceMode mode = device::ReduceMode::kFast;
  unsigned blocks = 1;
};

device::PlainWork work_of(const Case& what, const Buffers& buffers) {
  device::PlainWork work{};
  std::copy(buffers.sources().begin(), buffers.sources().end(), work.sources);
  std::copy(buffers.destinations().begin(), buffers.destinations().end(), work.destinations);
  work.source_count = static_cast<std::uint32_t>(buffers.sources().size());
  work.destination_count = static_cast<std::uint32_t>(buffers.destinations().size());
  work.count = what.layout.count;
  work.how.type = what.reduction.type;
  work.how.op = what.reduction.op;
  work.how.scaled_source = static_cast<std::int32_t>(what.reduction.scaled_source);
  work.how.divisor = what.reduction.divisor;
  work.how.scale_real = what.reduction.scale.real;
  work.how.scale_integer = what.reduction.scale.integer;
  work.mode = what.mode;
  return work;
}

void expect_same_bits(const Case& what) {
  Buffers host(what.layout, what.values, what.seed);
  Buffers gpu(what.layout, what.values, what.seed);
  reduce_reference(what.reduction, host.sources(), host.destinations(), what.layout.count);
  const device::PlainWork work = work_of(what, gpu);
  emu::Emulator emulator({.seed = what.seed});
  emulator.launch(0, what.blocks, 32, [&work] { device::reduce_plain(work); });
  ASSERT_EQ(emulator.run(), emu::Emulator::RunResult::kIdle) << emulator.report();
  const std::size_t bytes = what.layout.count * size_of(what.layout.type);
  for (std::size_t d = 0; d < what.layout.destinations; ++d) {
    EXPECT_EQ(bytes == 0 ? 0 : std::memcmp(host.destinations()[d], gpu.destinations()[d], bytes), 0)
        << to_string(what.reduction.type) << " " << to_string(what.reduction.op) << ", " << what.layout.sources
        << " sources, destination " << d << ", " << what.layout.count << " elements, staggered "
        << what.layout.staggered << ", seed " << what.seed;
  }
  EXPECT_TRUE(gpu.guards_intact());
}

TEST(DeviceReduce, EqualsTheReferenceForEveryTypeOperationAndNumberOfSources) {
  std::uint64_t seed = 1;
  for (const DataType type : all_data_types()) {
    for (const ReduceOp op : all_reduce_ops()) {
      for (const std::size_t sources : {1u, 2u, 3u, 4u, 5u, 9u}) {
        for (const bool staggered : {false, true}) {
          Case what;
          what.layout = {.type = type,
                         .sources = sources,
                         .destinations = 1 + seed % 3,
                         .count = 1 + seed * 37 % 700,
                         .in_place = seed % 2 == 0,
                         .staggered = staggered};
          what.reduction.type = type;
          what.reduction.op = op;
          if (op == ReduceOp::kPreMulSum) {
            what.reduction.scaled_source = static_cast<std::ptrdiff_t>(seed % sources);
            what.reduction.scale = {.real = -2.75, .integer = -3};
          }
          if (op == ReduceOp::kAvg) what.reduction.divisor = 7;
          what.seed = seed++;
          what.blocks = 1 + static_cast<unsigned>(seed % 2);
          expect_same_bits(what);
        }
      }
    }
  }
}

TEST(DeviceReduce, EqualsTheReferenceForEveryLengthAndBothRungs) {
  for (const DataType type : all_data_types()) {
    for (std::size_t count = 0; count <= 70; ++count) {
      for (const device::ReduceMode mode : {device::ReduceMode::kSimple, device::ReduceMode::kFast}) {
        Case what;
        what.layout = {.type = type,
                       .sources = 1 + count % 4,
                       .destinations = 1,
                       .count = count,
                       .in_place = false,
                       .staggered = false};
        what.reduction.type = type;
        what.mode = mode;
        what.seed = count + 1;
        expect_same_bits(what);
      }
    }
  }
}

// The vectors are long enough for many iterations of the unrolled loops, and a remainder.
TEST(DeviceReduce, EqualsTheReferenceInPlaceOverManyRounds) {
  for (const DataType type : all_data_types()) {
    for (const std::size_t sources : {1u, 2u, 4u}) {
      Case what;
      what.layout = {.type = type,
                     .sources = sources,
                     .destinations = 2,
                     .count = 9001,
                     .in_place = sources > 1,
                     .staggered = false};
      what.reduction.type = type;
      what.seed = 5;
      what.blocks = 2;
      expect_same_bits(what);
    }
  }
}

// Every bit pattern of the 16-bit floats is widened and narrowed again: once with a division by two in between (kAvg),
// and once with a selection from two equal values (kMin).
TEST(DeviceReduce, ConvertsEveryHalfAsTheReferenceDoes) {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<std::uint16_t> bits(1 << 16);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    std::vector<std::uint16_t> host(bits.size());
    std::vector<std::uint16_t> gpu(bits.size());
    const auto* source = reinterpret_cast<const std::byte*>(bits.data());
    for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMin}) {
      Reduction how;
      how.type = type;
      how.op = op;
      how.divisor = op == ReduceOp::kAvg ? 2 : 1;
      const std::vector<const std::byte*> sources(op == ReduceOp::kAvg ? 1 : 2, source);
      auto* to_host = reinterpret_cast<std::byte*>(host.data());
      reduce_reference(how, sources, std::span(&to_host, 1), bits.size());
      device::PlainWork work{};
      std::copy(sources.begin(), sources.end(), work.sources);
      work.destinations[0] = reinterpret_cast<std::byte*>(gpu.data());
      work.source_count = static_cast<std::uint32_t>(sources.size());
      work.destination_count = 1;
      work.count = bits.size();
      work.how.type = type;
      work.how.op = op;
      work.how.divisor = how.divisor;
      work.mode = device::ReduceMode::kFast;
      emu::Emulator emulator({});
      emulator.launch(0, 1, 32, [&work] { device::reduce_plain(work); });
      ASSERT_EQ(emulator.run(), emu::Emulator::RunResult::kIdle);
      EXPECT_EQ(host, gpu) << to_string(type) << " " << to_string(op);
    }
  }
}

TEST(DevicePlain, CopiesWholeWords) {
  constexpr std::size_t kWords = 301;
  const std::vector<device::Word16> from(kWords, {0x89ABCDEFu, 0x01234567u, 0x89ABCDEFu, 0x01234567u});
  std::vector<device::Word16> to(kWords + 1);
  const device::CopyWork copy{reinterpret_cast<const std::byte*>(from.data()), reinterpret_cast<std::byte*>(to.data()),
                              kWords};
  emu::Emulator emulator({});
  emulator.launch(0, 3, 64, [&copy] { device::copy(copy); });
  ASSERT_EQ(emulator.run(), emu::Emulator::RunResult::kIdle);
  for (std::size_t i = 0; i < kWords; ++i) {
    EXPECT_EQ(to[i].x, 0x89ABCDEFu);
    EXPECT_EQ(to[i].y, 0x01234567u);
    EXPECT_EQ(to[i].z, 0x89ABCDEFu);
    EXPECT_EQ(to[i].w, 0x01234567u);
  }
  EXPECT_EQ(to[kWords].x, 0u);
}

}  // namespace
}  // namespace tutti::kernels::testing
