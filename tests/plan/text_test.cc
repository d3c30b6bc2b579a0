// Tests plans as readable text.
#include "plan/formats/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plans.h"

namespace tutti {
namespace {

using testing::HasSubstr;

TEST(Text, ShowsOperandsInTheirOrderSinkAndSends) {
  EXPECT_EQ(to_text(plan_of(Algorithm::kRing, 3).ranks[1], 1),
            "rank 1 channel 0: 0: in[1] ; send 2\n"
            "rank 1 channel 0: 1: recv(0) + in[0] ; send 2\n"
            "rank 1 channel 0: 2: out[2] = recv(0) + in[2] (complete) ; send 2\n"
            "rank 1 channel 0: 3: out[1] = recv(0) ; send 2\n"
            "rank 1 channel 0: 4: out[0] = recv(0)\n");
  EXPECT_THAT(to_text(plan_of(Algorithm::kTwoShot, 3).ranks[1], 1),
              HasSubstr("out[1] = recv(0) + in[1] + recv(2) (complete) ; send 2, 0\n"));
}

TEST(Text, ShowsLanesAndWhatAStepWaitsFor) {
  EXPECT_THAT(to_text(plan_of(Algorithm::kDoubleTree, 2).ranks[0], 0),
              HasSubstr("rank 0 channel 1: 0: out[0] = recv(1/1)\n"));
  ChannelBuilder builder;
  builder.step().local(Space::kScratch, 4).store(Space::kOutput, 2);
  builder.after(3, 7);
  EXPECT_EQ(to_text(RankPlan{.channels = {std::move(builder).build()}}, 9),
            "rank 9 channel 0: 0: out[2] = scratch[4] ; after 3:7\n");
}

TEST(Text, OpensWithTheShape) {
  EXPECT_THAT(to_text(plan_of(Algorithm::kRing, 4)),
              testing::StartsWith(
                  "all_reduce ring, 4 ranks: 4 chunks per block and tile, 0 scratch, 2 slots per connection, 1 lane, "
                  "added in cyclic rank order\nrank 0 channel 0: 0: "));
}

}  // namespace
}  // namespace tutti
