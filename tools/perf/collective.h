// The operations that `tutti perf` can measure, and one rank's part of a call of each: the lengths of its buffers, the
// positions of input and output in an in-place call, and the elements that must be in the output. docs/run.md has the
// same information as a table. All functions are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {

// An operation that can be measured.
struct PerfCollective {
  // With kSendReceive, each rank sends to the next rank and receives from the previous one.
  CollectiveKind kind = CollectiveKind::kAllReduce;
  bool variable = false;  // blocks have different lengths (the _v variant)
  // Only with kSendReceive: each even rank sends to the next rank, which answers with a message of the same length.
  bool ping_pong = false;
  // Only with kSendReceive: each even rank sends to the next rank, which only receives.
  bool one_way = false;

  bool operator==(const PerfCollective&) const = default;
};

// The name of an operation, for example "all_reduce", "all_gather_v", "send_recv", "ping_pong" or "one_way".
std::string name_of(const PerfCollective& collective);
std::optional<PerfCollective> parse_perf_collective(std::string_view name);
std::vector<PerfCollective> perf_collectives();

// Whether the operation reduces, so that it has a reduction operation (--op).
bool adds(const PerfCollective& collective);
// The number of messages that follow each other in one call, by which its time is divided: 2 for a ping-pong,
// otherwise 1.
int messages_in_turn(const PerfCollective& collective);
// The partner of `rank` in a ping-pong or one-way transfer. -1 for the last rank if the number of ranks is odd.
std::int32_t partner_of(std::int32_t rank, std::int32_t ranks);
bool has_root(const PerfCollective& collective);
bool has_buffers(const PerfCollective& collective);  // false only for the barrier
// Whether there is an in-place form: the input of some rank is part of its output, or the output is part of the input.
bool has_in_place(const PerfCollective& collective);
// Whether the operation consists of sends and receives between pairs of ranks, without a plan. --algorithm then allows
// only kDirect.
bool is_exchange(const PerfCollective& collective);

// The ratio busbw / algbw, as nccl-tests define it: the part of the message that must cross the link of each rank, or
// of the root.
double busbw_factor(const PerfCollective& collective, std::int32_t ranks);

// The largest message of at most `bytes` bytes, as a number of elements of the larger buffer of the call. At least one
// element, or one element for each block if blocks have equal lengths. 0 for a barrier.
std::uint64_t message_elements(const PerfCollective& collective, std::int32_t ranks, std::uint64_t bytes,
                               std::size_t element_bytes);

// The number in the column `count` of the tables: elements of one block, or of all blocks together if they differ.
std::uint64_t shown_count(const PerfCollective& collective, std::int32_t ranks, std::uint64_t elements);

// A contiguous part of an output, and the position of the same elements in the input of the rank from which they come.
struct ExpectedBlock {
  static constexpr std::int32_t kAllRanks = -1;  // the elements are a reduction of all ranks' inputs
  std::int32_t from = kAllRanks;
  std::uint64_t input_at = 0;
  std::uint64_t output_at = 0;
  std::uint64_t count = 0;

  bool operator==(const ExpectedBlock&) const = default;
};

// One rank's part of a call.
struct RankCall {
  std::uint64_t count = 0;                 // as in CollectiveCall
  std::vector<std::size_t> input_counts;   // for v-variants, if the call needs them
  std::vector<std::size_t> output_counts;  // for v-variants, if the call needs them
  std::uint64_t input_elements = 0;        // 0: this rank has no input and passes null
  std::uint64_t output_elements = 0;
  std::uint64_t in_place_input_at = 0;   // start of the input in the common buffer of an in-place call
  std::uint64_t in_place_output_at = 0;  // start of the output in that buffer
  std::vector<ExpectedBlock> expected;   // the whole output, in order
};

// `elements` is a result of message_elements(). `root` is used only if has_root().
RankCall make_rank_call(const PerfCollective& collective, std::int32_t rank, std::int32_t ranks, std::int32_t root,
                        std::uint64_t elements);

// The block lengths of v-variants. Block r has about 2 (r + 1) / (parts + 1) times the mean length. The sum is
// `total`.
std::vector<std::size_t> unequal_counts(std::uint64_t total, std::int32_t parts);

}  // namespace tutti::tool
