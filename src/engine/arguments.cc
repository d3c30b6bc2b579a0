#include "engine/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "plan/collective.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostUserElementBytes = 4096;

// Adds the 8 bytes of a value to an FNV-1a hash, and returns the new hash.
std::uint32_t mix(std::uint32_t digest, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) digest = (digest ^ static_cast<std::uint8_t>(value >> 8 * byte)) * 16777619u;
  return digest;
}

// A digest of two arguments that have no field of their own in the tag: the lengths of the blocks, if the call has a
// table of them, and the caller's own reduction. Returns 0 if the call has neither, and never 0 otherwise.
std::uint32_t digest_of(const std::vector<std::uint64_t>& counts, const UserReduction& user) {
  if (counts.empty() && user.combine == nullptr) return 0;
  std::uint32_t digest = 2166136261u;
  for (const std::uint64_t count : counts) digest = mix(digest, count);
  if (user.combine != nullptr) {
    digest = mix(digest, std::uint64_t{user.id} << 32 | (user.commutative ? 1u : 0u));
    digest = mix(digest, user.element_bytes);
  }
  return std::max(digest, 1u);
}

// Some functions of this file have always_inline. Every collective runs them, and the shortest collectives take less
// than a microsecond, so a few nanoseconds for each function call count. The compiler might not inline them by itself,
// because the code for error messages makes most of them long.
[[gnu::always_inline]] inline Status check_reduction(const CollectiveCall& call, const UserReduction& user) {
  if (!is_valid(call.op))
    return invalid_argument(fmt::format("operation {} is not one of ReduceOp", static_cast<int>(call.op)));
  if (user.combine == nullptr) return {};
  if (!reduces(call.kind) || !has_data(call.kind)) {
    return invalid_argument(fmt::format("a {} adds nothing and takes no reduction", to_string(call.kind)));
  }
  if (user.element_bytes == 0 || user.element_bytes > kMostUserElementBytes) {
    return invalid_argument(
        fmt::format("a reduction's element has 1 to {} bytes, not {}", kMostUserElementBytes, user.element_bytes));
  }
  return {};
}

[[gnu::always_inline]] inline Status check_enums(const CollectiveCall& call, const CallOptions& options,
                                                 const Caller& caller) {
  if (!has_plan(call.kind)) {
    return invalid_argument(fmt::format("collective {} is not one of CollectiveKind", static_cast<int>(call.kind)));
  }
  if (options.reduction.combine == nullptr && !is_valid(call.type)) {
    return invalid_argument(fmt::format("type {} is not one of DataType", static_cast<int>(call.type)));
  }
  if (!is_valid(options.algorithm)) {
    return invalid_argument(fmt::format("algorithm {} is not one of Algorithm", static_cast<int>(options.algorithm)));
  }
  if (options.timeout.count() < 0)
    return invalid_argument(fmt::format("timeout {} ms is negative", options.timeout.count()));
  if (options.uniform || options.checksum) return only_blocking();
  if (has_root(call.kind) && (call.root < 0 || static_cast<std::uint32_t>(call.root) >= caller.ranks)) {
    return invalid_argument(fmt::format("root {} is outside 0..{}", call.root, caller.ranks - 1));
  }
  return check_reduction(call, options.reduction);
}

// Checks a caller's table of counts and displacements, in elements, and copies it. `name` is its name in messages.
Result<Lengths> check_counts(const BlockCounts& given, const char* name, std::size_t element_bytes,
                             const Caller& caller) {
  if (given.counts.size() != caller.ranks) {
    return invalid_argument(fmt::format("{} has {} counts for {} ranks", name, given.counts.size(), caller.ranks));
  }
  if (!given.displacements.empty() && given.displacements.size() != caller.ranks) {
    return invalid_argument(
        fmt::format("{} has {} displacements for {} ranks", name, given.displacements.size(), caller.ranks));
  }
  Lengths lengths;
  std::uint64_t total = 0;
  for (std::uint32_t rank = 0; rank < caller.ranks; ++rank) {
    const std::uint64_t start = given.displacements.empty() ? total : given.displacements[rank];
    if (given.counts[rank] > kMaxBytes / element_bytes || start > kMaxBytes / element_bytes) {
      return invalid_argument(fmt::format("{}: block {} is more than any memory holds", name, rank));
    }
    lengths.counts.push_back(given.counts[rank]);
    if (!given.displacements.empty()) lengths.displacements.push_back(start);
    total += given.counts[rank];
    if (total > kMaxBytes / element_bytes) {
      return invalid_argument(fmt::format("{}: the blocks are more than any memory holds", name));
    }
  }
  return lengths;
}

