// Tests of the metrics on made-up recordings. export_test.py has the parsers of prometheus_client read metrics of real
// jobs.
#include "tools/recorder/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMetricSecondNs = 1'000'000'000;
constexpr std::int64_t kMetricNowNs = 1000 * kMetricSecondNs;

std::vector<Recording> one_rank() {
  std::vector<Recording> ranks(1);
  ranks[0].job = ranks[0].communicator = 0xabc;
  ranks[0].rank = 1;
  ranks[0].ranks = 2;
  ranks[0].made_ns = kMetricNowNs - 100 * kMetricSecondNs;
  ranks[0].process = ProcessState::kSleeping;
  ranks[0].of_this_machine = true;
  ranks[0].peer_totals.resize(2);
  return ranks;
}

std::string open_metrics(const std::vector<Recording>& ranks) {
  return metrics_text(ranks, 5, MetricsFormat::kOpenMetrics, kMetricNowNs);
}

TEST(Metrics, AreTheTotalsOfTheRecording) {
  auto ranks = one_rank();
  ranks[0].totals.kinds[static_cast<std::size_t>(CollectiveKind::kAllGather)] = {
      .calls = 7, .bytes = 4096, .device_calls = 2};
  ranks[0].totals.errors[static_cast<std::size_t>(ErrorCode::kTimeout)] = 3;
  ranks[0].peer_totals[0] = {.waited_ns = 1'500'000'000, .absent_ns = 250'000'000, .retransmissions = 9};
  const std::string text = open_metrics(ranks);
  const std::string labels = R"({job="00000abc",communicator="00000abc",rank="1")";
  for (const std::string& line : {
           "tutti_calls_total" + labels + R"(,collective="all_gather",on="host"} 7)",
           "tutti_calls_total" + labels + R"(,collective="all_gather",on="gpu"} 2)",
           "tutti_call_bytes_total" + labels + R"(,collective="all_gather"} 4096)",
           "tutti_errors_total" + labels + R"(,code="timeout"} 3)",
           "tutti_errors_total" + labels + R"(,code="aborted"} 0)",
           "tutti_wait_seconds_total" + labels + R"(,peer="0"} 1.5)",
           "tutti_absent_seconds_total" + labels + R"(,peer="0"} 0.25)",
           "tutti_tcp_retransmitted_segments_total" + labels + R"(,peer="0"} 9)",
           "tutti_rank_state" + labels + R"(,state="alive"} 1)",
           "tutti_rank_state" + labels + R"(,state="dead"} 0)",
           "tutti_call_age_seconds" + labels + "} 0",
           std::string("tutti_recordings 1"),
           std::string("tutti_unreadable_recordings 5"),
       }) {
    EXPECT_THAT(text, HasSubstr(line + "\n"));
  }
  EXPECT_THAT(text, Not(HasSubstr("all_reduce"))) << "only kinds of which there were calls";
  EXPECT_THAT(text, Not(HasSubstr("peer=\"1\"")));
  EXPECT_TRUE(text.ends_with("\n# EOF\n"));
}

TEST(Metrics, HaveEscapedLabels) {
  auto ranks = one_rank();
  ranks[0].program = "a\"b\\c\nd";
  EXPECT_THAT(open_metrics(ranks), HasSubstr(R"(,program="a\"b\\c\nd",)"));
}

TEST(Metrics, FormatsDifferInTheNamesOfCounters) {
  const std::string open = open_metrics(one_rank());
  EXPECT_THAT(open, HasSubstr("# TYPE tutti_wait_seconds counter\n# UNIT tutti_wait_seconds seconds\n"));
  EXPECT_THAT(open, HasSubstr("# TYPE tutti_rank info\n"));
  const std::string text = metrics_text(one_rank(), 0, MetricsFormat::kPrometheus, kMetricNowNs);
  EXPECT_THAT(text, HasSubstr("# TYPE tutti_wait_seconds_total counter\n# HELP tutti_wait_seconds_total "));
  EXPECT_THAT(text, HasSubstr("# TYPE tutti_rank_info gauge\n"));
  EXPECT_THAT(text, Not(HasSubstr("# UNIT")));
  EXPECT_THAT(text, Not(HasSubstr("# EOF")));
}

TEST(Metrics, TheAgeIsThatOfTheRunningCall) {
  auto ranks = one_rank();
  RecordedCall call;
  call.start_ns = kMetricNowNs - 5 * kMetricSecondNs / 2;
  call.outcome.state = recording::State::kRunning;
  ranks[0].calls = {call};
  EXPECT_THAT(open_metrics(ranks), HasSubstr("rank=\"1\"} 2.5\n"));
  EXPECT_THAT(open_metrics(ranks), HasSubstr("tutti_last_call_timestamp_seconds{job=\"00000abc\",communicator="
                                             "\"00000abc\",rank=\"1\"} 997.500000\n"));
  ranks[0].process = ProcessState::kDead;
  EXPECT_THAT(open_metrics(ranks), Not(HasSubstr("tutti_call_age_seconds{")));
  EXPECT_THAT(open_metrics(ranks), HasSubstr("state=\"dead\"} 1\n"));
}

TEST(Metrics, OldAndForeignRecordingsAreLeftOut) {
  std::vector<Recording> ranks;
  for (int i = 0; i < 8; ++i) ranks.push_back(one_rank()[0]);
  ranks[1].of_this_machine = false;
  ranks[2].ended_ns = kMetricNowNs - 20 * kMetricSecondNs;
  ranks[3].ended_ns = kMetricNowNs - 5 * kMetricSecondNs;
  ranks[4].process = ProcessState::kDead;  // made 100 s ago, and silent since
  ranks[5].process = ProcessState::kDead;
  ranks[5].last_failure = RecordedFailure{.at_ns = kMetricNowNs - 5 * kMetricSecondNs, .text = {}};
  ranks[6].process = ProcessState::kUnknown;  // in another container, and silent
  ranks[7].process = ProcessState::kUnknown;
  ranks[7].wait.emplace().updated_ns = kMetricNowNs - 5 * kMetricSecondNs;
  for (std::uint32_t i = 0; i < 8; ++i) ranks[i].rank = i;
  keep_recent_of_this_machine(ranks, 10 * kMetricSecondNs, kMetricNowNs);
  std::vector<std::uint32_t> kept;
  for (const Recording& one : ranks) kept.push_back(one.rank);
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{0, 3, 5, 7}));
}

}  // namespace
}  // namespace tutti::tool
