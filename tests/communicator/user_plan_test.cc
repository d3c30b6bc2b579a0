// Tests user plans. Correct plans must be verified and run like the built-in ones. Wrong plans must be refused with
// the rank, the channel and the step.
#include "communicator/user_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>

#include "algorithms/algorithms.h"
#include "communicator/plan_table.h"
#include "plan/formats/json.h"
#include "plan/verify/interpret.h"
#include "tutti/plan.h"

namespace tutti {
namespace {

using detail::UserPlanData;
using testing::AllOf;
using testing::HasSubstr;

Plan built_in(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks) {
  return build_plan(*find_generator({.kind = kind, .ranks = ranks}, algorithm));
}

// A plan in which rank 0 adds all inputs in rank order and sends the sum to all ranks.
PlanBuilder star(std::uint32_t ranks) {
  PlanBuilder plan({.name = "star", .ranks = ranks, .order = Order::kByRank});
  PlanBuilder::Step centre = plan.channel(0).step();
  centre.local(Space::kInput, 0);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) centre.receive(rank);
  centre.store(Space::kOutput, 0);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) centre.send(rank);
  centre.completes();
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    PlanBuilder::Channel leaf = plan.channel(rank);
    leaf.step().local(Space::kInput, 0).send(0);
    leaf.step().receive(0).store(Space::kOutput, 0);
  }
  return plan;
}

PlanBuilder chain_broadcast(std::uint32_t root) {
  PlanBuilder plan({.name = "chain", .collective = CollectiveKind::kBroadcast, .ranks = 3, .root = root, .chunks = 2});
  PlanBuilder::Channel first = plan.channel(0), second = plan.channel(1), third = plan.channel(2);
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    first.step().local(Space::kInput, chunk).store(Space::kOutput, chunk).send(1);
    second.step().receive(0).store(Space::kOutput, chunk).send(2);
    third.step().receive(1).store(Space::kOutput, chunk);
  }
  return plan;
}

void expect_same_result(const Plan& a, const Plan& b) {
  for (const bool in_place : {false, true}) {
    const auto left = interpret(a, {.in_place = in_place});
    const auto right = interpret(b, {.in_place = in_place});
    ASSERT_TRUE(left && right);
    EXPECT_EQ(*left, *right);
  }
}

TEST(UserPlan, AddsThroughAStar) {
  const Result<UserPlan> plan = star(5).build();
  ASSERT_TRUE(plan) << to_string(plan.error());
  EXPECT_EQ(plan->name(), "star");
  EXPECT_EQ(plan->description().ranks, 5u);
  EXPECT_GT(plan->proof().messages, 8u * 2 * 2 * 4 - 1);
  const Generator generator = UserPlanData::generator(*plan);
  EXPECT_EQ(generator.shape.algorithm, Algorithm::kUser);
  expect_same_result(build_plan(generator), built_in(CollectiveKind::kAllReduce, Algorithm::kOneShot, 5));
}

TEST(UserPlan, BroadcastsAlongAChain) {
  const Result<UserPlan> plan = chain_broadcast(0).build();
  ASSERT_TRUE(plan) << to_string(plan.error());
  EXPECT_EQ(plan->description().collective, CollectiveKind::kBroadcast);
  EXPECT_TRUE(interpret(build_plan(UserPlanData::generator(*plan)), {}));
}

TEST(UserPlan, RunsABuiltInPlanFromItsText) {
  for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
    const Plan ring = built_in(CollectiveKind::kAllReduce, Algorithm::kRing, ranks);
    const Result<UserPlan> plan = UserPlan::parse_json(to_json({.plan = ring}));
    ASSERT_TRUE(plan) << to_string(plan.error());
    expect_same_result(build_plan(UserPlanData::generator(*plan)), ring);
  }
}

TEST(UserPlan, IsTheSameAfterAFile) {
  for (const bool adds : {true, false}) {
    const Result<UserPlan> plan = adds ? star(4).build() : chain_broadcast(0).build();
    ASSERT_TRUE(plan);
    const std::string path = testing::TempDir() + "tutti_user_plan_test.json";
    std::ofstream(path) << plan->to_json();
    const Result<UserPlan> loaded = UserPlan::load(path);
    std::remove(path.c_str());
    ASSERT_TRUE(loaded) << to_string(loaded.error());
    EXPECT_EQ(*loaded, *plan);
    EXPECT_EQ(loaded->digest(), plan->digest());
    EXPECT_NE(loaded->digest(), 0u);
  }
}

