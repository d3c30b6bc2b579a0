// Tests how a rank reports a failed call, also when the shared memory of its peers contains rank numbers out of range.
// A correct rank never writes such numbers; a crashed or faulty one may.
#include "engine/failure_analyzer.h"

#include <gtest/gtest.h>

#include "executor/mailbox_board.h"
#include "tests/transports/shm_ranks.h"

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
