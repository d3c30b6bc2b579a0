// Tests how a rank reports a failed call, also when the shared memory of its peers contains rank numbers out of range.
// A correct rank never writes such numbers; a crashed or faulty one may.
#include "engine/failure_analyzer.h"

#include <gtest/gtest.h>

#include "executor/mailbox_board.h"
#include "tests/transports/shm_ranks.h"
#include "tests/transports/tcp_support.h"

namespace tutti {
namespace {

constexpr SegmentShape kShape{.ranks = 2, .slots = 2, .slot_bytes = 4096};

// The peer reports that its call failed because of a rank that does not exist. The error must then name no rank
// (-1).
TEST(FailureAnalyzer, ACulpritThatIsNoRankIsNotNamed) {
  for (const std::int32_t culprit : {2, 70'000, 0x7fffffff, -2}) {
    const auto ranks = shm_ranks(kShape, in_process_exchanges(2));
    ranks[1]->enter_call(call(1), {});
    ranks[1]->leave_call(call(1), CallFailure{.code = ErrorCode::kPeerLost, .culprit = culprit});
    ranks[0]->enter_call(call(1), {});
    Call failed;
    failed.tag = call(1);
    const auto found = FailureAnalyzer(0, 2, *ranks[0]).look(failed);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->error.rank, -1) << culprit;
    EXPECT_EQ(found->failure.culprit, -1) << culprit;
  }
}

// The peer has finished the call and left, but its data has not arrived. Then the connection between the two ranks has
// lost the data, and the error must name both ranks.
TEST(FailureAnalyzer, DataOfAFinishedPeerThatDoesNotArriveMeansABrokenConnection) {
  const auto ranks = shm_ranks(kShape, in_process_exchanges(2));
  ranks[1]->enter_call(call(1), {});
  ranks[1]->leave_call(call(1), std::nullopt);
  ranks[1]->announce_leave();
  ranks[0]->enter_call(call(1), {});
  Call waiting;
  waiting.tag = call(1);
  const auto found = FailureAnalyzer(0, 2, *ranks[0]).find_lost_sender(waiting, {1});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->error.code, ErrorCode::kPeerLost);
  EXPECT_EQ(found->error.rank, 1);
  EXPECT_NE(found->error.message.find("rank 1 has finished this call and sends nothing more, because it has destroyed "
                                      "its communicator, but some of its data has not arrived: the connection between "
                                      "rank 1 and rank 0 is broken"),
            std::string::npos)
      << found->error.message;
}

// A collective that waits for data of rank 1.
struct WaitsForRank1 final : CollectiveTask {
  void start(const Call& /*call*/) override {}
  WindowRef offered(const Call& /*call*/) const override { return {}; }
  bool progress() override { return false; }
  bool done() override { return false; }
  const std::optional<BadMessage>& bad_message() const override { return none; }
  std::string waits_for() override { return "a message from rank 1"; }
  std::vector<std::uint32_t> waits_for_ranks() override { return {1}; }

  std::optional<BadMessage> none;
};

enum class Rank1 : std::uint8_t {
  kIsStopped,          // it has sent a message of call 2, and was stopped before it reported anything
  kWaits,              // it has sent a message of call 2, and has reported that it waits in call 2
  kIsStoppedBeforeIt,  // it has reported that it waited in call 1, and that it has left it; then it was stopped
};

// Three ranks make calls over TCP. Rank 0 is in call 2 and waits for rank 1. The last message of rank 2 belonged to
// call 1. So either rank 2 has not entered call 2, or it has finished call 2 without waiting, and has reported nothing.
// Returns the rank that rank 0 names after its timeout.
std::int32_t rank_that_is_named(Rank1 rank_1) {
  tcp_test::TestJob job(3);
  for (const std::uint32_t peer : {1U, 2U}) {
    const CallTag tag = tcp_test::call(rank_1 == Rank1::kIsStoppedBeforeIt ? 1 : 3 - peer);
    const auto send = job.send(peer, 0);
    const auto receive = job.receive(peer, 0);
    job.ranks[peer]->enter_call(tag, {});
    send->send_from(nullptr, 0, tag);
    EXPECT_TRUE(tcp_test::eventually([&] {
      job.ranks[peer]->flush();
      return receive->arrival(tag) == Arrival::kMessage;
    }));
  }
  const std::uint64_t last = rank_1 == Rank1::kIsStoppedBeforeIt ? 1 : 2;
  if (rank_1 != Rank1::kIsStopped) {
    EXPECT_TRUE(tcp_test::eventually([&] {
      job.ranks[1]->pump();
      return job.ranks[0]->peer_status(1).reported == last;
    }));
  }
  if (rank_1 == Rank1::kIsStoppedBeforeIt) {
    job.ranks[1]->leave_call(tcp_test::call(1), std::nullopt);
    EXPECT_TRUE(tcp_test::eventually([&] {
      job.ranks[1]->flush();
      return job.ranks[0]->peer_status(1).left == last;
    }));
  }
  Call waiting;
  waiting.tag = tcp_test::call(2);
  job.ranks[0]->enter_call(waiting.tag, {});
  WaitsForRank1 task;
  return FailureAnalyzer(0, 3, *job.ranks[0]).timed_out(waiting, 100, task).error.rank;
}

TEST(FailureAnalyzer, ARankThatSaysNothingIsNamedBeforeOneOfWhichNothingIsKnown) {
  EXPECT_EQ(rank_that_is_named(Rank1::kIsStopped), 1);
  EXPECT_EQ(rank_that_is_named(Rank1::kIsStoppedBeforeIt), 1);
  EXPECT_EQ(rank_that_is_named(Rank1::kWaits), 2) << "rank 1 waits itself, so the rank that is behind is named";
}

// claim(1) records rank 0 as the claimer of part 1. If the recorded claimer is not a rank, claimer() falls back to
// the rank that owns the part.
TEST(MailboxBoard, AClaimerThatIsNoRankIsNotNamed) {
  const auto ranks = shm_ranks(kShape, in_process_exchanges(2));
  MailboxBoard marks(0, *ranks[0]);
  marks.begin(call(1));
  ASSERT_TRUE(marks.claim(1));
  EXPECT_EQ(marks.claimer(1), 0u);
  marks.mark(1).claimer = 70'000;
  EXPECT_EQ(marks.claimer(1), 1u) << "a claimer out of range is replaced by the owner of the part";
}

// A mailbox is used again by later calls. A claim in an earlier call must not be taken for one in the present call:
// the owner does its part unless another rank has claimed it now.
TEST(MailboxBoard, AClaimInAnEarlierCallNamesNobody) {
  const auto ranks = shm_ranks(kShape, in_process_exchanges(2));
  MailboxBoard marks(0, *ranks[0]);
  marks.begin(call(1));
  EXPECT_EQ(marks.claimer(1), 1u) << "no rank has ever claimed the part";
  ASSERT_TRUE(marks.claim(1));
  EXPECT_EQ(marks.claimer(1), 0u);
  marks.begin(call(1 + kMailboxes));
  EXPECT_EQ(marks.claimer(1), 1u) << "the claim belongs to an earlier call in the same mailbox";
}

}  // namespace
}  // namespace tutti
