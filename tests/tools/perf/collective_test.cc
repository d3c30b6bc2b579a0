// Tests of the inputs and outputs of each collective's calls. They are compared with the definitions in
// docs/collectives.md, which this test carries out block by block on elements that carry their origin.
#include "tools/perf/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace tutti::tool {
namespace {

TEST(PerfCollective, NamesAreReadBack) {
  std::size_t variants = 0;
  for (const PerfCollective& each : perf_collectives()) {
    EXPECT_EQ(parse_perf_collective(name_of(each)), each) << name_of(each);
    variants += each.variable ? 1 : 0;
  }
  EXPECT_EQ(perf_collectives().size(), all_collectives().size() + 3 + variants);
  EXPECT_GE(variants, 5u);
  for (const char* name : {"", "all_reduce_v", "barrier_v", "send_recv_v", "_v", "allreduce"})
    EXPECT_EQ(parse_perf_collective(name), std::nullopt) << name;
}

// The values are from nccl-tests: doc/PERFORMANCE.md, and the *GetBw functions of gather, scatter and sendrecv.
TEST(PerfCollective, BusBandwidthIsThatOfNcclTests) {
  const std::map<std::string, std::pair<double, double>> table = {
      // {for 4 ranks, for 5 ranks}
      {"all_reduce", {1.5, 1.6}},  {"broadcast", {1, 1}},       {"reduce", {1, 1}},
      {"all_gather", {0.75, 0.8}}, {"gather", {0.75, 0.8}},     {"reduce_scatter", {0.75, 0.8}},
      {"scatter", {0.75, 0.8}},    {"all_to_all", {0.75, 0.8}}, {"barrier", {0, 0}},
      {"send_recv", {1, 1}},
  };
  for (const PerfCollective& each : perf_collectives()) {
    const auto known = table.find(name_of({.kind = each.kind, .variable = false}));
    if (known == table.end()) continue;  // nccl-tests do not have the collective
    const auto& [four, five] = known->second;
    EXPECT_DOUBLE_EQ(busbw_factor(each, 4), four) << name_of(each);
    EXPECT_DOUBLE_EQ(busbw_factor(each, 5), five) << name_of(each);
  }
}

TEST(PerfCollective, SizeIsThatOfTheLargerBuffer) {
  for (const PerfCollective& each : perf_collectives()) {
    for (std::int32_t ranks : {1, 2, 3, 7}) {
      const std::uint64_t elements = message_elements(each, ranks, 4096, 4);
      EXPECT_LE(elements, 1024u);
      EXPECT_GT(elements + static_cast<std::uint64_t>(ranks), has_buffers(each) ? 1024u : 0u) << name_of(each);
      std::uint64_t longest = 0;
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const RankCall call = make_rank_call(each, rank, ranks, ranks - 1, elements);
        longest = std::max({longest, call.input_elements, call.output_elements});
      }
      if ((each.ping_pong || each.one_way) && ranks == 1) continue;  // a single rank has no partner
      EXPECT_EQ(longest, elements) << name_of(each) << ", " << ranks << " ranks";
    }
  }
}

TEST(UnequalCounts, FollowTheRuleAndLoseNothing) {
  for (std::int32_t parts : {1, 2, 3, 16, 1024}) {
    for (std::uint64_t total : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1} << 40}) {
      const std::vector<std::size_t> counts = unequal_counts(total, parts);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}), total);
      for (std::int32_t r = 0; r < parts; ++r) {
        const double mean = static_cast<double>(total) / parts;
        EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(r)]), mean * 2 * (r + 1) / (parts + 1), 1.001);
      }
    }
  }
}

// An element: `second` is its index in the input of rank `first`. If `first` is -1, it is the reduction over all
// ranks.
using Element = std::pair<std::int32_t, std::uint64_t>;

// An independent definition of each collective. output() returns the expected output of `rank`, calculated from the
// lengths in the calls of all ranks.
class Definition {
 public:
  Definition(const PerfCollective& collective, std::int32_t ranks, std::int32_t root, std::uint64_t elements)
      : collective_(collective), ranks_(ranks), root_(root) {
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      calls_.push_back(make_rank_call(collective, rank, ranks, root, elements));
  }
  // Collectives that were added later are tested by the conformance suite.
  static bool knows(CollectiveKind kind) { return kind <= CollectiveKind::kSendReceive; }