std::uint64_t start_of(const Lengths& lengths, std::uint32_t block) {
  if (!lengths.displacements.empty()) return lengths.displacements[block];
  if (lengths.counts.empty()) return block * lengths.count;
  std::uint64_t start = 0;
  for (std::uint32_t b = 0; b < block; ++b) start += lengths.counts[b];
  return start;
}

std::uint64_t count_of(const Lengths& lengths, std::uint32_t block) {
  return lengths.counts.empty() ? lengths.count : lengths.counts[block];
}

// Number of elements from a buffer's start to the end of the block that ends last; empty blocks do not count.
// `blocks`: the blocks of a call that are in the buffer. A single block counts as beginning at the buffer's start, even
// if it has a displacement.
[[gnu::always_inline]] inline std::uint64_t extent_of(const Lengths& lengths, const Blocks& blocks) {
  if (blocks.count == 0) return 0;
  if (blocks.count == 1) return count_of(lengths, lengths.counts.empty() ? 0 : blocks.first);
  if (lengths.counts.empty()) return blocks.count * lengths.count;
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  for (std::uint32_t block = 0; block < blocks.count; ++block) {
    if (!lengths.displacements.empty()) start = lengths.displacements[block];
    if (lengths.counts[block] > 0) end = std::max(end, start + lengths.counts[block]);
    start += lengths.counts[block];
  }
  return end;
}

// Checks that blocks with displacements do not overlap in an output. If they did, the result would depend on the
// order of arrival.
Status check_apart(const Lengths& lengths) {
  std::vector<std::uint32_t> order;  // blocks that are not empty
  for (std::uint32_t i = 0; i < lengths.displacements.size(); ++i) {
    if (lengths.counts[i] > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(lengths.displacements[a], lengths.counts[a]) <
           std::pair(lengths.displacements[b], lengths.counts[b]);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint32_t before = order[i - 1];
    if (lengths.displacements[before] + lengths.counts[before] > lengths.displacements[order[i]]) {
      return invalid_argument(
          fmt::format("the output's blocks {} and {} overlap: check the displacements", before, order[i]));
    }
  }
  return {};
}

struct Buffer {
  const char* name;
  const void* data;
  std::size_t bytes;
};

// Checks that a buffer with data has an address, and that the address is a multiple of `alignment`. `alignment` must be
// a power of two, so that a bit mask gives the remainder in less time than a division.
[[gnu::always_inline]] inline Status check_buffer(const Buffer& buffer, std::size_t alignment) {
  if (buffer.bytes == 0) return {};
  if (buffer.data == nullptr)
    return invalid_argument(fmt::format("{} is null, but {} bytes long", buffer.name, buffer.bytes));
  if ((reinterpret_cast<std::uintptr_t>(buffer.data) & (alignment - 1)) != 0) {
    return invalid_argument(fmt::format("{} is not aligned to its element of {} bytes", buffer.name, alignment));
  }
  return {};
}

bool buffers_overlap(const CheckedCall& checked) {
  const auto in = reinterpret_cast<std::uintptr_t>(checked.call.input);
  const auto out = reinterpret_cast<std::uintptr_t>(checked.call.output);
  if (checked.input_bytes == 0 || checked.output_bytes == 0) return false;
  return in < out + checked.output_bytes && out < in + checked.input_bytes;
}

// Checks that buffers that overlap do so in the in-place form that the collective type defines. `many_in`, `many_out`:
// whether the input and the output consist of several blocks, one for each rank, instead of a single block.
Status check_in_place(const CheckedCall& checked, bool many_in, bool many_out, const Caller& caller) {
  const auto in = reinterpret_cast<std::uintptr_t>(checked.call.input);
  const auto out = reinterpret_cast<std::uintptr_t>(checked.call.output);
  if (many_in == many_out && in == out) return {};
  const std::uint64_t own_bytes = start_of(checked.call.lengths, caller.rank) * checked.call.element_bytes;
  if (!many_in && many_out && in == out + own_bytes) return {};
  if (many_in && !many_out && out == in + own_bytes) return {};
  return invalid_argument(fmt::format(
      "input and output overlap, but not in the in-place form of {} ({}): pass that, or buffers that are apart",
      to_string(checked.collective.kind),
      many_in == many_out ? "input == output"
      : many_out          ? "input is the block of this rank in output"
                          : "output is the block of this rank in input"));
}

// For a v-variant in a communicator with one rank: if the caller passed a displacement, moves the address of the buffer
// that has displacements forward to its only block (unless that block is empty), because plans expect that block at the
// buffer's start.
void begin_at_block(Call& call, CollectiveKind kind, std::size_t element_bytes) {
  if (call.lengths.displacements.empty()) return;
  const std::uint64_t start = call.lengths.counts[0] > 0 ? call.lengths.displacements[0] * element_bytes : 0;
  call.lengths.displacements.clear();
  if (row_of(kind).output == BlockSet::kAll && call.output != nullptr) call.output += start;
  if (row_of(kind).input == BlockSet::kAll && call.input != nullptr) call.input += start;
}

Status set_lengths(Lengths& lengths, const CollectiveCall& call, std::size_t element_bytes, const Caller& caller) {
  if (!has_data(call.kind)) return {};
  if (!call.variable) {
    // The length in bytes of the blocks of all ranks together, which must not exceed kMaxBytes. It is computed by a
    // multiplication that detects an overflow. A check by a division would take longer, and all collectives with data
    // run this code, except the v-variants.
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(call.count, element_bytes * caller.ranks, &bytes) || bytes > kMaxBytes) {
      return invalid_argument(fmt::format("count {} of {} bytes each for {} ranks is more than any memory holds",
                                          call.count, element_bytes, caller.ranks));
    }
    lengths.count = call.count;
    return {};
  }
  const CollectiveRow& row = row_of(call.kind);
  if (row.variable != VariableForm::kPlan) return invalid_argument(fmt::format("there is no {}_v", row.name));
  auto counts = row.output == BlockSet::kAll ? check_counts(call.output_counts, "output_counts", element_bytes, caller)
                                             : check_counts(call.input_counts, "input_counts", element_bytes, caller);
  if (!counts) return counts.error();
  lengths = *std::move(counts);
  return {};
}

}  // namespace

