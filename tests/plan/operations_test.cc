// Tests plans as operations of one call. Every send must have a receive of the same length, there must be no cyclic
// waits, and the bytes must be those of the algorithm. Also tests the file formats Goal and Chakra.
#include "plan/formats/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <tuple>

#include "algorithms/algorithms.h"
#include "plan/formats/chakra.h"
#include "plan/formats/goal.h"

namespace tutti {
namespace {

using Ranks = std::vector<std::vector<Operation>>;

struct Given {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t ranks = 1;
  std::vector<std::uint32_t> nodes{};
  bool runs = false;  // the form of the plan in which messages carry runs of chunks (Messages::kRuns)
};

Plan plan_of(const Given& given) {
  const auto generator =
      find_generator({.kind = given.kind, .ranks = given.ranks, .nodes = given.nodes}, given.algorithm,
                     given.runs ? tutti::Messages::kRuns : tutti::Messages::kOneChunk);
  EXPECT_TRUE(generator.ok());
  return build_plan(*generator);
}

Ranks operations_of(const Plan& plan, const CallSize& size) {
  const auto call = CallOperations::create(plan, size);
  EXPECT_TRUE(call.ok()) << call.error().message;
  Ranks ranks;
  std::uint64_t count = 0;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    ranks.push_back(call->of_rank(rank));
    count += ranks.back().size();
  }
  EXPECT_EQ(count, call->count());
  return ranks;
}

// Maps (from, to, tag) to bytes. Every tag occurs once.
using Messages = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint64_t>;

Messages messages_of(const Ranks& ranks, OperationKind kind) {
  Messages messages;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Operation& each : ranks[rank]) {
      if (each.kind != kind) continue;
      const bool sends = kind == OperationKind::kSend;
      const auto name = std::tuple(sends ? rank : each.peer, sends ? each.peer : rank, each.tag);
      EXPECT_TRUE(messages.emplace(name, each.bytes).second) << "a tag is used twice";
    }
  }
  return messages;
}

// Executes the operations in any order that their dependencies allow. Returns whether all could be executed.
bool runs_to_its_end(const Ranks& ranks) {
  std::vector<std::vector<bool>> done;
  for (const auto& rank : ranks) done.emplace_back(rank.size(), false);
  Messages sent;
  for (bool ran = true; ran;) {
    ran = false;
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
        const Operation& each = ranks[rank][i];
        if (done[rank][i]) continue;
        if (!std::all_of(each.after.begin(), each.after.end(),
                         [&](std::uint32_t before) { return done[rank][before]; })) {
          continue;
        }
        if (each.kind == OperationKind::kReceive && !sent.contains({each.peer, rank, each.tag})) continue;
        if (each.kind == OperationKind::kSend) sent[{rank, each.peer, each.tag}] = each.bytes;
        done[rank][i] = ran = true;
      }
    }
  }
  return std::all_of(done.begin(), done.end(),
                     [](const auto& rank) { return std::find(rank.begin(), rank.end(), false) == rank.end(); });
}

std::uint64_t total(const Messages& messages) {
  std::uint64_t bytes = 0;
  for (const auto& [name, each] : messages) bytes += each;
  return bytes;
}

TEST(Operations, EverySendHasItsReceiveAndNothingWaitsInACircle) {
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const std::uint32_t ranks : {1u, 2u, 5u, 8u}) {
        const Plan plan =
            plan_of({kind, algorithm, ranks,
                     ranks == 8 ? std::vector<std::uint32_t>{0, 0, 0, 1, 1, 1, 2, 2} : std::vector<std::uint32_t>{}});
        const bool empty = kind == CollectiveKind::kBarrier;
        const Ranks operations = operations_of(plan, {.count = empty ? 0u : 1000u, .max_message_bytes = 256});
        const Messages sends = messages_of(operations, OperationKind::kSend);
        EXPECT_EQ(sends, messages_of(operations, OperationKind::kReceive));
        EXPECT_TRUE(runs_to_its_end(operations)) << to_string(kind) << " by " << to_string(algorithm);
        if (ranks > 1) {
          EXPECT_EQ(total(sends) == 0, empty) << to_string(kind) << " by " << to_string(algorithm);
        }
      }
    }
  }
}