  const RankCall& call(std::int32_t rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  std::vector<Element> output(std::int32_t rank) const {
    std::vector<Element> out;
    switch (collective_.kind) {
      case CollectiveKind::kAllReduce: append(out, -1, 0, call(rank).count); break;
      case CollectiveKind::kReduce:
        if (rank == root_) append(out, -1, 0, call(rank).count);
        break;
      case CollectiveKind::kBroadcast: append(out, root_, 0, call(rank).count); break;
      case CollectiveKind::kSendReceive: {
        const std::int32_t next = rank % 2 == 0 ? rank + 1 : rank - 1;
        const std::int32_t before = rank == 0 ? ranks_ - 1 : rank - 1;
        const bool in_pairs = collective_.ping_pong || collective_.one_way;
        if (in_pairs && next == ranks_) break;
        if (collective_.one_way && rank % 2 == 0) break;  // rank is the sender
        append(out, in_pairs ? next : before, 0, call(rank).count);
        break;
      }
      case CollectiveKind::kReduceScatter: append(out, -1, sent_before(rank, rank), sent(rank, rank)); break;
      case CollectiveKind::kScatter: append(out, root_, sent_before(root_, rank), sent(root_, rank)); break;
      case CollectiveKind::kGather:
        for (std::int32_t from = 0; from < ranks_ && rank == root_; ++from) append(out, from, 0, received(rank, from));
        break;
      case CollectiveKind::kAllGather:
        for (std::int32_t from = 0; from < ranks_; ++from) append(out, from, 0, received(rank, from));
        break;
      case CollectiveKind::kAllToAll:
        for (std::int32_t from = 0; from < ranks_; ++from) append(out, from, sent_before(from, rank), sent(from, rank));
        break;
      default: break;
    }
    return out;
  }
  // The number of elements from `rank` to `peer`, as passed by the sender in sent(), and by the receiver in
  // received().
  std::uint64_t sent(std::int32_t rank, std::int32_t peer) const { return length(call(rank).input_counts, rank, peer); }
  std::uint64_t received(std::int32_t rank, std::int32_t peer) const {
    return length(call(rank).output_counts, rank, peer);
  }

 private:
  std::uint64_t length(const std::vector<std::size_t>& counts, std::int32_t rank, std::int32_t peer) const {
    return collective_.variable ? counts.at(static_cast<std::size_t>(peer)) : call(rank).count;
  }
  std::uint64_t sent_before(std::int32_t rank, std::int32_t peer) const {
    std::uint64_t sum = 0;
    for (std::int32_t before = 0; before < peer; ++before) sum += sent(rank, before);
    return sum;
  }
  static void append(std::vector<Element>& out, std::int32_t from, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) out.emplace_back(from, first + i);
  }

  PerfCollective collective_;
  std::int32_t ranks_;
  std::int32_t root_;
  std::vector<RankCall> calls_;
};

std::vector<Element> expected_output(const RankCall& call) {
  std::vector<Element> out(call.output_elements, Element(-2, 0));
  for (const ExpectedBlock& piece : call.expected) {
    for (std::uint64_t i = 0; i < piece.count; ++i) {
      EXPECT_EQ(out.at(piece.output_at + i).first, -2) << "an element must be checked only once";
      out[piece.output_at + i] = Element(piece.from, piece.input_at + i);
    }
  }
  return out;
}

TEST(RankCall, ExpectsWhatTheDefinitionSays) {
  for (const PerfCollective& each : perf_collectives()) {
    if (!Definition::knows(each.kind)) continue;
    for (std::int32_t ranks : {1, 2, 3, 5}) {
      for (std::int32_t root = 0; root < ranks; ++root) {
        const Definition definition(each, ranks, root, message_elements(each, ranks, 60, 1));
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          const RankCall& call = definition.call(rank);
          SCOPED_TRACE(name_of(each) + ", rank " + std::to_string(rank) + " of " + std::to_string(ranks));
          EXPECT_EQ(expected_output(call), definition.output(rank));
          for (const ExpectedBlock& piece : call.expected) {
            const RankCall& source = definition.call(piece.from == ExpectedBlock::kAllRanks ? rank : piece.from);
            EXPECT_LE(piece.input_at + piece.count, source.input_elements);
          }
          if (!has_in_place(each) || call.input_elements == 0 || call.output_elements == 0) continue;
          const bool inside = call.in_place_input_at + call.input_elements <= call.output_elements ||
                              call.in_place_output_at + call.output_elements <= call.input_elements;
          EXPECT_TRUE(inside) << "in place, one buffer must be a part of the other";
        }
      }
    }
  }
}

TEST(RankCall, BothEndsOfEachPairAgree) {
  constexpr std::int32_t kRanks = 5;
  const PerfCollective all_to_all{.kind = CollectiveKind::kAllToAll, .variable = true};
  const Definition exchange(all_to_all, kRanks, 0, 1000);
  for (std::int32_t from = 0; from < kRanks; ++from) {
    for (std::int32_t to = 0; to < kRanks; ++to) EXPECT_EQ(exchange.sent(from, to), exchange.received(to, from));
  }
  EXPECT_NE(exchange.sent(0, 1), exchange.sent(0, 2));
  const Definition gather({.kind = CollectiveKind::kGather, .variable = true}, kRanks, 2, 1000);
  const Definition scatter({.kind = CollectiveKind::kScatter, .variable = true}, kRanks, 2, 1000);
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(gather.received(2, rank), gather.call(rank).count);
    EXPECT_EQ(scatter.sent(2, rank), scatter.call(rank).count);
  }
}

}  // namespace
}  // namespace tutti::tool
