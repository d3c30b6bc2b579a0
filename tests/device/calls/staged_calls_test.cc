// Tests of calls on device memory that the host carries out, with the fake driver. Results must be equal bit by bit to
// those on host memory, calls must keep the order of the caller's streams, ranks with and without a device must work
// together, and errors must have clear messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/recording.h"
#include "engine/segments.h"
#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;

Bytes random_bits(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bits(bytes);
  for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
  return bits;
}

struct Shape {
  Kind kind;
  std::size_t count;
  DataType type;
  ReduceOp op;
  bool in_place;
};

// Makes the call of one rank. `buffer` begins with one block of each rank for the output. If the call is not in place,
// the input follows.
void carry_out(Communicator& rank, const Shape& shape, std::byte* buffer, const CallOptions& options) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  const auto number = static_cast<std::size_t>(rank.rank());
  const std::size_t block = shape.count * size_of(shape.type);
  const bool many_in = shape.kind == Kind::kReduceScatter || shape.kind == Kind::kAllToAll;
  const bool many_out = shape.kind == Kind::kAllGather || shape.kind == Kind::kAllToAll || shape.kind == Kind::kGather;
  std::byte* input = buffer + ranks * block;
  std::byte* output = buffer;
  const bool in_place_here =
      shape.in_place && (shape.kind != Kind::kGather || rank.rank() == 1);  // only the root of a gather can be in place
  if (in_place_here) {
    input = buffer + (many_out && !many_in ? number * block : 0);
    output = buffer + (many_in && !many_out ? number * block : 0);
  }
  const CollectiveCall call{.kind = shape.kind,
                            .input = input,
                            .output = output,
                            .count = shape.count,
                            .type = shape.type,
                            .op = shape.op,
                            .root = 1};
  const Status status = rank.run(call, options);
  EXPECT_TRUE(status.ok()) << to_string(status.error());
}

// Makes the call and returns the buffers of all ranks after it. The first `with_gpu` ranks use device memory.
std::vector<Bytes> outcome(Communicators& ranks, const Shape& shape, std::size_t with_gpu) {
  std::vector<Bytes> buffers(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto number = static_cast<std::size_t>(rank.rank());
    const std::size_t bytes = 2 * ranks.size() * shape.count * size_of(shape.type);
    buffers[number] = random_bits(bytes, static_cast<std::uint32_t>(number));
    if (number >= with_gpu) return carry_out(rank, shape, buffers[number].data(), {});
    const Gpu gpu(rank.rank() % 2);  // several ranks share a device
    const cuda::DeviceMemory memory = gpu.allocate(bytes);
    gpu.put(memory, buffers[number]);
    carry_out(rank, shape, static_cast<std::byte*>(pointer(memory)), on(gpu));
    buffers[number] = gpu.get(memory);
    EXPECT_TRUE(rank.async_status().ok());
  });
  return buffers;
}

constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kBroadcast, Kind::kReduce, Kind::kAllGather,
                           Kind::kReduceScatter, Kind::kAllToAll,  Kind::kGather, Kind::kScatter};

TEST(StagedCalls, GiveTheBitsOfTheHost) {
  for (const JobConfiguration& configuration : kConfigurations) {
    Communicators host = make_configured_ranks(configuration, 4);
    Communicators device = make_configured_ranks(configuration, 4);
    for (const Kind kind : kKinds) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{777}, std::size_t{40'000}}) {
        if (count == 1 && configuration.nodes > 1) continue;
        for (const bool in_place : {false, true}) {
          if (kind == Kind::kScatter && in_place) continue;  // only the root of a scatter can be in place
          const Shape shape{kind, count, count == 777 ? DataType::kBfloat16 : DataType::kInt32, ReduceOp::kSum,
                            in_place};
          EXPECT_EQ(outcome(device, shape, 4), outcome(host, shape, 0))
              << configuration.name << " " << to_string(kind) << " " << count << (in_place ? " in place" : "");
        }
      }
    }
  }
}

TEST(StagedCalls, RanksWithAndWithoutADeviceMeet) {
  Communicators host = make_ranks(3);
  Communicators mixed = make_ranks(3);
  for (const Kind kind : kKinds) {
    const Shape shape{kind, 5000, DataType::kFloat16, ReduceOp::kMax, false};
    EXPECT_EQ(outcome(mixed, shape, 2), outcome(host, shape, 0)) << to_string(kind);
  }
}

