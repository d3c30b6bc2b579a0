// The operations that `tutti perf` can measure, and for each operation one rank's part of a call: the lengths of the
// rank's buffers, the positions of input and output in an in-place call, and the elements that must be in the output.
// docs/run.md has a table of the lengths. All functions are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {

// An operation that can be measured: a collective, or a pattern of sends and receives (kSendReceive).
struct PerfCollective {
  // kSendReceive: each rank sends to the next rank and receives from the previous one, in a ring, unless ping_pong or
  // one_way is set.
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool variable = false;  // blocks have different lengths (the _v variant)
  // Only with kSendReceive: ranks 0 and 1, 2 and 3 and so on are partners. The even rank sends a message, and the odd
  // rank answers with a message of the same length.
  bool ping_pong = false;
  // Only with kSendReceive: the same partners, but only the even rank sends.
  bool one_way = false;

  bool operator==(const PerfCollective&) const = default;
};

// The name of an operation on the command line, for example "all_reduce", "all_gather_v", "send_recv", "ping_pong" or
// "one_way". parse_perf_collective() is the inverse, and returns nothing for any other text.
std::string name_of(const PerfCollective& collective);
std::optional<PerfCollective> parse_perf_collective(std::string_view name);
std::vector<PerfCollective> perf_collectives();

// Whether the operation reduces, so that it has a reduction operation (--op).
bool adds(const PerfCollective& collective);
// The number of messages of one call that follow each other: 2 for a ping-pong, otherwise 1. The measured time of a
// call is divided by this number.
unsigned messages_in_turn(const PerfCollective& collective);
// The partner of `rank` in a ping-pong or one-way transfer. -1 for the last rank if the number of ranks is odd.
std::int32_t partner_of(std::int32_t rank, std::int32_t ranks);
bool has_root(const PerfCollective& collective);
bool has_buffers(const PerfCollective& collective);  // false only for the barrier
// Whether the operation can be called in place, which means that on some rank the input and the output are in one
// buffer, the smaller inside the larger. False for the barrier, for sends and receives, and for all_to_all_v.
bool has_in_place(const PerfCollective& collective);
// Whether the operation consists of sends and receives between pairs of ranks, without a plan (send_recv, all_to_all_v
// and others). Besides auto, kDirect is then the only algorithm that --algorithm allows.
bool is_exchange(const PerfCollective& collective);

// The ratio busbw / algbw, as nccl-tests define it (for a v-variant, the ratio of its form with equal blocks): how many
// times the length of the message must cross the link of each rank, or of the root. For example 2 (p - 1) / p for an
// all_reduce of p ranks. 0 for the barrier.
double busbw_factor(const PerfCollective& collective, std::int32_t ranks);

// The length of the largest message that has at most `bytes` bytes, in elements. The length of a message is the length
// of the larger one of a call's two buffers. The result is at least 1 or, if the buffer consists of blocks of equal
// length, at least the number of ranks, even if that is more than `bytes` bytes. 0 for the barrier.
std::uint64_t message_elements(const PerfCollective& collective, std::int32_t ranks, std::uint64_t bytes,
                               std::size_t element_bytes);

// The number in the column `count` of the tables: the elements of one block if all blocks have the same length,
// otherwise of the whole message.
std::uint64_t shown_count(const PerfCollective& collective, std::int32_t ranks, std::uint64_t elements);

// A contiguous part of an output, and the position of the same elements in the input of the rank from which they come
// (of a reduction: in all ranks' inputs). All positions and lengths are in elements.
struct ExpectedBlock {
  static constexpr std::int32_t kAllRanks = -1;  // value of `from` for a reduction of all ranks' inputs
  std::int32_t from = kAllRanks;
  std::uint64_t input_at = 0;
  std::uint64_t output_at = 0;
  std::uint64_t count = 0;

  bool operator==(const ExpectedBlock&) const = default;
};

// One rank's part of a call. Positions and lengths are in elements.
struct RankCall {
  std::uint64_t count = 0;                 // the argument `count` of the call; a v-variant may ignore it
  std::vector<std::size_t> input_counts;   // as in CollectiveCall, for v-variants; empty if not used
  std::vector<std::size_t> output_counts;  // as in CollectiveCall, for v-variants; empty if not used
  std::uint64_t input_elements = 0;        // 0: this rank has no input, or an empty one, and passes null
  std::uint64_t output_elements = 0;
  std::uint64_t in_place_input_at = 0;   // start of the input in the common buffer of an in-place call
  std::uint64_t in_place_output_at = 0;  // start of the output in the common buffer of an in-place call
  std::vector<ExpectedBlock> expected;   // the whole output, in order
};

// Returns the part of `rank` in a call of the operation. `elements` is a result of message_elements(). `root` is used
// only if has_root() is true.
RankCall make_rank_call(const PerfCollective& collective, std::int32_t rank, std::int32_t ranks, std::int32_t root,
                        std::uint64_t elements);

// The lengths of the `parts` blocks of a v-variant, in elements; their sum is `total`. Apart from rounding, later
// blocks are longer: block r has about 2 (r + 1) / (parts + 1) times the mean length.
std::vector<std::size_t> unequal_counts(std::uint64_t total, std::int32_t parts);

}  // namespace tutti::tool
