#include "tools/perf/collective.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "base/collective_table.h"

namespace tutti::tool {
namespace {

using Kind = CollectiveKind;

constexpr std::string_view kSendReceiveName = "send_recv";  // as in nccl-tests
constexpr std::string_view kPingPongName = "ping_pong";
constexpr std::string_view kOneWayName = "one_way";

// The start of each block in a row of blocks, and the end of the last one, in elements.
struct Row {
  explicit Row(const std::vector<std::size_t>& counts) : starts(counts.size() + 1, 0) {
    for (std::size_t i = 0; i < counts.size(); ++i) starts[i + 1] = starts[i] + counts[i];
  }
  std::uint64_t start(std::int32_t block) const { return starts[static_cast<std::size_t>(block)]; }
  std::uint64_t end() const { return starts.back(); }

  std::vector<std::uint64_t> starts;
};

// The lengths of the blocks that `rank` sends to each rank in an all-to-all (or receives from each rank). The block
// from rank r to rank q has the length of block (q - r) mod p. So blocks differ, but all ranks send and receive the
// same total.
std::vector<std::size_t> rotated(const std::vector<std::size_t>& counts, std::int32_t rank, bool sends) {
  const auto ranks = static_cast<std::int32_t>(counts.size());
  std::vector<std::size_t> result;
  for (std::int32_t peer = 0; peer < ranks; ++peer) {
    const std::int32_t distance = sends ? peer - rank : rank - peer;
    result.push_back(counts[static_cast<std::size_t>((distance + ranks) % ranks)]);
  }
  return result;
}

// Builds the RankCall of one rank.
class RankCallBuilder {
 public:
  RankCallBuilder(const PerfCollective& collective, std::int32_t rank, std::int32_t ranks, std::int32_t root,
                  std::uint64_t elements)
      : variable_(collective.variable),
        ping_pong_(collective.ping_pong),
        one_way_(collective.one_way),
        rank_(rank),
        ranks_(ranks),
        at_root_(rank == root),
        root_(root) {
    if (!has_blocks(collective.kind)) {
      call_.count = elements;
    } else if (variable_) {
      counts_ = unequal_counts(elements, ranks);
    } else {
      call_.count = elements / static_cast<std::uint64_t>(ranks);
      counts_.assign(static_cast<std::size_t>(ranks), call_.count);
    }
    elements_ = elements;
  }

  RankCall make(Kind kind) {
    switch (kind) {
      case Kind::kAllReduce: simple(elements_, elements_, ExpectedBlock::kAllRanks); break;
      case Kind::kReduce: simple(elements_, at_root_ ? elements_ : 0, ExpectedBlock::kAllRanks); break;
      case Kind::kBroadcast: simple(at_root_ ? elements_ : 0, elements_, root_); break;
      case Kind::kSendReceive: send_receive(); break;
      case Kind::kAllGather: all_gather(); break;
      case Kind::kReduceScatter: reduce_scatter(); break;
      case Kind::kAllToAll: all_to_all(); break;
      case Kind::kGather: gather(); break;
      case Kind::kScatter: scatter(); break;
      case Kind::kBarrier: break;
    }
    return std::move(call_);
  }

 private:
  std::size_t own_count() const { return counts_[static_cast<std::size_t>(rank_)]; }

  // A call with an output of one block that comes from rank `from`.
  void simple(std::uint64_t input, std::uint64_t output, std::int32_t from) {
    call_.input_elements = input;
    call_.output_elements = output;
    if (output > 0) call_.expected = {{.from = from, .input_at = 0, .output_at = 0, .count = output}};
  }

  void send_receive() {
    if (!ping_pong_ && !one_way_) return simple(elements_, elements_, (rank_ + ranks_ - 1) % ranks_);
    const std::int32_t partner = partner_of(rank_, ranks_);
    if (partner < 0) return;
    const bool sends = ping_pong_ || rank_ < partner;
    const bool receives = ping_pong_ || rank_ > partner;
    simple(sends ? elements_ : 0, receives ? elements_ : 0, partner);
  }

  // The output consists of the input of every rank, in rank order.
  void expect_row(const Row& row) {
    for (std::int32_t from = 0; from < ranks_; ++from) {
      const std::uint64_t count = counts_[static_cast<std::size_t>(from)];
      call_.expected.push_back({.from = from, .input_at = 0, .output_at = row.start(from), .count = count});
    }
  }

  // The output is this rank's block of the row of blocks that rank `from` has.
  void expect_own(const Row& row, std::int32_t from) {
    call_.expected = {{.from = from, .input_at = row.start(rank_), .output_at = 0, .count = own_count()}};
  }

  void all_gather() {
    const Row row(counts_);
    call_.input_elements = own_count();
    call_.output_elements = row.end();
    call_.in_place_input_at = row.start(rank_);
    expect_row(row);
    if (variable_) call_.output_counts = counts_;
  }

  void reduce_scatter() {
    const Row row(counts_);
    call_.input_elements = row.end();
    call_.output_elements = own_count();
    call_.in_place_output_at = row.start(rank_);
    expect_own(row, ExpectedBlock::kAllRanks);
    if (variable_) call_.input_counts = counts_;
  }

  void all_to_all() {
    const std::vector<std::size_t> receives = rotated(counts_, rank_, false);
    const Row row(receives);
    call_.input_elements = row.end();
    call_.output_elements = row.end();
    for (std::int32_t from = 0; from < ranks_; ++from) {
      call_.expected.push_back({.from = from,
                                .input_at = Row(rotated(counts_, from, true)).start(rank_),
                                .output_at = row.start(from),
                                .count = receives[static_cast<std::size_t>(from)]});
    }
    if (!variable_) return;
    call_.input_counts = rotated(counts_, rank_, true);
    call_.output_counts = receives;
  }