Error only_blocking() {
  return invalid_argument("only a blocking collective outside of a Group can be uniform or ask for checksums");
}

Error invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)};
}

DataType type_of(const CollectiveCall& call) { return has_data(call.kind) ? call.type : DataType::kUint8; }

ReduceOp op_of(const CollectiveCall& call) {
  return reduces(call.kind) && has_data(call.kind) ? call.op : ReduceOp::kSum;
}

bool is_exchange(const CollectiveCall& call) {
  return call.variable && row_of(call.kind).variable == VariableForm::kExchange;
}

Status check_call(CheckedCall& checked, const CollectiveCall& call, const CallOptions& options, const Caller& caller) {
  TUTTI_TRY(check_enums(call, options, caller));
  const UserReduction& user = options.reduction;
  const std::size_t element_bytes = user.combine != nullptr ? user.element_bytes : size_of(call.type);
  Lengths& lengths = checked.call.lengths;
  TUTTI_TRY(set_lengths(lengths, call, element_bytes, caller));
  checked.call.input = static_cast<const std::byte*>(call.input);
  checked.call.output = static_cast<std::byte*>(call.output);
  if (caller.ranks == 1 && call.variable) begin_at_block(checked.call, call.kind, element_bytes);
  checked.collective.kind = call.kind;
  checked.collective.ranks = caller.ranks;
  checked.collective.root = has_root(call.kind) ? static_cast<std::uint32_t>(call.root) : 0;
  const Blocks in = input_blocks(checked.collective, caller.rank);
  const Blocks out = output_blocks(checked.collective, caller.rank);
  checked.input_bytes = extent_of(lengths, in) * element_bytes;
  checked.output_bytes = extent_of(lengths, out) * element_bytes;
  const std::size_t alignment = user.combine != nullptr ? 1 : element_bytes;
  TUTTI_TRY(check_buffer({.name = "input", .data = checked.call.input, .bytes = checked.input_bytes}, alignment));
  TUTTI_TRY(check_buffer({.name = "output", .data = checked.call.output, .bytes = checked.output_bytes}, alignment));
  if (out.count > 1) TUTTI_TRY(check_apart(lengths));
  std::uint64_t total = lengths.count;
  for (const std::uint64_t count : lengths.counts) total += count;
  checked.call.tag = {.sequence = 0,
                      .count = total,
                      .kind = static_cast<std::uint8_t>(call.kind),
                      .type = user.combine != nullptr ? kUserTag : static_cast<std::uint8_t>(type_of(call)),
                      .op = user.combine != nullptr ? kUserTag : static_cast<std::uint8_t>(op_of(call)),
                      .algorithm = 0,
                      .tile_bytes = 0,
                      .root = checked.collective.root,
                      .digest = digest_of(lengths.counts, user)};
  checked.call.type = call.type;
  checked.call.element_bytes = element_bytes;
  checked.call.op = op_of(call);
  checked.call.scale = options.scale;
  checked.call.label = options.label;
  checked.call.user = user;
  checked.call.in_place = buffers_overlap(checked);
  if (checked.call.in_place) TUTTI_TRY(check_in_place(checked, in.count > 1, out.count > 1, caller));
  return {};
}

