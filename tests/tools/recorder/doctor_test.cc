// Tests of the doctor's verdicts on made-up recordings, which jobs of real processes rarely produce.
#include "tools/recorder/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tools/recorder/top.h"
#include "tutti/types.h"

namespace tutti::tool {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kNowNs = 1'000'000'000'000;
constexpr std::int64_t kSecondNs = 1'000'000'000;

RecordedCall call_of(std::uint64_t sequence, recording::State state, std::int64_t ago_ns = 5 * kSecondNs) {
  RecordedCall call;
  call.number = sequence;
  call.tag = {.sequence = sequence, .count = 8, .algorithm = static_cast<std::uint8_t>(Algorithm::kRing)};
  call.start_ns = kNowNs - ago_ns;
  call.outcome = {.state = state, .way = recording::CallPath::kMessages};
  if (state != recording::State::kRunning) call.end_ns = call.start_ns + 1000;
  return call;
}

// Returns the recordings of four ranks that are all inside call 3.
std::vector<Recording> job() {
  std::vector<Recording> ranks(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks[rank].rank = rank;
    ranks[rank].ranks = 4;
    ranks[rank].pid = 100 + static_cast<std::int32_t>(rank);
    ranks[rank].process = ProcessState::kSleeping;
    ranks[rank].calls = {call_of(2, recording::State::kDone), call_of(3, recording::State::kRunning)};
  }
  return ranks;
}

void fail(Recording& rank, ErrorCode code, std::int32_t culprit, std::int64_t ago_ns) {
  rank.calls.back() = call_of(3, recording::State::kFailed);
  rank.first_failure = RecordedFailure{kNowNs - ago_ns, 3, code, culprit, "words of rank " + std::to_string(rank.rank)};
}

TEST(Doctor, AJobThatWorksIsSound) {
  auto ranks = job();
  for (Recording& rank : ranks) rank.calls.back() = call_of(3, recording::State::kRunning, 1000);
  EXPECT_EQ(diagnose(ranks, kNowNs).cause, Cause::kNone);
  EXPECT_EQ(diagnose({}, kNowNs).cause, Cause::kNone);
}

TEST(Doctor, ALongWaitInsideIsNobodysFaultYet) {
  const Verdict verdict = diagnose(job(), kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kStuck);
  EXPECT_TRUE(verdict.culprits.empty());
  EXPECT_THAT(verdict.what, HasSubstr("ranks 0, 1, 2, 3 are in all_reduce #3"));
}

TEST(Doctor, WhoIsNotInsideIsAbsent) {
  auto ranks = job();
  ranks[1].calls.pop_back();
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kAbsent);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{1});
  EXPECT_THAT(verdict.advice, HasSubstr("gdb -p 101"));
}

TEST(Doctor, ADeadRankComesBeforeAStoppedOne) {
  auto ranks = job();
  ranks[1].process = ProcessState::kStopped;
  EXPECT_EQ(diagnose(ranks, kNowNs).cause, Cause::kStopped);
  ranks[3].process = ProcessState::kDead;
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kDied);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{3});
}

TEST(Doctor, TheFirstErrorDecides) {
  auto ranks = job();
  fail(ranks[0], ErrorCode::kAborted, 2, 2 * kSecondNs);
  fail(ranks[1], ErrorCode::kPeerLost, 3, 3 * kSecondNs);
  ranks[3].process = ProcessState::kDead;
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kDied);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{3});
  EXPECT_THAT(verdict.what, HasSubstr("Rank 1 reported the first error, 3.0 s ago: \"words of rank 1\""));
}

TEST(Doctor, WhoAbortsIsNamed) {
  auto ranks = job();
  fail(ranks[0], ErrorCode::kAborted, 2, kSecondNs);
  ranks[2].aborted_ns = kNowNs - 2 * kSecondNs;
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kAborted);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{2});
}

TEST(Doctor, RanksWithoutARecordingThatAreWaitedForAreNamed) {
  auto ranks = job();
  ranks.pop_back();
  ranks[0].wait = RecordedWait{3, 3, kNowNs - kSecondNs, kNowNs, 1, 1, {3}, {3}, "no message from rank 3"};
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kUnrecorded);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{3});
}

TEST(Doctor, AMismatchIsToldByMajority) {
  auto ranks = job();
  ranks[1].calls.back().tag.count = 9;
  const Verdict verdict = diagnose(ranks, kNowNs);
  EXPECT_EQ(verdict.cause, Cause::kMismatch);
  EXPECT_EQ(verdict.culprits, std::vector<std::uint32_t>{1});
  EXPECT_THAT(verdict.what, HasSubstr("ranks 0, 2, 3 passed count 8, rank 1 passed count 9"));
}

TEST(Top, DeadJobsAreLeftOut) {
  auto ranks = job();
  EXPECT_THAT(top_table(ranks, kNowNs), HasSubstr("in all_reduce #3"));
  for (Recording& rank : ranks) rank.process = ProcessState::kDead;
  EXPECT_EQ(top_table(ranks, kNowNs), "");
}

TEST(Top, RatesAreThoseOfTheLastSecond) {
  auto ranks = job();
  ranks[0].calls.clear();
  for (std::uint64_t i = 1; i <= 10; ++i) {
    ranks[0].calls.push_back(call_of(i, recording::State::kDone, kSecondNs / 100));
    ranks[0].calls.back().tag.count = 1'000'000;  // elements of type int8
  }
  ranks[0].begun = 10;
  EXPECT_THAT(top_table(ranks, kNowNs), HasSubstr("        10        10      10.0  after all_reduce #10"));
}

}  // namespace
}  // namespace tutti::tool