// The caller's stream is blocked by a wait for a flag in pinned memory.
TEST(StagedCalls, ReturnBeforeTheyRanAndKeepTheOrderOfTheStream) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(1024);
    const cuda::DeviceMemory later = gpu.allocate(1024);
    auto* stream = gpu.stream();
    BlockedStream held(driver(), stream);
    // The calls must use the value that the stream writes before them, and the copy after them must see their result.
    ASSERT_EQ(driver().api().memset_d8_async(memory.address(), 3, 1024, stream), cuda::CUresult::kSuccess);
    for (int call = 0; call < 3; ++call) {
      ASSERT_TRUE(
          rank.all_reduce(pointer(memory), pointer(memory), 1024, DataType::kInt8, ReduceOp::kSum, on(gpu)).ok());
    }
    ASSERT_EQ(driver().api().memcpy_dtod_async(later.address(), memory.address(), 1024, stream),
              cuda::CUresult::kSuccess);
    ASSERT_EQ(driver().api().memset_d8_async(memory.address(), 9, 1024, stream), cuda::CUresult::kSuccess);
    EXPECT_EQ(driver().api().stream_query(stream), cuda::CUresult::kNotReady);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time in which a call could wrongly run
    EXPECT_EQ(driver().api().stream_query(stream), cuda::CUresult::kNotReady)
        << "the calls did not wait for the stream";
    held.release();
    EXPECT_EQ(gpu.get(later), Bytes(1024, std::byte{24}));
    EXPECT_EQ(gpu.get(memory), Bytes(1024, std::byte{9}));
  });
}

TEST(StagedCalls, AWorkWaitsForTheStream) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(4 << 20);
    gpu.put(memory, Bytes(4 << 20, std::byte{1}));
    auto work = rank.start({.kind = Kind::kAllReduce,
                            .input = pointer(memory),
                            .output = pointer(memory),
                            .count = 4 << 20,
                            .type = DataType::kUint8},
                           on(gpu));
    ASSERT_TRUE(work.ok()) << to_string(work.error());
    ASSERT_TRUE(work->wait().ok());
    // The host can read the fake driver's device memory, so check the result without the stream.
    const auto* results = static_cast<const std::byte*>(pointer(memory));
    EXPECT_TRUE(std::all_of(results, results + (4 << 20), [](std::byte b) { return b == std::byte{2}; }));
  });
}

// One thread makes the calls of all ranks. A call must not wait for calls that the thread has still to make for other
// ranks.
TEST(StagedCalls, OneThreadServesAllRanks) {
  Communicators ranks = make_ranks(4);
  const Gpu gpu(0);
  std::vector<cuda::DeviceMemory> memories;
  for (int round = 0; round < 20; ++round) {
    for (auto& rank : ranks) {
      memories.push_back(gpu.allocate(4096));
      auto stream = *cuda::Stream::create(driver());
      gpu.put(memories.back(), Bytes(4096, static_cast<std::byte>(rank->rank() + 1)));
    }
  }
  std::vector<cuda::Stream> streams;
  for (std::size_t i = 0; i < ranks.size(); ++i) streams.push_back(*cuda::Stream::create(driver()));
  for (std::size_t i = 0; i < memories.size(); ++i) {
    CallOptions options;
    options.stream = streams[i % 4].handle();
    void* data = pointer(memories[i]);
    ASSERT_TRUE(ranks[i % 4]->all_reduce(data, data, 4096, DataType::kUint8, ReduceOp::kSum, options).ok());
  }
  for (const cuda::Stream& stream : streams) ASSERT_TRUE(stream.synchronize().ok());
  for (const cuda::DeviceMemory& memory : memories) EXPECT_EQ(gpu.get(memory), Bytes(4096, std::byte{10}));
}