Result<Transfer> check_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                std::int32_t peer, const Caller& caller) {
  if (!is_valid(type)) return invalid_argument(fmt::format("type {} is not one of DataType", static_cast<int>(type)));
  if (peer < 0 || static_cast<std::uint32_t>(peer) >= caller.ranks) {
    return invalid_argument(fmt::format("peer {} is outside 0..{}", peer, caller.ranks - 1));
  }
  const std::size_t element_bytes = size_of(type);
  if (count > kMaxBytes / element_bytes) {
    return invalid_argument(fmt::format("count {} of {} is more than any memory holds", count, to_string(type)));
  }
  TUTTI_TRY(check_buffer({.name = "data", .data = data, .bytes = count * element_bytes}, element_bytes));
  Transfer transfer;
  transfer.direction = direction;
  transfer.peer = static_cast<std::uint32_t>(peer);
  // A send only reads the data. The cast makes it possible to use one type for sends and receives.
  transfer.data = static_cast<std::byte*>(const_cast<void*>(data));
  transfer.bytes = count * element_bytes;
  transfer.tag = {.sequence = 0,
                  .count = count,
                  .kind = static_cast<std::uint8_t>(CollectiveKind::kSendReceive),
                  .type = static_cast<std::uint8_t>(type)};
  return transfer;
}

namespace {

// The blocks that this rank sends, or those that it receives, in an exchange: no block, one block for one peer, or
// one block for each rank.
struct Side {
  const std::byte* data = nullptr;
  Lengths lengths;                    // one block for each rank if `counts` is not empty; otherwise at most one block
  std::optional<std::uint32_t> peer;  // the peer of the only block; not set if there is no block, or one for each rank

