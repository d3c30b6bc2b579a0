// Tests plans as JSON text. A written plan must be read back equal, and errors must state the location of the fault.
#include "plan/formats/json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "plan/canonical.h"
#include "plan/limits.h"
#include "plan/verify/verify.h"
#include "plans.h"
#include "tutti/plan.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(PlanJson, IsReadBackAsTheSamePlan) {
  std::size_t plans = 0;
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (std::uint32_t ranks = 1; ranks <= 9; ++ranks) {
        const Result<Generator> generator = find_generator({.kind = kind, .ranks = ranks}, algorithm);
        if (!generator) continue;  // not every algorithm supports every number of ranks
        const PlanFile file{.plan = build_plan(*generator), .name = "a \"plan\" \\ \xc3\xa4", .comment = "two words"};
        const Result<PlanFile> read = parse_plan(to_json(file));
        ASSERT_TRUE(read) << to_string(read.error());
        EXPECT_EQ(*read, file) << to_string(kind) << ' ' << to_string(algorithm) << ' ' << ranks;
        ++plans;
      }
    }
  }
  EXPECT_GE(plans, 9u * 6);
}

// A plan with the fields that no built-in plan uses.
TEST(PlanJson, KeepsEveryField) {
  ChannelBuilder unused;
  unused.receive_from(1, 3);
  unused.send_to(1, 2);
  unused.step().local(Space::kInput, 1).store(Space::kScratch, 4);
  unused.after(1, 0);
  unused.after(1, 2);
  ChannelBuilder waits;
  auto step = waits.step();
  step.receive(waits.receive_from(1, 2)).local(Space::kScratch, 3).receive(waits.receive_from(1, 1));
  step.store(Space::kOutput, 2).completes().send(waits.send_to(1, 6));
  waits.step();
  PlanFile file{.plan = one_rank({std::move(unused).build(), std::move(waits).build()})};
  file.plan.ranks.push_back({.channels = {Channel{}}});
  file.plan.shape = {.collective = {.kind = CollectiveKind::kReduce, .ranks = 2, .root = 1, .nodes = {0, 1}},
                     .algorithm = Algorithm::kUser,
                     .chunks = 7,
                     .scratch_chunks = 5,
                     .slots = 6,
                     .lanes = 7,
                     .windows_in_place = false,
                     .order = Order::kByRank};
  const Result<PlanFile> read = parse_plan(to_json(file));
  ASSERT_TRUE(read) << to_string(read.error());
  EXPECT_EQ(*read, file) << to_json(file);
}

// Returns the text of a plan of two ranks. `step` is inserted in the only step of rank 1, and `top` at the top
// level.
std::string text_with(const std::string& step, const std::string& top = "") {
  return R"({"tutti_plan": 1, "collective": "all_reduce", )" + top +
         R"("ranks": [{"channels": [{"steps": []}]}, {"channels": [{"steps": [{)" + step + "}]}]}]}";
}

struct Fault {
  std::string name;
  std::string text;
  std::string message;
  ErrorCode code = ErrorCode::kInvalidPlan;
  friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }
};

