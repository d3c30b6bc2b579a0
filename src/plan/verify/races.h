// The race detection of the verifier, with vector clocks over the channels of all ranks. Internal to this folder.
// docs/verifier.md explains the rules. The caller (Run in run.h) runs the plan in any order in which its steps can
// run, and reports each step and each boundary between calls to class Races. The happens-before relation between
// steps, and so the result, does not depend on the order that the caller chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/verify/structure.h"
#include "plan/verify/verify.h"
#include "tutti/result.h"

namespace tutti {

// message_rules() returns, for each message of a tile (indexed as Wiring::sender_step), the bits of the window
// rules (plan/windows.h) that its steps allow: kMayPublish, kMayPush, both, or 0 (only through a slot). All are 0
// if options.windows is false, or if options.in_place is true and the plan's PlanShape::windows_in_place is false.
enum MessageRule : std::uint8_t { kMayPublish = 1, kMayPush = 2 };
std::vector<std::uint8_t> message_rules(const Wiring& wiring, const VerifyOptions& options);

// A location is a chunk of memory of one rank: one chunk of output or input in one tile, or one chunk of scratch, which
// all tiles share. location_count() is the number of locations of a rank, and location_of() is the index of one of
// them: first the outputs of all tiles, then the inputs of all tiles, then scratch. In an in-place call, an input chunk
// that shares memory with an output chunk has that output's location. TileIndex is the number of a tile, and the number
// of tiles of the call.
struct TileIndex {
  std::uint64_t tile = 0;
  std::uint32_t tiles = 1;
};
std::size_t location_count(const PlanShape& shape, std::uint32_t rank, std::uint32_t tiles);
std::size_t location_of(const PlanShape& shape, bool in_place, std::uint32_t rank, const Slice& slice, TileIndex at);

// The detector. A thread is one channel of one rank (structure.h). The class has more than 40 methods and members,
// because it keeps the clocks of threads, messages and locations, and checks accesses of five types (AccessType).
class Races {
 public:
  // `slots` is the number of messages that a connection can hold. `rules` is the result of message_rules(). The
  // object keeps references to `wiring` and `rules`. Errors: kUnsupported if the clocks would need more than 2
  // GiB.
  static Result<Races> create(const Wiring& wiring, std::span<const std::uint8_t> rules, const VerifyOptions& options,
                              std::uint32_t slots);

  // The caller calls this before a rank's first call, between two calls, and after its last one: at these times
  // the user may write all of the rank's input and output. Returns an error if an access of the plan is not
  // ordered with such writes.
  std::optional<Error> between_calls(std::uint32_t rank);
  // The caller calls this for each step that runs. The messages of the step are the next ones of their
  // connections. Returns an error if an access of the step races with an earlier access, or if the clocks need too
  // much memory.
  std::optional<Error> step(std::uint32_t thread, std::uint32_t step, std::uint64_t tile);

  std::uint64_t checks() const { return checks_; }

 private:
  enum class AccessType : std::uint8_t { kUser, kRead, kWrite, kPublishedRead, kPush };
  struct Access {
    std::uint32_t thread = 0;
    std::uint32_t epoch = 0;  // value of the thread's own clock entry at this access; 0: there was no access
    std::uint32_t step = 0;
    AccessType kind = AccessType::kUser;
  };
  struct Location {
    Access write;
    Access read;  // the latest read since `write`; unused if `many` is not 0
    // 0 as long as the reads between two writes were always ordered among each other. Afterwards: 1 + index in
    // read_sets_ of the list of the latest reads since `write`.
    std::uint32_t many = 0;
    std::uint32_t writes = 0;  // number of writes so far
  };
  // A copy of a thread's clock at the end of a step. All messages, credits and waits of the step share it.
  using Snapshot = std::uint32_t;  // 0: no snapshot; otherwise index into pool_
  // The number of messages of one connection that were sent and received so far. In the arrays below, message k is
  // in slot k % slots.
  struct Queue {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };

  Races(const Wiring& wiring, std::span<const std::uint8_t> rules, const VerifyOptions& options, std::uint32_t slots);

  std::span<std::uint32_t> clock(std::uint32_t thread) {
    return std::span(clocks_).subspan(std::size_t{thread} * width_, width_);
  }
  void join(std::span<std::uint32_t> into, Snapshot snapshot);
  Snapshot take_snapshot(std::uint32_t thread, std::uint32_t uses);
  void release(Snapshot snapshot);

  void join_order(std::uint32_t thread, const Step& step, std::uint32_t step_index, std::uint64_t tile);
  void join_after(std::uint32_t thread, std::uint32_t step_index, std::uint64_t tile);
  void join_push_grants(std::uint32_t thread, const Step& step);
  void hand_out(std::uint32_t thread, const Step& step, std::uint32_t step_index, std::uint64_t tile);
  std::optional<Error> check_local(std::uint32_t thread, const Step& step, const Access& access, std::uint64_t tile);
  std::optional<Error> check_remote(std::uint32_t thread, const Step& step, const Access& access, std::uint64_t tile);

  std::size_t location(std::uint32_t rank, const Slice& slice, std::uint64_t tile) const;
  std::optional<Error> read(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& access);
  std::optional<Error> write(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& access);
  bool ordered(const Access& earlier, std::uint32_t thread);
  std::optional<Error> check_unchanged(std::uint32_t rank, const Slice& slice, std::uint64_t tile, std::size_t slot,
                                       const Access& access) const;
  Error race(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& earlier,
             const Access& later) const;
  std::string describe(const Access& access) const;

  const Wiring* wiring_;
  std::span<const std::uint8_t> rules_;
  VerifyOptions options_;
  std::uint32_t slots_;
  std::uint32_t width_;  // number of threads; a thread is one channel of one rank (structure.h)

  std::vector<std::uint32_t> clocks_;        // thread x thread: the current clock of each thread
  std::vector<std::uint32_t> begin_clocks_;  // rank x thread: the clock with which the rank entered its current call
  // rank x thread: the joined clocks of the steps that have received published messages of this rank
  std::vector<std::uint32_t> drain_clocks_;
  std::vector<std::vector<std::uint32_t>> pool_;  // the snapshots; index 0 is unused
  std::vector<std::uint32_t> uses_;  // indexed by snapshot: number of messages, credits and waits that still need it
  std::vector<Snapshot> free_;       // snapshots that nothing needs any more

  std::vector<Queue> queues_;
  // connection x slots: clock of the step that sent the message; 0 if the slot is free
  std::vector<Snapshot> messages_;
  // connection x slots: if the message may be published, the value of Location::writes of its source when it was
  // sent
  std::vector<std::uint32_t> published_;
  // connection x slots: clock of the step that freed the slot by a receive; 0 if there is none
  std::vector<Snapshot> credits_;
  // For each (thread, step) for which other channels wait (After): its latest snapshot for each tile, indexed by
  // tile.
  std::unordered_map<std::uint64_t, std::vector<Snapshot>> awaited_;

  std::vector<std::size_t> first_location_;  // indexed by rank: index in locations_ of its location 0
  std::vector<Location> locations_;
  std::vector<std::vector<Access>> read_sets_;
  std::uint64_t checks_ = 0;
};

}  // namespace tutti