TEST(StagedCalls, SendsReceivesAndUnequalBlocks) {
  constexpr std::size_t kRanks = 3;
  Communicators ranks = make_ranks(kRanks);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank() % 2);
    const auto me = static_cast<std::size_t>(rank.rank());
    const cuda::DeviceMemory from = gpu.allocate(6000);
    const cuda::DeviceMemory to = gpu.allocate(6000);
    gpu.put(from, Bytes(6000, static_cast<std::byte>(me + 1)));
    gpu.put(to, Bytes(6000, std::byte{0}));
    Group group;
    const auto next = static_cast<std::int32_t>((me + 1) % kRanks);
    const auto before = static_cast<std::int32_t>((me + kRanks - 1) % kRanks);
    ASSERT_TRUE(group.send(rank, pointer(from), 5000, DataType::kUint8, next, on(gpu)).ok());
    ASSERT_TRUE(group.receive(rank, pointer(to), 5000, DataType::kUint8, before, on(gpu)).ok());
    ASSERT_TRUE(group.run().ok());
    Bytes expected(6000, std::byte{0});
    std::fill_n(expected.begin(), 5000, static_cast<std::byte>(before + 1));
    EXPECT_EQ(gpu.get(to), expected);
    // Rank r sends r + 1 elements to each rank. The blocks at the receiver have gaps between them.
    const std::vector<std::size_t> out(kRanks, me + 1);
    const std::array<std::size_t, kRanks> in = {1, 2, 3};
    const std::array<std::size_t, kRanks> places = {0, 10, 20};
    gpu.put(to, Bytes(6000, std::byte{0}));
    ASSERT_TRUE(rank.all_to_all_v(pointer(from), {.counts = out}, pointer(to), {.counts = in, .displacements = places},
                                  DataType::kUint8, on(gpu))
                    .ok());
    Bytes gathered = gpu.get(to);
    Bytes wanted(6000, std::byte{0});
    for (std::size_t r = 0; r < kRanks; ++r)
      std::fill_n(wanted.begin() + 10 * static_cast<int>(r), r + 1, static_cast<std::byte>(r + 1));
    EXPECT_EQ(gathered, wanted);
    const Status alone = rank.send(pointer(from), 1, DataType::kUint8, next, on(gpu));
    ASSERT_TRUE(alone.ok()) << to_string(alone.error());
    ASSERT_TRUE(rank.receive(pointer(to), 1, DataType::kUint8, before, on(gpu)).ok());
    gpu.synchronize();
    EXPECT_TRUE(rank.async_status().ok());
  });
}

// The blocks of the ranks in the buffer of all blocks, in elements. Their order in memory differs from that of the
// ranks. Blocks 0 and 1 are neighbours, and there are gaps before them and behind them.
constexpr std::array<std::size_t, 3> kCounts = {5, 1, 7};
constexpr std::array<std::size_t, 3> kPlaces = {10, 15, 0};
constexpr std::size_t kBufferElements = 20;

// Makes a call with these blocks. `buffer` begins with the buffer of all blocks. If the call is not in place, this
// rank's own block follows.
void carry_out_with_gaps(Communicator& rank, Kind kind, bool in_place, std::byte* buffer, const CallOptions& options) {
  const auto me = static_cast<std::size_t>(rank.rank());
  auto* all = reinterpret_cast<std::int32_t*>(buffer);
  std::int32_t* own = all + (in_place ? kPlaces[me] : kBufferElements);
  const BlockCounts blocks{.counts = kCounts, .displacements = kPlaces};
  Status status;
  if (kind == Kind::kAllGather) status = rank.all_gather_v(own, all, blocks, DataType::kInt32, options);
  if (kind == Kind::kReduceScatter)
    status = rank.reduce_scatter_v(all, own, blocks, DataType::kInt32, ReduceOp::kSum, options);
  if (kind == Kind::kGather) status = rank.gather_v(own, kCounts[me], all, blocks, DataType::kInt32, 1, options);
  if (kind == Kind::kScatter) status = rank.scatter_v(all, blocks, own, kCounts[me], DataType::kInt32, 1, options);
  EXPECT_TRUE(status.ok()) << to_string(status.error());
}

// Like outcome(), for carry_out_with_gaps().
std::vector<Bytes> outcome_with_gaps(Communicators& ranks, Kind kind, bool in_place, bool with_gpus) {
  std::vector<Bytes> buffers(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    Bytes& buffer = buffers[static_cast<std::size_t>(rank.rank())];
    buffer = random_bits((kBufferElements + 8) * sizeof(std::int32_t), static_cast<std::uint32_t>(rank.rank()));
    if (!with_gpus) return carry_out_with_gaps(rank, kind, in_place, buffer.data(), {});
    const Gpu gpu(rank.rank() % 2);
    const cuda::DeviceMemory memory = gpu.allocate(buffer.size());
    gpu.put(memory, buffer);
    carry_out_with_gaps(rank, kind, in_place, static_cast<std::byte*>(pointer(memory)), on(gpu));
    buffer = gpu.get(memory);
    EXPECT_TRUE(rank.async_status().ok());
  });
  return buffers;
}