  void gather() {
    const Row row(counts_);
    call_.count = own_count();
    call_.input_elements = own_count();
    if (!at_root_) return;
    call_.output_elements = row.end();
    call_.in_place_input_at = row.start(rank_);
    expect_row(row);
    if (variable_) call_.output_counts = counts_;
  }

  void scatter() {
    const Row row(counts_);
    call_.count = own_count();
    call_.output_elements = own_count();
    expect_own(row, root_);
    if (!at_root_) return;
    call_.input_elements = row.end();
    call_.in_place_output_at = row.start(rank_);
    if (variable_) call_.input_counts = counts_;
  }

  const bool variable_;
  const bool ping_pong_;
  const bool one_way_;
  const std::int32_t rank_;
  const std::int32_t ranks_;
  const bool at_root_;
  const std::int32_t root_;
  std::uint64_t elements_ = 0;
  std::vector<std::size_t> counts_;  // lengths of the row of blocks, in elements
  RankCall call_;
};

}  // namespace

std::string name_of(const PerfCollective& collective) {
  if (collective.kind == Kind::kSendReceive) {
    return std::string(collective.ping_pong ? kPingPongName : collective.one_way ? kOneWayName : kSendReceiveName);
  }
  return std::string(to_string(collective.kind)) + (collective.variable ? "_v" : "");
}

std::vector<PerfCollective> perf_collectives() {
  std::vector<PerfCollective> all;
  for (const Kind kind : all_collectives()) all.push_back({.kind = kind, .variable = false});
  all.push_back({.kind = Kind::kSendReceive, .variable = false});
  all.push_back({.kind = Kind::kSendReceive, .variable = false, .ping_pong = true});
  all.push_back({.kind = Kind::kSendReceive, .variable = false, .one_way = true});
  for (const Kind kind : all_collectives()) {
    if (has_blocks(kind)) all.push_back({.kind = kind, .variable = true});
  }
  return all;
}

std::optional<PerfCollective> parse_perf_collective(std::string_view name) {
  for (const PerfCollective& each : perf_collectives()) {
    if (name == name_of(each)) return each;
  }
  return std::nullopt;
}

bool adds(const PerfCollective& collective) { return reduces(collective.kind) && has_buffers(collective); }

int messages_in_turn(const PerfCollective& collective) { return collective.ping_pong ? 2 : 1; }

std::int32_t partner_of(std::int32_t rank, std::int32_t ranks) {
  const std::int32_t partner = rank ^ 1;
  return partner < ranks ? partner : -1;
}

bool has_root(const PerfCollective& collective) { return has_root(collective.kind); }

bool has_buffers(const PerfCollective& collective) { return row_of(collective.kind).has_data; }

bool has_in_place(const PerfCollective& collective) {
  const bool all_to_all_v = collective.kind == Kind::kAllToAll && collective.variable;
  return has_buffers(collective) && collective.kind != Kind::kSendReceive && !all_to_all_v;
}

bool is_exchange(const PerfCollective& collective) {
  return collective.kind == Kind::kSendReceive ||
         (collective.variable && !(collective.kind == Kind::kAllGather || collective.kind == Kind::kReduceScatter));
}

double busbw_factor(const PerfCollective& collective, std::int32_t ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (!has_buffers(collective)) return 0;
  if (has_blocks(collective.kind)) return others;
  return adds(collective) && !has_root(collective) ? 2 * others : 1;
}

std::uint64_t message_elements(const PerfCollective& collective, std::int32_t ranks, std::uint64_t bytes,
                               std::size_t element_bytes) {
  if (!has_buffers(collective)) return 0;
  const std::uint64_t elements = bytes / element_bytes;
  if (!has_blocks(collective.kind) || collective.variable) return std::max<std::uint64_t>(1, elements);
  const auto blocks = static_cast<std::uint64_t>(ranks);
  return std::max<std::uint64_t>(1, elements / blocks) * blocks;
}

std::uint64_t shown_count(const PerfCollective& collective, std::int32_t ranks, std::uint64_t elements) {
  const bool equal_blocks = has_blocks(collective.kind) && !collective.variable;
  return equal_blocks ? elements / static_cast<std::uint64_t>(ranks) : elements;
}

RankCall make_rank_call(const PerfCollective& collective, std::int32_t rank, std::int32_t ranks, std::int32_t root,
                        std::uint64_t elements) {
  TUTTI_ASSERT(rank >= 0 && rank < ranks);
  return RankCallBuilder(collective, rank, ranks, root, elements).make(collective.kind);
}

std::vector<std::size_t> unequal_counts(std::uint64_t total, std::int32_t parts) {
  // Block r ends at total * (r + 1)(r + 2) / (p (p + 1)), rounded down. Because the ends are rounded and not the
  // lengths, the sum is exactly `total`.
  const auto p = static_cast<std::uint64_t>(parts);
  const std::uint64_t whole = p * (p + 1);
  const auto end_of = [&](std::uint64_t block) {
    const std::uint64_t share = (block + 1) * (block + 2);
    return total / whole * share + total % whole * share / whole;  // avoids total * share, which may exceed 64 bits
  };
  std::vector<std::size_t> counts;
  std::uint64_t start = 0;
  for (std::uint64_t block = 0; block < p; ++block) {
    counts.push_back(end_of(block) - start);
    start = end_of(block);
  }
  return counts;
}

}  // namespace tutti::tool