TEST(UserPlan, HasADigestOfWhatItDoesAndNotOfItsName) {
  const UserPlan plan = *star(4).build();
  std::string text = plan.to_json();
  text.replace(text.find("star"), 4, "moon");
  const UserPlan renamed = *UserPlan::parse_json(text);
  EXPECT_EQ(renamed.digest(), plan.digest());
  EXPECT_FALSE(renamed == plan);
  text.replace(text.find("\"slots\": 1"), 10, "\"slots\": 2");
  EXPECT_NE(UserPlan::parse_json(text)->digest(), plan.digest());
}

// Reads the example in docs/plan-json.md exactly as it is there.
TEST(UserPlan, ReadsTheExampleOfItsDocument) {
  std::stringstream document;
  document << std::ifstream(TUTTI_SOURCE_DIR "/docs/plan-json.md").rdbuf();
  const std::string text = document.str();
  const std::size_t begin = text.find("```json\n") + 8;
  const Result<UserPlan> plan = UserPlan::parse_json(text.substr(begin, text.find("```", begin) - begin));
  ASSERT_TRUE(plan) << to_string(plan.error());
  EXPECT_EQ(plan->digest(), UserPlanData::of(*star(3).build()).digest)
      << "the document says that the example is this star";
}

// Every rank sends its input to all, and then overwrites it in place while a peer may still read it.
TEST(UserPlan, PublishesInPlaceOnlyWhereThatIsProved) {
  EXPECT_TRUE(UserPlanData::of(*star(3).build()).plan.shape.windows_in_place);
  EXPECT_TRUE(star(3).build()->proof().windows_in_place);
  Plan one_shot = built_in(CollectiveKind::kAllReduce, Algorithm::kOneShot, 3);
  ASSERT_FALSE(one_shot.shape.windows_in_place);
  std::string silent = to_json({.plan = one_shot});
  const std::string says = "\"windows_in_place\": false,";
  silent.erase(silent.find(says), says.size());
  const Result<UserPlan> chosen = UserPlan::parse_json(silent);
  ASSERT_TRUE(chosen) << to_string(chosen.error());
  EXPECT_FALSE(UserPlanData::of(*chosen).plan.shape.windows_in_place);
  EXPECT_FALSE(chosen->proof().windows_in_place);

  one_shot.shape.windows_in_place = true;  // a promise that is wrong
  const Result<UserPlan> promised = UserPlan::parse_json(to_json({.plan = one_shot}));
  ASSERT_FALSE(promised);
  EXPECT_THAT(promised.error().message, HasSubstr("race"));
}

TEST(UserPlan, CannotBeReadFromWhereThereIsNone) {
  EXPECT_EQ(UserPlan::load("/no/such/plan.json").error().code, ErrorCode::kSystem);
  EXPECT_THAT(UserPlan::load("/no/such/plan.json").error().message, HasSubstr("No such file"));
  EXPECT_EQ(UserPlan::load(testing::TempDir()).error().code, ErrorCode::kSystem) << "a folder is not a file";
  const Error endless = UserPlan::load("/dev/zero").error();
  EXPECT_EQ(endless.code, ErrorCode::kUnsupported);
  EXPECT_THAT(endless.message, HasSubstr("too large"));
}

struct Wrong {
  std::string name;
  std::function<Result<UserPlan>()> build;
  std::int32_t rank;
  std::string place;
  std::string what;
  ErrorCode code = ErrorCode::kInvalidPlan;
  friend void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }
};

// A plan for two ranks. `first` and `second` add the steps of rank 0 and of rank 1.
Result<UserPlan> pair(const std::function<void(PlanBuilder::Channel)>& first,
                      const std::function<void(PlanBuilder::Channel)>& second, PlanDescription description = {}) {
  description.ranks = 2;
  PlanBuilder plan(description);
  first(plan.channel(0));
  second(plan.channel(1));
  return plan.build();
}

void add_at_root(PlanBuilder::Channel channel) {
  channel.step().local(Space::kInput, 0).receive(1).store(Space::kOutput, 0).send(1).completes();
}
void send_and_store(PlanBuilder::Channel channel) {
  channel.step().local(Space::kInput, 0).send(0);
  channel.step().receive(0).store(Space::kOutput, 0);
}