// The gaps between blocks belong to the caller, so a call must not write them. The initial bits of each rank's buffer
// are random, so a gap that is written shows.
TEST(StagedCalls, LeaveTheGapsBetweenBlocks) {
  for (const JobConfiguration& configuration : kConfigurations) {
    Communicators host = make_configured_ranks(configuration, 3);
    Communicators device = make_configured_ranks(configuration, 3);
    for (const Kind kind : {Kind::kAllGather, Kind::kReduceScatter, Kind::kGather, Kind::kScatter}) {
      for (const bool in_place : {false, true}) {
        EXPECT_EQ(outcome_with_gaps(device, kind, in_place, true), outcome_with_gaps(host, kind, in_place, false))
            << configuration.name << " " << to_string(kind) << (in_place ? " in place" : "");
      }
    }
  }
}

// A send is in a stream that is blocked, and a later send to the same peer is in another stream. They must keep their
// order.
TEST(StagedCalls, TransfersOfSeveralStreamsKeepTheirOrder) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory first = gpu.allocate(256);
    const cuda::DeviceMemory second = gpu.allocate(256);
    auto other = *cuda::Stream::create(driver());
    CallOptions by_other;
    by_other.stream = other.handle();
    if (rank.rank() == 1) {
      ASSERT_TRUE(rank.receive(pointer(first), 256, DataType::kUint8, 0, on(gpu)).ok());
      ASSERT_TRUE(rank.receive(pointer(second), 256, DataType::kUint8, 0, by_other).ok());
      ASSERT_TRUE(other.synchronize().ok());
      EXPECT_EQ(gpu.get(first), Bytes(256, std::byte{1}));
      EXPECT_EQ(gpu.get(second), Bytes(256, std::byte{2}));
      return;
    }
    gpu.put(first, Bytes(256, std::byte{1}));
    gpu.put(second, Bytes(256, std::byte{2}));
    BlockedStream held(driver(), gpu.stream());
    ASSERT_TRUE(rank.send(pointer(first), 256, DataType::kUint8, 1, on(gpu)).ok());
    ASSERT_TRUE(rank.send(pointer(second), 256, DataType::kUint8, 1, by_other).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time in which the second could wrongly overtake
    held.release();
    gpu.synchronize();
    ASSERT_TRUE(other.synchronize().ok());
  });
}

struct RecordedSums {
  std::uint64_t record_bytes = 0;  // of all records
  std::uint64_t total_bytes = 0;   // recording::Totals of all_reduce
  std::uint64_t total_calls = 0;
};

// Reads the only recording of `rank` in the folder.
RecordedSums recorded_sums(const std::string& folder, std::uint32_t rank) {
  RecordedSums sums;
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().find("-r" + std::to_string(rank) + "-p") == std::string::npos) continue;
    ++found;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    for (std::size_t at = sizeof(recording::Header); at + sizeof(recording::Record) <= text.size();
         at += sizeof(recording::Record)) {
      std::uint64_t words[sizeof(recording::Record) / sizeof(std::uint64_t)];
      std::memcpy(words, text.data() + at, sizeof(words));
      const auto word = [&](std::size_t offset) { return words[offset / sizeof(std::uint64_t)]; };
      const bool valid = word(offsetof(recording::Record, extra_serial)) == word(offsetof(recording::Record, serial));
      if (valid) sums.record_bytes += word(offsetof(recording::Record, bytes));
    }
    recording::KindTotal total;
    static_assert(static_cast<int>(CollectiveKind::kAllReduce) == 0, "the first one of Totals::host is read");
    const std::size_t at = offsetof(recording::Header, totals) + offsetof(recording::Totals, host);
    std::memcpy(static_cast<void*>(&total), text.data() + at, sizeof(total));
    sums.total_bytes = total.bytes;
    sums.total_calls = total.calls;
  }
  EXPECT_EQ(found, 1);
  return sums;
}

