#include "tools/perf/collective.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "base/collective_table.h"

namespace tutti::tool {
namespace {

using Kind = CollectiveKind;

constexpr std::string_view kSendReceiveName = "send_recv";  // sendrecv in nccl-tests
constexpr std::string_view kPingPongName = "ping_pong";
constexpr std::string_view kOneWayName = "one_way";

// The starts of blocks that lie one after the other in a buffer, and the end of the last block, in elements.
struct Row {
  explicit Row(const std::vector<std::size_t>& counts) : starts(counts.size() + 1, 0) {
    for (std::size_t i = 0; i < counts.size(); ++i) starts[i + 1] = starts[i] + counts[i];
  }
  std::uint64_t start(std::int32_t block) const { return starts[static_cast<std::size_t>(block)]; }
  std::uint64_t end() const { return starts.back(); }

  std::vector<std::uint64_t> starts;
};

// The lengths of the blocks that `rank` sends to each rank in an all-to-all or, if `sends` is false, receives from each
// rank. The block from rank r to rank q has the length counts[(q - r) mod p], for p ranks. So blocks differ in length,
// but all ranks send and receive the same total.
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
    if (kind == Kind::kSendReceive) {
      send_receive();
    } else if (has_data(kind)) {
      collective(row_of(kind));
    }
    return std::move(call_);
  }

 private:
  std::size_t own_count() const { return counts_[static_cast<std::size_t>(rank_)]; }

  // Sets the lengths of the input and output of a call. Its whole output, if there is one, comes from rank `from`.
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

  // The lengths of the blocks of a rank's input (if `input` is true) or output. The blocks of an all-to-all belong to
  // pairs of ranks, so their lengths are those of rotated().
  std::vector<std::size_t> lengths(const CollectiveRow& row, std::int32_t rank, bool input) const {
    const BlockSet set = input ? row.input : row.output;
    if (counts_.empty()) return {elements_};
    if (set != BlockSet::kAll) return {counts_[static_cast<std::size_t>(rank)]};
    return row.input == row.output ? rotated(counts_, rank, input) : counts_;
  }

  void collective(const CollectiveRow& row) {
    const bool all_in = row.input == BlockSet::kAll;
    const bool all_out = row.output == BlockSet::kAll;
    const bool has_input = at_root_ || row.root != RootHas::kTheInput;
    const bool has_output = at_root_ || row.root != RootHas::kTheOutput;
    if (row.root != RootHas::kNothing && (all_in || all_out)) call_.count = own_count();
    const std::vector<std::size_t> input = lengths(row, rank_, true);
    const std::vector<std::size_t> output = lengths(row, rank_, false);
    if (has_input) call_.input_elements = Row(input).end();
    if (has_output) call_.output_elements = Row(output).end();
    // In place, the smaller buffer is this rank's block of the larger one.
    if (has_input && has_output && all_out && !all_in) call_.in_place_input_at = Row(output).start(rank_);
    if (has_input && has_output && all_in && !all_out) call_.in_place_output_at = Row(input).start(rank_);
    if (has_output) expect(row, output);
    if (!variable_) return;
    if (has_input && all_in) call_.input_counts = input;
    if (has_output && all_out) call_.output_counts = output;
  }

  void expect(const CollectiveRow& row, const std::vector<std::size_t>& output) {
    const Row at(output);
    for (std::int32_t block = 0; block < static_cast<std::int32_t>(output.size()); ++block) {
      const std::uint64_t count = output[static_cast<std::size_t>(block)];
      const auto contributor = static_cast<std::int32_t>(
          contributor_of(row.kind, static_cast<std::uint32_t>(ranks_), static_cast<std::uint32_t>(root_),
                         static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(block)));
      const std::int32_t from = row.reduces ? ExpectedBlock::kAllRanks : contributor;
      const std::vector<std::size_t> sent = lengths(row, from < 0 ? rank_ : from, true);
      const std::uint64_t input_at = row.input == BlockSet::kAll ? Row(sent).start(rank_) : 0;
      call_.expected.push_back({.from = from, .input_at = input_at, .output_at = at.start(block), .count = count});
    }
  }

  const bool variable_;
  const bool ping_pong_;
  const bool one_way_;
  const std::int32_t rank_;
  const std::int32_t ranks_;
  const bool at_root_;
  const std::int32_t root_;
  std::uint64_t elements_ = 0;
  std::vector<std::size_t> counts_;  // length of the block of each rank, in elements; empty: no blocks
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
    if (row_of(kind).variable != VariableForm::kNone) all.push_back({.kind = kind, .variable = true});
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

unsigned messages_in_turn(const PerfCollective& collective) { return collective.ping_pong ? 2 : 1; }

std::int32_t partner_of(std::int32_t rank, std::int32_t ranks) {
  const std::int32_t partner = rank ^ 1;
  return partner < ranks ? partner : -1;
}

bool has_root(const PerfCollective& collective) { return has_root(collective.kind); }

bool has_buffers(const PerfCollective& collective) { return row_of(collective.kind).has_data; }

bool has_in_place(const PerfCollective& collective) {
  const bool all_to_all_v = replaces_input_in_place(collective.kind) && collective.variable;
  return has_buffers(collective) && has_plan(collective.kind) && !all_to_all_v;
}

bool is_exchange(const PerfCollective& collective) {
  return !has_plan(collective.kind) ||
         (collective.variable && row_of(collective.kind).variable == VariableForm::kExchange);
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
    // total * share / whole, without the product total * share, which may exceed 64 bits
    return total / whole * share + total % whole * share / whole;
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
