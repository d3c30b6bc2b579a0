// What a rank says of a failed call when its peers' memory holds numbers that no sound rank writes there.
#include "engine/failure_analyzer.h"

#include <gtest/gtest.h>

#include "executor/mailbox_board.h"
#include "tests/transports/shm_ranks.h"

namespace tutti {
namespace {

constexpr SegmentShape kShape{.ranks = 2, .slots = 2, .slot_bytes = 4096};

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

TEST(MailboxBoard, AClaimerThatIsNoRankIsNotNamed) {
  const auto ranks = shm_ranks(kShape, in_process_exchanges(2));
  MailboxBoard marks(0, *ranks[0]);
  marks.begin(call(1));
  ASSERT_TRUE(marks.claim(1));
  EXPECT_EQ(marks.claimer(1), 0u);
  marks.mark(1).claimer = 70'000;
  EXPECT_EQ(marks.claimer(1), 1u) << "whose part it is";
}

}  // namespace
}  // namespace tutti