// The bytes must be those in docs/algorithms.md, for any tiles and for short last chunks.
TEST(Operations, CarryTheAlgorithmsBytesExactly) {
  for (const std::uint64_t count : {1u, 7u, 1000u, 99'991u}) {
    const std::uint64_t bytes = 4 * count;
    const CallSize size{.count = count, .max_message_bytes = 4096};
    const auto sent = [&](const Given& given) {
      return total(messages_of(operations_of(plan_of(given), size), OperationKind::kSend));
    };
    EXPECT_EQ(sent({.algorithm = Algorithm::kRing, .ranks = 5}), 2 * 4 * bytes);
    EXPECT_EQ(sent({.algorithm = Algorithm::kDoubleTree, .ranks = 6}), 2 * 5 * bytes);
    EXPECT_EQ(sent({.algorithm = Algorithm::kCirculant, .ranks = 7}), 2 * 6 * bytes) << "the sums are in scratch";
    EXPECT_EQ(sent({.algorithm = Algorithm::kCirculant, .ranks = 7, .runs = true}), 2 * 6 * bytes);
    EXPECT_EQ(sent({.algorithm = Algorithm::kHalvingDoubling, .ranks = 8, .runs = true}), 2 * 7 * bytes);
    EXPECT_EQ(sent({CollectiveKind::kGather, Algorithm::kBinomial, 8, {}, true}), 12 * bytes)
        << "the block of rank v is in one message for each bit of v that is 1, and the numbers 0 .. 7 have 12 such "
           "bits";
    EXPECT_EQ(sent({.algorithm = Algorithm::kRecursiveDoubling, .ranks = 8}), 8 * 3 * bytes);
    EXPECT_EQ(sent({.algorithm = Algorithm::kHierarchical, .ranks = 6, .nodes = {0, 0, 1, 1, 2, 2}}),
              2 * 3 * bytes + 2 * 2 * bytes)
        << "inside 3 machines, and across over 2 rails";
    EXPECT_EQ(sent({CollectiveKind::kAllGather, Algorithm::kRing, 5}), 5 * 4 * bytes);
    EXPECT_EQ(sent({CollectiveKind::kBroadcast, Algorithm::kBinomial, 9}), 8 * bytes);
  }
}

TEST(Operations, OfAPlanThatCannotRunAreRefused) {
  Plan plan = plan_of({.ranks = 3});
  // rank 1 receives one message less than is sent to it; this is harmless here
  plan.ranks[1].channels[0].steps.pop_back();
  EXPECT_TRUE(CallOperations::create(plan, {.count = 100}).ok());
  plan.ranks[1].channels[0].steps.clear();
  const auto refused = CallOperations::create(plan, {.count = 100});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidPlan);
}

TEST(Operations, TooManyAreRefusedBeforeTheyAreMade) {
  const auto refused = CallOperations::create(plan_of({.ranks = 64}), {.count = 1ull << 38, .max_message_bytes = 4096});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("choose fewer ranks or bytes"));
}

TEST(Goal, SaysWhatTheOperationsAre) {
  const Ranks ranks = operations_of(plan_of({.ranks = 2}), {.count = 64});
  EXPECT_EQ(goal_header(2), "num_ranks 2\n");
  EXPECT_EQ(to_goal(1, ranks[1]),
            "\nrank 1 {\n"
            "l0: calc 0\nl1: send 128b to 0 tag 0\n"
            "l2: recv 128b from 0 tag 0\nl3: calc 0\nl4: send 128b to 0 tag 1\n"
            "l5: recv 128b from 0 tag 1\nl6: calc 0\n"
            "l1 requires l0\nl3 requires l0\nl3 requires l2\nl4 requires l3\nl6 requires l3\nl6 requires l5\n}\n");
}

// A minimal reader of protobuf's wire format, as far as this test needs it.
struct Reader {
  std::string_view rest;

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(rest.at(0));
      rest.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view bytes() {
    const std::uint64_t length = varint();
    const std::string_view found = rest.substr(0, length);
    EXPECT_EQ(found.size(), length);
    rest.remove_prefix(found.size());
    return found;
  }
};

struct ReadNode {
  std::uint64_t id = 0, type = 0;
  std::vector<std::uint32_t> deps;
  std::map<std::string, std::uint64_t> attributes;
};

ReadNode read_node(std::string_view text) {
  ReadNode node;
  for (Reader reader{text}; !reader.rest.empty();) {
    const std::uint64_t key = reader.varint();
    if (key == (1 << 3 | 0)) {
      node.id = reader.varint();
    } else if (key == (3 << 3 | 0)) {
      node.type = reader.varint();
    } else if (key == (5 << 3 | 2)) {
      for (Reader deps{reader.bytes()}; !deps.rest.empty();)
        node.deps.push_back(static_cast<std::uint32_t>(deps.varint()));
    } else if (key == (10 << 3 | 2)) {
      Reader attribute{reader.bytes()};
      EXPECT_EQ(attribute.varint(), 1u << 3 | 2);
      const std::string name(attribute.bytes());
      attribute.varint();
      node.attributes[name] = attribute.varint();
    } else {
      EXPECT_EQ(key, 2u << 3 | 2) << "the name, or an unknown field";
      reader.bytes();
    }
  }
  return node;
}

TEST(Chakra, HoldsWhatTheOperationsAre) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleTree, Algorithm::kTwoShot}) {
    const Ranks ranks =
        operations_of(plan_of({.algorithm = algorithm, .ranks = 4}), {.count = 100'000, .max_message_bytes = 8192});
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      const std::string file = to_chakra(rank, ranks[rank]);
      Reader reader{file};
      EXPECT_EQ(reader.bytes(),
                "\n\x05"
                "0.0.4");
      for (std::uint64_t id = 0; id < ranks[rank].size(); ++id) {
        const Operation& each = ranks[rank][id];
        ReadNode node = read_node(reader.bytes());
        EXPECT_EQ(node.id, id);
        EXPECT_EQ(node.deps, each.after);
        if (each.kind == OperationKind::kStep) {
          EXPECT_EQ(node.type, 4u);
          EXPECT_EQ(node.attributes["num_ops"], each.additions);
          continue;
        }
        const bool sends = each.kind == OperationKind::kSend;
        EXPECT_EQ(node.type, sends ? 5u : 6u);
        EXPECT_EQ(node.attributes["comm_size"], each.bytes);
        EXPECT_EQ(node.attributes["comm_src"], sends ? rank : each.peer);
        EXPECT_EQ(node.attributes["comm_dst"], sends ? each.peer : rank);
        EXPECT_EQ(node.attributes["comm_tag"], each.tag);
      }
      EXPECT_TRUE(reader.rest.empty());
    }
  }
}

}  // namespace
}  // namespace tutti
