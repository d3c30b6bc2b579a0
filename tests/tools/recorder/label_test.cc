// Tests of CallOptions::label: the recording and the trace of a call show it, however the call runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tools/recorder/recording.h"
#include "tools/recorder/trace.h"
#include "tutti/tutti.h"

namespace tutti::tool {
namespace {

constexpr std::int32_t kLabelledRanks = 2;
constexpr std::uint64_t kLargest = ~std::uint64_t{0};

// Makes the calls of one rank: short and long ones, in the background, in groups, and without a label.
void call_with_labels(Communicator& rank) {
  std::vector<float> data(1 << 20, 1.0F);
  const auto sum = [&](std::size_t count, std::uint64_t label) {
    EXPECT_TRUE(
        rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum, {.label = label}).ok());
  };
  sum(1, 0);
  for (std::uint64_t label = 1; label <= 3; ++label) sum(1, label);  // from the second call on without an operation
  sum(data.size(), 4);
  auto work = rank.start({.input = data.data(), .output = data.data(), .count = 8}, {.label = 5});
  ASSERT_TRUE(work.ok());
  EXPECT_TRUE(work->wait().ok());
  Group group;
  const std::int32_t peer = 1 - rank.rank();
  ASSERT_TRUE(group.send(rank, data.data(), 4, DataType::kFloat32, peer).ok());
  ASSERT_TRUE(group.receive(rank, data.data() + 4, 4, DataType::kFloat32, peer, {.label = kLargest}).ok());
  EXPECT_TRUE(group.run().ok());
  sum(1, 0);
}

TEST(RecordedLabels, AreThoseOfTheCalls) {
  std::string folder = std::filesystem::temp_directory_path() / "tutti-label-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  setenv("TUTTI_RECORD_DIR", folder.c_str(), 1);
  std::vector<Recording> recordings;
  {
    auto ranks = Communicator::create_all(kLabelledRanks);
    unsetenv("TUTTI_RECORD_DIR");
    ASSERT_TRUE(ranks.ok()) << to_string(ranks.error());
    std::vector<std::thread> threads;
    for (const auto& rank : *ranks) threads.emplace_back([&rank] { call_with_labels(*rank); });
    for (std::thread& thread : threads) thread.join();
    std::vector<std::string> errors;
    recordings = read_recordings({folder}, errors);
    EXPECT_TRUE(errors.empty());
  }
  std::filesystem::remove_all(folder);
  ASSERT_EQ(recordings.size(), static_cast<std::size_t>(kLabelledRanks));
  const std::vector<std::uint64_t> wanted = {0, 1, 2, 3, 4, 5, kLargest, 0};
  for (const Recording& one : recordings) {
    std::vector<std::uint64_t> labels;
    for (const RecordedCall& call : one.calls) labels.push_back(call.label);
    EXPECT_EQ(labels, wanted) << "rank " << one.rank;
  }
  std::vector<std::uint64_t> traced;
  const auto trace = nlohmann::json::parse(chrome_trace(recordings, 0));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") traced.push_back(event["args"].value("label", std::uint64_t{0}));
  }
  std::vector<std::uint64_t> both = wanted;
  both.insert(both.end(), wanted.begin(), wanted.end());
  std::sort(both.begin(), both.end());
  std::sort(traced.begin(), traced.end());
  EXPECT_EQ(traced, both);
}

}  // namespace
}  // namespace tutti::tool