// Plans that deadlock, end early, or compute a wrong result.
std::vector<Wrong> plans_with_wrong_results() {
  using C = PlanBuilder::Channel;
  const auto receive_first = [](std::uint32_t peer) {
    return [peer](C c) {
      c.step().receive(peer).local(Space::kInput, 0).store(Space::kOutput, 0).completes();
      c.step().local(Space::kInput, 0).send(peer);
    };
  };
  return {
      {"Deadlock", [=] { return pair(receive_first(1), receive_first(0)); }, 0, "rank 0 channel 0 step 0",
       "waits for a message from rank 1"},
      {"MissingContribution",
       [] {
         PlanBuilder plan({.ranks = 3});
         plan.channel(0).step().local(Space::kInput, 0).receive(1).store(Space::kOutput, 0).send(1).send(2).completes();
         send_and_store(plan.channel(1));
         plan.channel(2).step().receive(0).store(Space::kOutput, 0);
         return plan.build();
       },
       0, "rank 0 channel 0 step 0", "is marked as completing chunk 0, which has 2 of 3 contributions"},
      {"LeftOut",
       [] {
         return pair([](C c) { c.step().local(Space::kInput, 0).store(Space::kOutput, 0).send(1); },
                     [](C c) { c.step().receive(0).store(Space::kOutput, 0); });
       },
       0, "rank 0 channel 0 step 0", "stores out[0] with 1 of 2 contributions"},
      {"DoubleCount",
       [] {
         return pair(
             [](C c) { c.step().local(Space::kInput, 0).receive(1).receive(1, 1).store(Space::kOutput, 0).send(1); },
             [](C c) {
               c.step().local(Space::kInput, 0).send(0).send(0, 1);
               c.step().receive(0).store(Space::kOutput, 0);
             },
             {.lanes = 2});
       },
       0, "rank 0 channel 0 step 0", "counts the contribution of rank 1 to chunk 0 twice"},
  };
}

// Plans whose ranks or channels do not match.
std::vector<Wrong> plans_that_do_not_fit() {
  using C = PlanBuilder::Channel;
  return {
      {"OutOfBounds",
       [] {
         return pair(add_at_root, [](C c) {
           c.step().local(Space::kInput, 7).send(0);
           c.step().receive(0).store(Space::kOutput, 0);
         });
       },
       1, "rank 1 channel 0 step 0", "in[7] is out of bounds: there are 1 chunks"},
      {"WrongRoot", [] { return chain_broadcast(1).build(); }, 0, "rank 0 channel 0 step 0",
       "in[0] is out of bounds: rank 0 has no such buffer"},
      {"Unmatched",
       [] {
         return pair(add_at_root, [](C c) {
           c.step().local(Space::kInput, 0).send(0);
           c.step().local(Space::kInput, 0).send(0);
           c.step().receive(0).store(Space::kOutput, 0);
         });
       },
       1, "rank 1 channel 0 step 1", "sends 2 messages per tile to rank 0, lane 0, but channel 0 there receives 1"},
      {"NoPartner", [] { return pair(add_at_root, [](C c) { c.step().local(Space::kInput, 0).send(0); }); }, 0,
       "rank 0 channel 0 step 0", "from rank 0 to rank 1, lane 0, has 1 sending and 0 receiving ports"},
      {"WrongOrder",
       [] {
         return pair(
             [](C c) { c.step().receive(1).local(Space::kInput, 0).store(Space::kOutput, 0).send(1).completes(); },
             send_and_store, {.order = Order::kByRank});
       },
       0, "rank 0 channel 0 step 0", "was not added in rank order"},
      {"NotMarked",
       [] {
         return pair([](C c) { c.step().local(Space::kInput, 0).receive(1).store(Space::kOutput, 0).send(1); },
                     send_and_store);
       },
       0, "rank 0 channel 0 step 0", "completes chunk 0 but is not marked so"},
      {"TwoChannelsOnOneConnection",
       [] {
         PlanBuilder plan({.ranks = 2});
         add_at_root(plan.channel(0));
         send_and_store(plan.channel(1));
         plan.channel(1).step().local(Space::kInput, 0).send(0);
         return plan.build();
       },
       1, "rank 1 channel ", "has 2 sending and 1 receiving ports"},
      {"Race",
       [] {
         PlanBuilder plan({.ranks = 1, .scratch_chunks = 1});
         plan.channel(0).step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
         plan.channel(0).step().local(Space::kOutput, 0).store(Space::kScratch, 0);
         return plan.build();
       },
       0, "rank 0 channel 1 step 0", "race on out[0] of rank 0"},
      {"WaitForNobody",
       [] {
         PlanBuilder plan({.ranks = 1});
         plan.channel(0).step().local(Space::kInput, 0).store(Space::kOutput, 0).completes().after(3, 0);
         return plan.build();
       },
       0, "rank 0 channel 0 step 0", "there is no channel 3 to wait for"},
      {"NoOutput", [] { return pair([](C) {}, [](C) {}); }, 0, "rank 0", "without having written out[0]"},
  };
}