// A long call is cut into segments, which all have the tag of the whole call. So the recorder must write the length of
// each segment. In the totals the segments are one call.
TEST(StagedCalls, SegmentsAreRecordedWithTheirOwnLengths) {
  constexpr std::size_t kBytes = 3 * detail::kSegmentBytes;
  std::string folder = std::filesystem::temp_directory_path() / "tutti-segments-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("TUTTI_RECORD_DIR", folder.c_str(), 1);
  {
    CommunicatorOptions options;
    options.devices = {0, 1};
    Communicators ranks = Communicator::create_all(2, options).value();
    unsetenv("TUTTI_RECORD_DIR");
    on_every_rank(ranks, [](Communicator& rank) {
      const Gpu gpu(rank.rank());
      const cuda::DeviceMemory memory = gpu.allocate(kBytes);
      const Status status = rank.all_reduce(pointer(memory), pointer(memory), kBytes / sizeof(float),
                                            DataType::kFloat32, ReduceOp::kMax, on(gpu));
      EXPECT_TRUE(status.ok()) << to_string(status.error());
      gpu.synchronize();
    });
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      const RecordedSums sums = recorded_sums(folder, rank);
      EXPECT_EQ(sums.record_bytes, kBytes) << rank;
      EXPECT_EQ(sums.total_bytes, kBytes) << rank;
      EXPECT_EQ(sums.total_calls, 1U) << rank;
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(StagedCalls, BadArgumentsAreNamed) {
  Communicators ranks = make_ranks(1);
  Communicator& rank = *ranks[0];
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(64);
  float host[16] = {};
  const auto reduce = [&](const void* input, void* output, const CallOptions& options) {
    const Status status = rank.all_reduce(input, output, 16, DataType::kFloat32, ReduceOp::kSum, options);
    EXPECT_FALSE(status.ok());
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_THAT(reduce(pointer(memory), host, on(gpu)), HasSubstr("input is memory of GPU 0, but output is host memory"));
  EXPECT_THAT(reduce(host, pointer(memory), on(gpu)), HasSubstr("input is host memory, but output is memory of GPU 0"));
  {
    const Gpu other(1);
    const cuda::DeviceMemory elsewhere = other.allocate(64);
    EXPECT_THAT(reduce(pointer(memory), pointer(elsewhere), on(gpu)), HasSubstr("output is memory of GPU 1"));
    EXPECT_THAT(reduce(pointer(memory), pointer(memory), on(other)), HasSubstr("another context"));
  }
}

TEST(StagedCalls, WhatFailsLaterIsToldAndTheStreamGoesOn) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    const std::size_t count = rank.rank() == 0 ? 100 : 200;  // the ranks disagree
    ASSERT_TRUE(
        rank.all_reduce(pointer(memory), pointer(memory), count, DataType::kInt32, ReduceOp::kSum, on(gpu)).ok());
    gpu.synchronize();
    const Status status = rank.async_status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_TRUE(rank.async_status().ok()) << "the error was reported twice";
  });
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  CallOptions impatient = on(gpu);
  impatient.timeout = scaled(std::chrono::milliseconds(500));
  ASSERT_TRUE(
      ranks[0]->all_reduce(pointer(memory), pointer(memory), 9, DataType::kInt32, ReduceOp::kSum, impatient).ok());
  gpu.synchronize();
  const Status status = ranks[0]->async_status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(status.error().message, HasSubstr("not entered by rank 1"));
}

TEST(StagedCalls, TheEndOfACommunicatorLetsItsStreamsGoOn) {
  Communicators ranks = make_ranks(2, 2 * patience());
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  for (int call = 0; call < 3; ++call) {
    ASSERT_TRUE(
        ranks[0]->all_reduce(pointer(memory), pointer(memory), 9, DataType::kInt32, ReduceOp::kSum, on(gpu)).ok());
  }
  const auto start = std::chrono::steady_clock::now();
  ranks[0].reset();
  gpu.synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - start, patience());
}

// Each driver function that a call uses fails once. The next call must work, and no pinned memory may be leaked.
TEST(StagedCalls, FailuresOfTheDriverAreToldAndLeaveNothingBehind) {
  Communicators ranks = make_ranks(1);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  const auto reduce = [&] {
    return ranks[0]->all_reduce(pointer(memory), pointer(memory), 1024, DataType::kInt32, ReduceOp::kSum, on(gpu));
  };
  for (const char* function :
       {"cuMemHostRegister", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuLaunchHostFunc", "cuStreamWaitValue32",
        "cuStreamGetCtx", "cuPointerGetAttributes", "cuEventCreate", "cuEventRecord"}) {
    ranks = make_ranks(1);  // a new communicator, because only its first call registers (pins) memory
    fake().fail(function, 1, cuda::CUresult::kOutOfMemory);
    const Status failed = reduce();
    fake().forget_faults();
    EXPECT_FALSE(failed.ok()) << function;
    gpu.synchronize();
    const Status good = reduce();
    EXPECT_TRUE(good.ok()) << function << ": " << to_string(good.error());
    gpu.synchronize();
  }
  ranks.clear();
  EXPECT_EQ(fake().leaks().find("registered host memory"), std::string::npos) << fake().leaks();
}

}  // namespace
}  // namespace tutti::test
