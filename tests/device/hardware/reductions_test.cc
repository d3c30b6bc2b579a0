// Tests of the library's reduction kernel on a GPU. The results must be equal bit by bit to the host's reference.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cpu/reduce.h"
#include "kernels/device/plain_work.h"
#include "kernels/support.h"
#include "tests/device/hardware/support.h"

namespace tutti::test {
namespace {

constexpr std::byte kUntouched{0xA5};
constexpr std::size_t kMostCount = 3000;
// Distance between two buffers in the slab, in bytes. It includes space for the shift and for guard bytes.
constexpr std::size_t kStride = kMostCount * 8 + 1024;

class GpuReductions : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const auto kernel = gpu().kernel("tutti_reduce");
    if (!kernel && may_lack_kernels()) GTEST_SKIP() << "not run: " << to_string(kernel.error());
    ASSERT_TRUE(kernel.ok()) << to_string(kernel.error());
    kernel_ = *kernel;
  }
  cuda::CUfunction kernel_ = nullptr;
};

struct Trial {
  kernels::Reduction reduction{};
  std::size_t sources = 2;
  std::size_t destinations = 1;
  std::size_t count = 0;
  bool staggered = false;  // every buffer at another distance from an aligned address
  device::ReduceMode rung = device::ReduceMode::kFast;
  std::uint64_t seed = 1;

  std::size_t shift(std::size_t buffer) const { return staggered ? buffer % 5 * size_of(reduction.type) : 0; }
  std::size_t offset(std::size_t buffer) const { return buffer * kStride + shift(buffer); }
};

// Makes the slab: all buffers one after another, first the sources. The sources are filled, the rest is kUntouched.
std::vector<std::byte> slab_of(const Trial& trial) {
  std::vector<std::byte> slab((trial.sources + trial.destinations) * kStride, kUntouched);
  std::mt19937_64 random(trial.seed);
  for (std::size_t i = 0; i < trial.sources; ++i) {
    kernels::testing::fill(std::span(slab).subspan(trial.offset(i), trial.count * size_of(trial.reduction.type)),
                           trial.reduction.type, kernels::testing::Values::kWild, random);
  }
  return slab;
}

// Returns the slab after the reduction by the host's reference.
std::vector<std::byte> reference_of(const Trial& trial, std::vector<std::byte> slab) {
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
  for (std::size_t i = 0; i < trial.sources; ++i) sources.push_back(slab.data() + trial.offset(i));
  for (std::size_t i = 0; i < trial.destinations; ++i)
    destinations.push_back(slab.data() + trial.offset(trial.sources + i));
  kernels::reduce_reference(trial.reduction, sources, destinations, trial.count);
  return slab;
}

device::PlainWork work_of(const Trial& trial, std::byte* slab) {
  device::PlainWork work{};
  for (std::size_t i = 0; i < trial.sources; ++i) work.sources[i] = slab + trial.offset(i);
  for (std::size_t i = 0; i < trial.destinations; ++i) work.destinations[i] = slab + trial.offset(trial.sources + i);
  work.source_count = static_cast<std::uint32_t>(trial.sources);
  work.destination_count = static_cast<std::uint32_t>(trial.destinations);
  work.count = trial.count;
  work.how = {.type = trial.reduction.type,
              .op = trial.reduction.op,
              .scaled_source = static_cast<std::int32_t>(trial.reduction.scaled_source),
              .divisor = trial.reduction.divisor,
              .scale_real = trial.reduction.scale.real,
              .scale_integer = trial.reduction.scale.integer};
  work.mode = trial.rung;
  return work;
}

void expect_the_references_bits(bench::Gpu& gpu, cuda::CUfunction kernel, const Trial& trial) {
  std::vector<std::byte> slab = slab_of(trial);
  const std::vector<std::byte> expected = reference_of(trial, slab);
  auto memory = gpu.allocate(slab.size());
  ASSERT_TRUE(memory.ok()) << to_string(memory.error());
  ASSERT_TRUE(gpu.put(memory->address(), slab).ok());
  device::PlainWork work = work_of(trial, bench::pointer_to(*memory));
  ASSERT_TRUE(gpu.launch(kernel, {.blocks = 3, .threads = 64}, &work, gpu.stream()).ok());
  const Status got = gpu.get(slab, memory->address());
  ASSERT_TRUE(got.ok()) << to_string(got.error());
  const auto [wrong, right] = std::mismatch(slab.begin(), slab.end(), expected.begin());
  EXPECT_EQ(wrong, slab.end()) << to_string(trial.reduction.type) << " " << to_string(trial.reduction.op) << ", "
                               << trial.sources << " sources, " << trial.count << " elements, staggered "
                               << trial.staggered << ", seed " << trial.seed << ": byte "
                               << (wrong - slab.begin()) % static_cast<std::ptrdiff_t>(kStride) << " of buffer "
                               << (wrong - slab.begin()) / static_cast<std::ptrdiff_t>(kStride);
}

Trial trial_of(DataType type, ReduceOp op, std::size_t sources, std::size_t count, std::uint64_t seed) {
  Trial trial{.sources = sources,
              .destinations = 1 + seed % 3,
              .count = count,
              .staggered = seed % 2 == 0,
              .rung = seed % 5 == 0 ? device::ReduceMode::kSimple : device::ReduceMode::kFast,
              .seed = seed};
  trial.reduction.type = type;
  trial.reduction.op = op;
  if (op == ReduceOp::kPreMulSum) {
    trial.reduction.scaled_source = static_cast<std::ptrdiff_t>(seed % sources);
    trial.reduction.scale = {.real = -2.75, .integer = -3};
  }
  if (op == ReduceOp::kAvg) trial.reduction.divisor = 7;
  return trial;
}

TEST_F(GpuReductions, ShortOnesEqualTheReference) {
  std::uint64_t seed = 1;
  for (const DataType type : all_data_types()) {
    for (const std::size_t sources : {2U, 3U, 4U}) {
      expect_the_references_bits(gpu(), kernel_, trial_of(type, ReduceOp::kSum, sources, 1 + seed * 37 % 100, seed));
      ++seed;
    }
  }
}

TEST_F(GpuReductions, EqualTheReferenceForEveryTypeOperationAndNumberOfSources) {
  std::uint64_t seed = 1;
  for (const DataType type : all_data_types()) {
    for (const ReduceOp op : all_reduce_ops()) {
      for (const std::size_t sources : {1U, 2U, 3U, 4U, 5U, 9U}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{257}, kMostCount}) {
          expect_the_references_bits(gpu(), kernel_, trial_of(type, op, sources, count, seed));
          ++seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test