// Errors in the use of PlanBuilder.
std::vector<Wrong> mistakes() {
  using S = PlanBuilder::Step;
  const auto step = [](const std::function<void(S)>& use) {
    return [use] {
      PlanBuilder plan({.ranks = 3, .scratch_chunks = 1});
      plan.channel(2).step().local(Space::kInput, 0).store(Space::kOutput, 0);
      PlanBuilder::Channel channel = plan.channel(2);
      channel.step().local(Space::kInput, 0).store(Space::kScratch, 0);
      use(channel.step());
      return plan.build();
    };
  };
  const auto code = ErrorCode::kInvalidArgument;
  const std::string at = "rank 2 channel 1 step 1: ";
  return {
      {"NoSuchPeer", step([](S s) { s.receive(3); }), 2, at, "there is no rank 3 among 3", code},
      {"HugePeer", step([](S s) { s.send(~0u); }), 2, at, "there is no rank 4294967295", code},
      {"OwnPeer", step([](S s) { s.send(2); }), 2, at, "no connection to itself", code},
      {"NoSuchLane", step([](S s) { s.receive(1, 1); }), 2, at, "there is no lane 1 among 1", code},
      {"NoSpace", step([](S s) { s.local(Space::kNone, 0); }), 2, at, "input, output or scratch", code},
      {"StrangeSpace", step([](S s) { s.local(static_cast<Space>(9), 0); }), 2, at, "input, output or scratch", code},
      {"SecondLocal", step([](S s) { s.local(Space::kInput, 0).local(Space::kInput, 0); }), 2, at, "second local",
       code},
      {"StoreToInput", step([](S s) { s.receive(0).store(Space::kInput, 0); }), 2, at, "output or scratch only", code},
      {"SecondSink", step([](S s) { s.receive(0).store(Space::kOutput, 0).store(Space::kScratch, 0); }), 2, at,
       "second store", code},
      {"LateOperand", step([](S s) { s.receive(0).send(1).receive(1); }), 2, at, "operands must be added before", code},
      {"LateLocal", step([](S s) { s.receive(0).store(Space::kOutput, 0).local(Space::kInput, 0); }), 2, at,
       "operands must be added before", code},
      {"EmptyRun", step([](S s) { s.receive(0).run(0); }), 2, at, "has a run of 0 chunks", code},
      {"WaitChannel", step([](S s) { s.receive(0).after(64, 0); }), 2, at, "there is no channel 64", code},
      {"ManyOperands", step([](S s) {
         for (int i = 0; i < 1025; ++i) s.receive(0);
       }),
       2, at, "more than 1024 operands", code},
      {"ManySends", step([](S s) {
         for (int i = 0; i < 100'000; ++i) s.send(0);
       }),
       2, at, "more than 1024 sends", code},
      {"ClosedStep",
       [] {
         PlanBuilder plan({.ranks = 2});
         PlanBuilder::Channel channel = plan.channel(1);
         S closed = channel.step();
         channel.step();
         closed.receive(0);
         return plan.build();
       },
       1, "rank 1 channel 0 step 0: ", "is closed: step 1 has begun", code},
      {"NoSuchRank",
       [] {
         PlanBuilder plan({.ranks = 2});
         plan.channel(2).step().local(Space::kInput, 0).store(Space::kOutput, 0).send(9);
         return plan.build();
       },
       -1, "", "cannot add a channel to rank 2: the plan has 2 ranks", code},
      {"ManyChannels",
       [] {
         PlanBuilder plan({.ranks = 2});
         for (int i = 0; i < 65; ++i) plan.channel(1).step();
         return plan.build();
       },
       -1, "", "rank 1 has more than 64 channels", code},
  };
}

std::vector<Wrong> wrong_descriptions() {
  const auto description = [](const PlanDescription& d) { return [d] { return PlanBuilder(d).build(); }; };
  const auto code = ErrorCode::kInvalidArgument;
  return {
      {"NoRanks", description({.ranks = 0}), -1, "", "number of ranks 0 is outside 1..1024", code},
      {"ManyRanks", description({.ranks = 1025}), -1, "", "number of ranks 1025", code},
      {"Root", description({.collective = CollectiveKind::kBroadcast, .ranks = 3, .root = 3}), -1, "", "root 3", code},
      {"NeedlessRoot", description({.ranks = 3, .root = 1}), -1, "", "root 1 is outside 0..0", code},
      {"Lanes", description({.lanes = 8}), -1, "", "number of lanes 8 is outside 1..7", code},
      {"Slots", description({.slots = 0}), -1, "", "number of slots 0 is outside 1..64", code},
      {"Chunks", description({.chunks = 0}), -1, "", "number of chunks 0", code},
      {"TooManyChunks", description({.chunks = ~0u}), -1, "", "too large", ErrorCode::kUnsupported},
      {"Collective", description({.collective = static_cast<CollectiveKind>(77)}), -1, "", "not one that has", code},
      {"SendReceive", description({.collective = CollectiveKind::kSendReceive}), -1, "", "not one that has", code},
      {"Order", description({.order = static_cast<Order>(3)}), -1, "", "order 3", code},
      {"Name", description({.name = "a\nb"}), -1, "", "control or direction characters", code},
      {"NameNotUtf8", description({.name = "\xc3("}), -1, "", "UTF-8", code},
      {"LongName", description({.name = std::string(129, 'a')}), -1, "", "at most 128", code},
      {"NoChannel", description({.ranks = 2}), 0, "rank 0 has no channel", "", ErrorCode::kInvalidPlan},
  };
}

class WrongPlans : public testing::TestWithParam<Wrong> {};

TEST_P(WrongPlans, AreRefusedWithTheirPlace) {
  const Wrong& wrong = GetParam();
  const Result<UserPlan> plan = wrong.build();
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, wrong.code);
  EXPECT_EQ(plan.error().rank, wrong.rank);
  EXPECT_THAT(plan.error().message, AllOf(HasSubstr(wrong.place), HasSubstr(wrong.what)));
}

