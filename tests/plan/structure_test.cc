// Tests that every static fault of a plan is refused with an error that states the cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "plan/verify/verify.h"
#include "plans.h"

namespace tutti {
namespace {

using testing::HasSubstr;

struct Fault {
  std::string name;
  std::function<void(Plan&)> make;
  std::string cause;  // expected text in the error
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

void add_after(Plan& plan, After after) { plan.ranks[0].channels[0].after.push_back(after); }

std::vector<Fault> faults() {
  return {
      {"SourceChunk", [](Plan& p) { step_of(p, 1, 0).source.chunk = 1; },
       "rank 1 channel 0 step 0: source in[1] is out of bounds"},
      {"SourceSpace", [](Plan& p) { step_of(p, 0, 0).source.space = Space{9}; }, "unknown space 9"},
      {"SinkChunk", [](Plan& p) { step_of(p, 0, 1).sink.chunk = 7; }, "sink out[7] is out of bounds"},
      {"NoScratch", [](Plan& p) { step_of(p, 0, 0).sink = {.space = Space::kScratch}; },
       "sink scratch[0] is out of bounds"},
      {"ChunkOfNothing", [](Plan& p) { step_of(p, 0, 0).sink.chunk = 1; }, "is no slice, but has chunk 1"},
      {"InputAsSink", [](Plan& p) { step_of(p, 0, 1).sink.space = Space::kInput; }, "input is only read"},
      {"SliceReserved", [](Plan& p) { step_of(p, 0, 1).sink.reserved[2] = 1; }, "reserved byte"},
      {"StepReserved", [](Plan& p) { step_of(p, 0, 1).reserved = 1; }, "reserved byte"},
      {"Completes", [](Plan& p) { step_of(p, 0, 1).completes = 2; }, "completes is 2"},
      {"SourcePosition", [](Plan& p) { step_of(p, 0, 0).source_position = 1; }, "source position 1 is out of bounds"},
      {"NoOperand", [](Plan& p) { step_of(p, 0, 0).source = {}; }, "has no operand"},
      {"NoEffect", [](Plan& p) { step_of(p, 0, 0).send_count = 0; }, "has no effect"},
      {"ListEnd", [](Plan& p) { step_of(p, 0, 1).list_begin = 9; }, "its ports end at 10 of a list of 2"},
      {"PortIndex", [](Plan& p) { p.ranks[0].channels[0].lists[0] = 2; }, "port 2 is out of bounds: the channel has 2"},
      {"PortDirection", [](Plan& p) { p.ranks[0].channels[0].lists[0] = 1; }, "port 1 can not send"},
      {"PortTwice",
       [](Plan& p) {
         p.ranks[0].channels[0].lists[1] = 0;
         step_of(p, 0, 0).send_count = 2;
       },
       "sends to rank 1, lane 0, twice: a step uses each connection once"},
      {"Peer", [](Plan& p) { p.ranks[0].channels[0].ports[0].peer = 2; }, "peer 2 is not one of 2 ranks"},
      {"SelfSend", [](Plan& p) { p.ranks[0].channels[0].ports[0].peer = 0; }, "the peer is the rank itself"},
      {"Lane", [](Plan& p) { p.ranks[0].channels[0].ports[0].lane = 1; }, "lane 1 is not one of 1"},
      {"Direction", [](Plan& p) { p.ranks[0].channels[0].ports[0].direction = Direction{2}; }, "unknown direction"},
      {"PortReserved", [](Plan& p) { p.ranks[0].channels[0].ports[0].reserved = 1; }, "reserved byte"},
      {"TwoChannelsOnOneEnd", [](Plan& p) { p.ranks[0].channels.push_back(p.ranks[0].channels[0]); },
       "has 2 sending and 1 receiving ports"},
      {"NobodyAtTheOtherEnd",
       [](Plan& p) {
         p.shape.lanes = 2;
         p.ranks[0].channels[0].ports[0].lane = 1;
       },
       "instead of one each"},
      {"MessageLeftOver",
       [](Plan& p) {
         auto& steps = p.ranks[0].channels[0].steps;
         steps.insert(steps.begin(), steps[0]);
       },
       "rank 0 channel 0 sends 2 messages per tile to rank 1, lane 0, but channel 0 there receives 1"},
      {"AfterStep",
       [](Plan& p) {
         p.ranks[0].channels.emplace_back();
         p.ranks[0].channels[1].steps.push_back(
             {.source = {.space = Space::kInput}, .sink = {.space = Space::kOutput}});
         add_after(p, {.step = 2, .other_channel = 1});
       },
       "there is no step 2 to wait"},
      {"AfterChannel", [](Plan& p) { add_after(p, {.step = 0, .other_channel = 4}); }, "there is no channel 4"},
      {"AfterItself", [](Plan& p) { add_after(p, {.step = 1, .other_channel = 0}); }, "can not wait for itself"},
      {"AfterOtherStep",
       [](Plan& p) {
         p.ranks[0].channels.emplace_back();
         add_after(p, {.step = 1, .other_channel = 1});
       },
       "channel 1 has no step 0"},
      {"AfterTwoTiles", [](Plan& p) { add_after(p, {.step = 0, .tiles_before = 2}); }, "after 0"},
      {"NoChannel", [](Plan& p) { p.ranks[1].channels.clear(); }, "rank 1 has no channel"},
      {"RankCount", [](Plan& p) { p.shape.collective.ranks = 3; }, "it is for 3 ranks but holds 2"},
      {"NoSlots", [](Plan& p) { p.shape.slots = 0; }, "connections hold 0 messages"},
      {"NoChunks", [](Plan& p) { p.shape.chunks = 0; }, "there are no chunks"},
  };
}

class Structure : public testing::TestWithParam<Fault> {};

TEST_P(Structure, RefusesWithTheCause) {
  Plan plan = two_ranks();
  ASSERT_TRUE(verify_all(plan).ok());
  GetParam().make(plan);
  const Result<VerifyReport> report = verify(plan);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidPlan);
  EXPECT_THAT(report.error().message, HasSubstr(GetParam().cause));
}

INSTANTIATE_TEST_SUITE_P(Faults, Structure, testing::ValuesIn(faults()),
                         [](const testing::TestParamInfo<Fault>& fault) { return fault.param.name; });

TEST(Structure, RefusesAnUnsortedAfterList) {
  ChannelBuilder first;
  first.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  ChannelBuilder second;
  second.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  second.after(0, 0);
  second.step().local(Space::kScratch, 0).store(Space::kScratch, 0);
  second.after(0, 0);
  Channel unsorted = std::move(second).build();
  std::swap(unsorted.after[0], unsorted.after[1]);
  const Result<VerifyReport> report = verify(one_rank({std::move(first).build(), unsorted}));
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("not sorted by step"));
}

}  // namespace
}  // namespace tutti
