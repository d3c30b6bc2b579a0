// Tests of the lengths of recorded calls, which `tutti top` shows as MB/s: each call counts the longer one of the
// rank's input and output.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/recorder/recording.h"
#include "tutti/tutti.h"

namespace tutti::tool {
namespace {

constexpr std::int32_t kRanks = 3;
constexpr std::int32_t kRoot = 1;
constexpr std::size_t kCount = 5;
constexpr std::size_t kFloat = sizeof(float);

using Body = std::function<Status(Communicator& rank, const float* input, float* output)>;

// Makes one call on each rank, and returns what the ranks recorded.
std::vector<Recording> recordings_of(const Body& body) {
  std::string folder = std::filesystem::temp_directory_path() / "tutti-bytes-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  setenv("TUTTI_RECORD_DIR", folder.c_str(), 1);
  std::vector<Recording> recordings;
  {
    auto ranks = Communicator::create_all(kRanks);
    unsetenv("TUTTI_RECORD_DIR");
    EXPECT_TRUE(ranks.ok()) << to_string(ranks.error());
    std::vector<std::thread> threads;
    for (const auto& rank : *ranks) {
      threads.emplace_back([&body, &rank] {
        const std::vector<float> input(kRanks * kCount, 1.0F);
        std::vector<float> output(kRanks * kCount);
        const Status status = body(*rank, input.data(), output.data());
        EXPECT_TRUE(status.ok()) << to_string(status.error());
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<std::string> errors;
    recordings = read_recordings({folder}, errors);
    EXPECT_TRUE(errors.empty());
  }
  std::filesystem::remove_all(folder);
  for (const Recording& one : recordings) EXPECT_EQ(one.calls.size(), 1U);
  std::erase_if(recordings, [](const Recording& one) { return one.calls.empty(); });
  return recordings;
}

// Makes one call on each rank, and returns the lengths that the ranks recorded for it.
std::vector<std::uint64_t> recorded_bytes(const Body& body) {
  std::vector<std::uint64_t> bytes;
  for (const Recording& one : recordings_of(body)) {
    bytes.push_back(bytes_of(one.calls.front(), one));
    const RecordedTotals::Kind& total = one.totals.kinds[one.calls.front().tag.kind];
    EXPECT_EQ(total.calls, 1U);
    EXPECT_EQ(total.bytes, bytes.back());
  }
  return bytes;
}

std::vector<std::uint64_t> on_each(std::uint64_t bytes) { return std::vector<std::uint64_t>(kRanks, bytes); }

CallOptions with_reduction() {
  CallOptions options;
  options.reduction.combine = [](const void* left, const void* right, void* result, std::size_t count, void*) {
    for (std::size_t i = 0; i < count; ++i) {
      static_cast<float*>(result)[i] = static_cast<const float*>(left)[i] + static_cast<const float*>(right)[i];
    }
  };
  options.reduction.element_bytes = kFloat;
  return options;
}

TEST(RecordedBytes, AreTheLongerOneOfInputAndOutput) {
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.all_reduce(input, output, kCount, DataType::kFloat32, ReduceOp::kSum);
            }),
            on_each(kCount * kFloat));
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.reduce_scatter(input, output, kCount, DataType::kFloat32, ReduceOp::kSum);
            }),
            on_each(kRanks * kCount * kFloat));
  std::vector<std::uint64_t> gathered = on_each(kCount * kFloat);
  gathered[kRoot] *= kRanks;
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.gather(input, output, kCount, DataType::kFloat32, kRoot);
            }),
            gathered)
      << "only the root has all blocks";
}

TEST(RecordedBytes, OfBlocksOfDifferentLengthsAreTheirSum) {
  static constexpr std::size_t kCounts[kRanks] = {1, 2, 3};
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.all_gather_v(input, output, {.counts = kCounts}, DataType::kFloat32);
            }),
            on_each(6 * kFloat));
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.reduce_scatter_v(input, output, {.counts = kCounts}, DataType::kFloat32, ReduceOp::kSum);
            }),
            on_each(6 * kFloat));
}

TEST(RecordedBytes, OfAUsersReductionCountAllBlocks) {
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.all_reduce(input, output, kCount, DataType::kFloat32, ReduceOp::kSum, with_reduction());
            }),
            on_each(kCount * kFloat));
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.reduce_scatter(input, output, kCount, DataType::kFloat32, ReduceOp::kSum, with_reduction());
            }),
            on_each(kRanks * kCount * kFloat));
}

// An all_to_all_v runs as sends and receives. It counts as much as the all_to_all.
TEST(RecordedBytes, OfAnExchangeAreThoseOfOneDirection) {
  static constexpr std::size_t kCounts[kRanks] = {2, 2, 2};
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.all_to_all(input, output, 2, DataType::kFloat32);
            }),
            on_each(6 * kFloat));
  EXPECT_EQ(recorded_bytes([](Communicator& rank, const float* input, float* output) {
              return rank.all_to_all_v(input, {.counts = kCounts}, output, {.counts = kCounts}, DataType::kFloat32);
            }),
            on_each(6 * kFloat));
}

// All ranks must show the all_to_all_v, because it is matched with those of the other ranks.
TEST(RecordedExchanges, AGroupWithAVariantShowsTheVariant) {
  static constexpr std::size_t kCounts[kRanks] = {2, 2, 2};
  const auto recordings = recordings_of([](Communicator& rank, const float* input, float* output) {
    Group group;
    const std::int32_t self = rank.rank();
    float one = 0;
    const CollectiveCall call{.kind = CollectiveKind::kAllToAll,
                              .input = input,
                              .output = output,
                              .type = DataType::kFloat32,
                              .variable = true,
                              .input_counts = {.counts = kCounts},
                              .output_counts = {.counts = kCounts}};
    Status added = self == 0 ? group.send(rank, input, 1, DataType::kFloat32, 1) : Status();
    if (self == 1) added = group.receive(rank, &one, 1, DataType::kFloat32, 0);
    if (added.ok()) added = group.add(rank, call);
    return added.ok() ? group.run() : added;
  });
  ASSERT_EQ(recordings.size(), 3U);
  for (const Recording& one : recordings) {
    EXPECT_EQ(one.calls[0].tag.kind, static_cast<std::uint8_t>(CollectiveKind::kAllToAll)) << one.rank;
    EXPECT_EQ(one.calls[0].variable_call, 1U) << one.rank;
    EXPECT_EQ(one.calls[0].transfers, one.rank == 2 ? 4U : 5U) << one.rank;
  }
}

}  // namespace
}  // namespace tutti::tool