std::vector<Fault> faults() {
  const std::string step = "ranks[1].channels[0].steps[0]";
  const std::string ring = to_json({.plan = plan_of(Algorithm::kRing, 4)});
  return {
      {"Empty", "", "line 1, column 1: this is not JSON: the text ends too early"},
      {"Garbage", "tutti", "line 1, column 2: this is not JSON: at \"tu\""},
      {"Msccl", "<algo name=\"a\">",
       "this is an algorithm of MSCCL in XML; give a plan in the format of docs/plan-json.md"},
      {"MscclPlusPlus", R"({"name": "a", "collective": "allreduce", "gpus": []})", "an execution plan of MSCCL++"},
      {"Topology", "<system version=\"1\"/>", "a topology file of NCCL"},
      {"Hwloc", "<?xml?>\n<topology>", "a topology of hwloc"},
      {"MarkOfUtf8", "\xef\xbb\xbf<topology/>", "a topology of hwloc"},
      {"OtherName", "<systems/>", "this is XML"},
      {"Graphs", "<graphs version=\"1\"/>", "a file of rings and trees of NCCL"},
      {"Truncated", ring.substr(0, ring.size() / 2), "this is not JSON: the text ends too early"},
      {"Trailing", ring + "}", "this is not JSON"},
      {"NotUtf8", text_with("", "\"name\": \"\xff\", "), ", name: this is not JSON: at "},
      {"ControlCharacter", text_with("", R"("name": "a\u0000", )"), "name: should be at most 128 bytes"},
      {"Array", "[]", "the plan should be an object, not an array"},
      {"Null", text_with("\"local\": null"), step + ".local: should be an object, not null"},
      {"Version", R"({"tutti_plan": 2})", "tutti_plan: this is version 2 of the format; known is 1",
       ErrorCode::kUnsupported},
      {"NoVersion", R"({"collective": "all_reduce", "ranks": []})", "the plan has no \"tutti_plan\""},
      {"NoCollective", R"({"tutti_plan": 1, "ranks": []})", "the plan has no \"collective\""},
      {"Collective", R"({"tutti_plan": 1, "collective": "send_receive"})",
       "collective: should be one of \"all_reduce\""},
      {"Algorithm", text_with("", R"("algorithm": "auto", )"), "algorithm: is not an algorithm that a plan may name"},
      {"Order", text_with("", R"("order": "random", )"), "order: should be \"any\", \"by_rank\" or \"cyclic\""},
      {"UnknownField", text_with(R"("recieve": [])"),
       step + ": has an unknown field \"recieve\"; did you mean \"receive\"?"},
      {"TopField", R"({"tutti_plan": 1, "ordre": "any"})",
       "the plan has an unknown field \"ordre\"; did you mean \"order\"?"},
      {"FirstOfTwo", text_with("", R"("order": 1.5, "ordre": 1, )"), "order: should be"},
      {"TopNull", "null", "the plan should be an object, not null"},
      {"FarField", text_with(R"("opcode\n": 3)"),
       step + ": has an unknown field \"opcode?\"; known are receive, local"},
      {"Twice", text_with(R"("completes": true, "completes": false)"), step + ".completes: occurs twice"},
      {"Fraction", text_with(R"("local": {"space": "in", "chunk": 1.5})"),
       step + ".local.chunk: should be a whole number, not a fraction"},
      {"Negative", text_with(R"("receive": [{"peer": -1}])"), step + ".receive[0].peer: -1 is outside 0..1023"},
      {"Huge", text_with(R"("receive": [{"peer": 99999999999999999999}])"),
       step + ".receive[0].peer: should be a whole"},
      {"Slots", text_with("", R"("slots": 65, )"), "slots: 65 is outside 1..64"},
      {"Lanes", text_with("", R"("lanes": 8, )"), "lanes: 8 is outside 1..7"},
      {"NoPeer", text_with(R"("send": [{"peer": 0}, {"lane": 0}])"), step + ".send[1]: has no \"peer\""},
      {"Peer", text_with(R"("receive": [{"peer": 0}, {"peer": 2}])"),
       step + ".receive[1].peer: there is no rank 2 among 2"},
      {"OwnPeer", text_with(R"("send": [{"peer": 1}])"), step + ".send[0].peer: a rank has no connection to itself"},
      {"Lane", text_with(R"("send": [{"peer": 0, "lane": 1}])"), step + ".send[0].lane: there is no lane 1"},
      {"Space", text_with(R"("local": {"space": "input", "chunk": 0})"), step + ".local.space: should be \"in\""},
      {"StoreToInput", text_with(R"("store": {"space": "in", "chunk": 0})"), step + ".store.space: input is only read"},
      {"Position", text_with(R"("local": {"space": "in", "chunk": 0, "position": 1})"),
       step + ": local.position is 1, but the step receives 0"},
      {"WaitChannel", text_with(R"("after": [{"channel": 64, "step": 0}])"), step + ".after[0].channel: 64 is outside"},
      {"Direction", R"({"ranks": [{"channels": [{"ports": [{"peer": 1, "direction": "up"}]}]}]})",
       "ranks[0].channels[0].ports[0].direction: should be \"send\" or \"receive\""},
      {"PortsLate", R"({"ranks": [{"channels": [{"steps": [{}], "ports": [{"peer": 1, "direction": "send"}]}]}]})",
       "ranks[0].channels[0].ports[0]: the ports must be before \"steps\""},
      {"PortTwice",
       R"({"ranks": [{"channels": [{"ports":[{"peer":1, "direction":"send"}, {"peer":1, "direction":"send"}]}]}]})",
       "ranks[0].channels[0].ports[1]: is the same as port 0"},
      {"Deep", text_with("\"local\": " + std::string(100'000, '[')),
       step + ".local: should be an object, not an array"},
  };
}

class PlanJsonFaults : public testing::TestWithParam<Fault> {};

TEST_P(PlanJsonFaults, AreRefusedWithTheirPlace) {
  const Result<PlanFile> read = parse_plan(GetParam().text);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, GetParam().code);
  EXPECT_THAT(read.error().message, HasSubstr(GetParam().message));
  if (GetParam().message.starts_with("ranks[1]")) {
    EXPECT_EQ(read.error().rank, 1);
    EXPECT_THAT(read.error().message, StartsWith(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, PlanJsonFaults, testing::ValuesIn(faults()),
                         [](const testing::TestParamInfo<Fault>& fault) { return fault.param.name; });

TEST(PlanJson, RefusesWhatIsTooLarge) {
  const auto refusal = [](const std::string& text) {
    const Result<PlanFile> read = parse_plan(text);
    EXPECT_FALSE(read);
    return read ? Error{} : read.error();
  };
  const Error text = refusal(std::string(PlanLimits::kJsonBytes + 1, ' '));
  EXPECT_EQ(text.code, ErrorCode::kUnsupported);
  EXPECT_THAT(text.message, HasSubstr("67108865 bytes of text, at most 67108864"));

  std::string ranks = R"({"tutti_plan": 1, "ranks": [)";
  for (std::uint32_t i = 0; i <= PlanLimits::kRanks; ++i) ranks += R"({"channels":[]},)";
  EXPECT_EQ(refusal(ranks).code, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal(ranks).message, HasSubstr("ranks[1024]: there are more than 1024"));

  std::string steps = R"({"tutti_plan": 1, "ranks": [)";
  for (int rank = 0; rank < 3; ++rank) {
    steps += R"({"channels": [{"steps": [{})";
    for (std::uint32_t i = 0; i < PlanLimits::kSteps / 2; ++i) steps += ",{}";
    steps += "]}]},";
  }
  EXPECT_THAT(refusal(steps).message, HasSubstr("more than 2097152 steps"));
}

TEST(PlanLimitsOfAProof, KeepMemoryBounded) {
  const auto code_of = [](const Plan& plan) {
    const Status status = check_limits(plan);
    return status ? "fits" : status.error().message;
  };
  EXPECT_EQ(code_of(plan_of(Algorithm::kRing, 1024)), "fits");
  EXPECT_EQ(code_of(plan_of(Algorithm::kDoubleTree, 1024)), "fits");
  EXPECT_EQ(code_of(plan_of(Algorithm::kTwoShot, 256)), "fits");
  EXPECT_THAT(code_of(plan_of(Algorithm::kTwoShot, 1024)), HasSubstr("MiB of vector clocks"));
  Plan plan = plan_of(Algorithm::kRing, 4);
  plan.shape.chunks = 0xffffffff;
  EXPECT_THAT(code_of(plan), HasSubstr("4294967295 chunks of a block, at most 4194304"));
  plan.shape.chunks = 1u << 20;
  EXPECT_THAT(code_of(plan), HasSubstr("8388608 chunks of all ranks"));
  plan = plan_of(Algorithm::kRing, 4);
  plan.shape.slots = 65;
  EXPECT_THAT(code_of(plan), HasSubstr("65 slots, at most 64"));
  plan = plan_of(Algorithm::kRing, 4);
  plan.ranks[2].channels.resize(65);
  EXPECT_THAT(code_of(plan), HasSubstr("65 channels of a rank, at most 64"));
}

TEST(Digest, ForgetsHowPortsAreNumberedAndNothingElse) {
  const Plan plan = canonical(plan_of(Algorithm::kRing, 3));
  EXPECT_EQ(canonical(plan), plan);
  EXPECT_TRUE(verify_all(plan));
  Plan renumbered = plan_of(Algorithm::kRing, 3);
  for (RankPlan& rank : renumbered.ranks) {
    std::swap(rank.channels[0].ports[0], rank.channels[0].ports[1]);
    for (std::uint16_t& port : rank.channels[0].lists) port ^= 1u;
  }
  ASSERT_TRUE(verify_all(renumbered));
  EXPECT_EQ(digest(canonical(renumbered)), digest(plan));
  const std::uint32_t before = digest(plan);
  const auto changes = [&](const auto& change) {
    Plan other = plan;
    change(other);
    EXPECT_NE(other, plan);
    EXPECT_NE(digest(other), before);
  };
  changes([](Plan& p) { p.shape.slots = 3; });
  changes([](Plan& p) { p.shape.order = Order::kAny; });
  changes([](Plan& p) { p.shape.windows_in_place = false; });
  changes([](Plan& p) { p.shape.collective.nodes = {0, 0, 0}; });
  changes([](Plan& p) { step_of(p, 2, 1).source.chunk ^= 1u; });
  changes([](Plan& p) { step_of(p, 2, 1).completes ^= 1u; });
  changes([](Plan& p) { step_of(p, 2, 1).source_position ^= 1u; });
  changes([](Plan& p) { p.ranks[1].channels[0].ports[0].lane = 1; });
  changes([](Plan& p) { p.ranks[1].channels[0].lists[0] ^= 1u; });
  changes([](Plan& p) { p.ranks[1].channels.emplace_back(); });
  changes([](Plan& p) { p.ranks[1].channels[0].after.push_back({.step = 1}); });
}

}  // namespace
}  // namespace tutti