  bool with(std::uint32_t rank) const { return lengths.counts.empty() ? peer == rank : true; }
  std::uint64_t count(std::uint32_t rank) const { return count_of(lengths, rank); }
  const std::byte* block(std::uint32_t rank, std::size_t element_bytes) const {
    return lengths.counts.empty() ? data : data + start_of(lengths, rank) * element_bytes;
  }
};

Result<Side> side_of(const CollectiveCall& call, bool sends, const Caller& caller, std::size_t element_bytes) {
  const auto root = static_cast<std::uint32_t>(call.root);
  Side side;
  side.data = sends ? static_cast<const std::byte*>(call.input) : static_cast<const std::byte*>(call.output);
  const bool all = !has_root(call.kind);
  const bool root_has_blocks = (row_of(call.kind).root == RootHas::kTheInput) == sends;
  if (!all && !root_has_blocks) {  // this rank sends one block to the root, or receives one from it
    side.peer = root;
    side.lengths.count = call.count;
    return side;
  }
  if (!all && caller.rank != root) return side;
  auto lengths = sends ? check_counts(call.input_counts, "input_counts", element_bytes, caller)
                       : check_counts(call.output_counts, "output_counts", element_bytes, caller);
  if (!lengths) return lengths.error();
  side.lengths = std::move(*lengths);
  return side;
}

Buffer buffer_of(const Side& side, const char* name, std::size_t element_bytes, const Caller& caller) {
  const Blocks blocks = side.lengths.counts.empty() ? Blocks{.count = side.peer ? 1u : 0u, .first = 0}
                                                    : Blocks{.count = caller.ranks, .first = 0};
  return {.name = name, .data = side.data, .bytes = extent_of(side.lengths, blocks) * element_bytes};
}

// Checks that no block that is read overlaps with a block that is written. The exception is this rank's block for
// itself, if it is already in its final place. Memory between the blocks may overlap.
Status check_exchange_overlap(const CheckedExchange& exchange) {
  struct Span {
    const std::byte* begin;
    const std::byte* end;
    bool written;
  };
  std::vector<Span> spans;
  const auto add = [&](const std::byte* data, std::uint64_t bytes, bool written) {
    if (bytes > 0) spans.push_back({.begin = data, .end = data + bytes, .written = written});
  };
  for (const Transfer& transfer : exchange.transfers) {
    add(transfer.data, transfer.bytes, transfer.direction == Direction::kReceive);
  }
  for (const OwnCopy& own : exchange.own) {
    if (own.from == own.to) continue;
    add(own.from, own.bytes, false);
    add(own.to, own.bytes, true);
  }
  std::sort(spans.begin(), spans.end(), [](const Span& one, const Span& other) { return one.begin < other.begin; });
  // The loop visits the blocks in the order of their start addresses. [0]: the highest end address so far of a block
  // that is read. [1]: the highest end address so far of a block that is written.
  std::array<const std::byte*, 2> furthest{};
  for (const Span& span : spans) {
    if (span.begin < furthest[span.written ? 0 : 1]) {
      return invalid_argument("input and output overlap: pass buffers that are apart");
    }
    const std::byte*& end = furthest[span.written ? 1 : 0];
    end = std::max(end, span.end);
  }
  return {};
}

}  // namespace

Result<CheckedExchange> check_exchange(const CollectiveCall& call, const CallOptions& options, const Caller& caller) {
  TUTTI_TRY(check_enums(call, options, caller));
  const std::size_t element_bytes = size_of(call.type);
  if (call.count > kMaxBytes / element_bytes)
    return invalid_argument(fmt::format("count {} is more than any memory holds", call.count));
  auto input = side_of(call, true, caller, element_bytes);
  if (!input) return input.error();
  auto output = side_of(call, false, caller, element_bytes);
  if (!output) return output.error();
  TUTTI_TRY(check_buffer(buffer_of(*input, "input", element_bytes, caller), element_bytes));
  TUTTI_TRY(check_buffer(buffer_of(*output, "output", element_bytes, caller), element_bytes));
  TUTTI_TRY(check_apart(output->lengths));
  CheckedExchange exchange;
  // Each rank goes through the peers from its own number on, so that in an all_to_all_v the ranks do not all send to
  // the same rank at the same time.
  for (std::uint32_t distance = 0; distance < caller.ranks; ++distance) {
    const std::uint32_t to = (caller.rank + distance) % caller.ranks;
    const std::uint32_t from = (caller.rank + caller.ranks - distance) % caller.ranks;
    if (to == caller.rank && input->with(to) && output->with(to)) {
      if (input->count(to) != output->count(to)) {
        return invalid_argument(fmt::format("this rank ({}) has {} elements for itself, but expects {}", caller.rank,
                                            input->count(to), output->count(to)));
      }
      exchange.own.push_back({.from = input->block(to, element_bytes),
                              .to = const_cast<std::byte*>(output->block(to, element_bytes)),
                              .bytes = input->count(to) * element_bytes});
      continue;
    }
    for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
      const Side& side = direction == Direction::kSend ? *input : *output;
      const std::uint32_t peer = direction == Direction::kSend ? to : from;
      if (peer == caller.rank || !side.with(peer)) continue;
      auto transfer = check_transfer(direction, side.block(peer, element_bytes), side.count(peer), call.type,
                                     static_cast<std::int32_t>(peer), caller);
      if (!transfer) return transfer.error();
      transfer->tag.kind = static_cast<std::uint8_t>(call.kind);
      exchange.transfers.push_back(*transfer);
    }
  }
  TUTTI_TRY(check_exchange_overlap(exchange));
  return exchange;
}

}  // namespace tutti::detail
