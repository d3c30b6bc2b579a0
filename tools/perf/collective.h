// What `tutti perf` can measure, and one rank's side of a call of each: how long its buffers are, where one lies in the
// other in place, and whose elements must come out where. docs/run.md has the same as a table. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {

struct PerfCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // kSendReceive: each rank to the next, and from the one before
  bool variable = false;                             // the v-variant
  bool ping_pong = false;  // of kSendReceive: each even rank to the next one, which answers with as much
  bool one_way = false;    // likewise, and the next one only receives

  bool operator==(const PerfCollective&) const = default;
};

// "all_reduce", "all_gather_v", "send_recv", "ping_pong", "one_way".
std::string name_of(const PerfCollective& collective);
std::optional<PerfCollective> parse_perf_collective(std::string_view name);
std::vector<PerfCollective> perf_collectives();

bool adds(const PerfCollective& collective);  // has an operation
// Messages that follow each other in one call, which is what a time is divided by: a ping-pong's two, else 1.
int messages_in_turn(const PerfCollective& collective);
// Of a ping-pong, and one way: whom `rank` plays with; -1: the last of an odd number has nobody.
std::int32_t partner_of(std::int32_t rank, std::int32_t ranks);
bool has_root(const PerfCollective& collective);
bool has_buffers(const PerfCollective& collective);   // all but the barrier
bool has_in_place(const PerfCollective& collective);  // some rank's input may lie in its output, or the other way round
// Sends and receives for each pair of ranks, without a plan: --algorithm has nothing to choose but kDirect.
bool is_exchange(const PerfCollective& collective);

// busbw / algbw, as nccl-tests define it for the same size: the share of the message that must cross each rank's link,
// or the root's.
double busbw_factor(const PerfCollective& collective, std::int32_t ranks);

// The message nearest to `bytes` from below, in elements: the larger of the buffers of a call. At least one element, or
// one in each block where blocks are equal. 0 for a barrier.
std::uint64_t message_elements(const PerfCollective& collective, std::int32_t ranks, std::uint64_t bytes,
                               std::size_t element_bytes);

// The `count` that stands in tables: elements of one block, or of all blocks together where they differ.
std::uint64_t shown_count(const PerfCollective& collective, std::int32_t ranks, std::uint64_t elements);

// Elements that stand one after the other in an output, and in the input of the rank that they come from.
struct Piece {
  static constexpr std::int32_t kAllRanks = -1;  // reduced over all ranks' inputs
  std::int32_t from = kAllRanks;
  std::uint64_t input_at = 0;
  std::uint64_t output_at = 0;
  std::uint64_t count = 0;

  bool operator==(const Piece&) const = default;
};

struct RankCall {
  std::uint64_t count = 0;                 // as in CollectiveCall
  std::vector<std::size_t> input_counts;   // v-variants, where the call takes them
  std::vector<std::size_t> output_counts;  // likewise
  std::uint64_t input_elements = 0;        // 0: this rank has no input, and passes null
  std::uint64_t output_elements = 0;
  std::uint64_t in_place_input_at = 0;   // in place, both lie in one buffer: where the input starts
  std::uint64_t in_place_output_at = 0;  // and where the output does
  std::vector<Piece> expected;           // all of the output, in its order
};

// `elements`: from message_elements(). `root` counts where there is one.
RankCall make_rank_call(const PerfCollective& collective, std::int32_t rank, std::int32_t ranks, std::int32_t root,
                        std::uint64_t elements);

// The lengths of the v-variants' blocks: block r has about 2 (r + 1) / (parts + 1) of the mean; all together `total`.
std::vector<std::size_t> unequal_counts(std::uint64_t total, std::int32_t parts);

}  // namespace tutti::tool