const auto kNameOf = [](const testing::TestParamInfo<Wrong>& wrong) { return wrong.param.name; };
INSTANTIATE_TEST_SUITE_P(Results, WrongPlans, testing::ValuesIn(plans_with_wrong_results()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Fit, WrongPlans, testing::ValuesIn(plans_that_do_not_fit()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Descriptions, WrongPlans, testing::ValuesIn(wrong_descriptions()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Mistakes, WrongPlans, testing::ValuesIn(mistakes()), kNameOf);

// PlanShape::longest_run is computed from the final steps. A longer run that was replaced does not count.
TEST(PlanBuilder, ForgetsARunThatWasChanged) {
  const auto built = [](std::uint32_t first_run) {
    PlanBuilder plan({.ranks = 1, .chunks = 2});
    PlanBuilder::Channel channel = plan.channel(0);
    channel.step().run(first_run).run(1).local(Space::kInput, 0).store(Space::kOutput, 0).completes();
    channel.step().local(Space::kInput, 1).store(Space::kOutput, 1).completes();
    return plan.build();
  };
  ASSERT_TRUE(built(2)) << to_string(built(2).error());
  EXPECT_EQ(*built(2), *built(1));
  EXPECT_EQ(*UserPlan::parse_json(built(2)->to_json()), *built(2));
}

TEST(PlanBuilder, OrdersChannelsByWaits) {
  PlanBuilder plan({.ranks = 1, .scratch_chunks = 1});
  plan.channel(0).step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  PlanBuilder::Channel second = plan.channel(0);
  EXPECT_EQ(second.index(), 1u);
  PlanBuilder moved = std::move(plan);
  second.step().local(Space::kOutput, 0).store(Space::kScratch, 0).after(0, 0);
  EXPECT_TRUE(moved.build());
  second.step().local(Space::kScratch, 0).store(Space::kOutput, 0);
  EXPECT_FALSE(moved.build()) << "a builder that was moved from must refuse to build";
}

// The remedy that the error names is a value that TUTTI_SLOT_BYTES accepts, or shorter runs if no value is enough.
TEST(UserPlanRuns, ThatNeedALongerSlotAreRefusedWithARemedy) {
  const auto check = [](std::uint32_t longest_run) {
    PlanShape shape;
    shape.longest_run = longest_run;
    return detail::PlanTable::check_run(shape, kSlotBytes, 1);
  };
  EXPECT_TRUE(check(kSlotBytes / 64).ok());
  const Status longer = check(kSlotBytes / 64 + 1);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(longer.error().message, HasSubstr("; set TUTTI_SLOT_BYTES to 135168 on all ranks, or use shorter runs"));
  EXPECT_THAT(check(kMostSlotBytes / 64).error().message, HasSubstr("set TUTTI_SLOT_BYTES to 16777216 on"));
  EXPECT_THAT(check(kMostSlotBytes / 64 + 1).error().message,
              HasSubstr("; use shorter runs, because a slot has at most 16777216 bytes"));
}

}  // namespace
}  // namespace tutti
