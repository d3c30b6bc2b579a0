// The race detection of the verifier: vector clocks over the channels of all ranks. Internal to this folder.
// docs/verifier.md explains the rules. The caller runs the plan in any order in which its steps can run, and
// reports each step and each call boundary to this class. The happens-before relation does not depend on which
// order that is.
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

// The window rules (plan/windows.h) that are possible for each message of a tile, as bits.
enum MessageRule : std::uint8_t { kMayPublish = 1, kMayPush = 2 };
std::vector<std::uint8_t> message_rules(const Wiring& wiring, const VerifyOptions& options);

// The number of memory locations of one rank, and the index of one of them: first the outputs and inputs of every
// tile, then scratch. An input that shares memory with an output has the output's location.
struct TileIndex {
  std::uint64_t tile = 0;
  std::uint32_t tiles = 1;
};
std::size_t location_count(const PlanShape& shape, std::uint32_t rank, std::uint32_t tiles);
std::size_t location_of(const PlanShape& shape, bool in_place, std::uint32_t rank, const Slice& slice, TileIndex at);

// It has 41 methods and members: the clocks of threads, messages and locations, and one method for each type of access.
class Races {
 public:
  // `slots` is the number of messages that a connection holds. Keeps references to `wiring` and `rules`. Errors:
  // kUnsupported if the clocks would take too much memory.
  static Result<Races> create(const Wiring& wiring, std::span<const std::uint8_t> rules, const VerifyOptions& options,
                              std::uint32_t slots);

  // Reports that the user may write all of the rank's memory: before the first call, between two calls, and after
  // the last.
  std::optional<Error> between_calls(std::uint32_t rank);
  // Reports one step. Its messages are the next ones of their connections.
  std::optional<Error> step(std::uint32_t thread, std::uint32_t step, std::uint64_t tile);

  std::uint64_t checks() const { return checks_; }

 private:
  enum class AccessType : std::uint8_t { kUser, kRead, kWrite, kPublishedRead, kPush };
  struct Access {
    std::uint32_t thread = 0;
    std::uint32_t epoch = 0;  // 0: no access
    std::uint32_t step = 0;
    AccessType kind = AccessType::kUser;
  };
  struct Location {
    Access write;
    Access read;  // the latest read; unused if `many` is not 0
    // 1 + index into read_sets_ if several reads are not ordered among each other; otherwise 0
    std::uint32_t many = 0;
    std::uint32_t writes = 0;
  };
  // A copy of a clock, shared by all messages and credits of one step.
  using Snapshot = std::uint32_t;  // 0: none; otherwise index into pool_
  // The messages of one connection. Message k is at index k % slots.
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

  std::vector<std::uint32_t> clocks_;        // thread x thread
  std::vector<std::uint32_t> begin_clocks_;  // rank x thread: the clock with which the rank entered its call
  // rank x thread: the clocks of the receivers of its published messages, joined
  std::vector<std::uint32_t> drain_clocks_;
  std::vector<std::vector<std::uint32_t>> pool_;  // the snapshots; index 0 is unused
  std::vector<std::uint32_t> uses_;
  std::vector<Snapshot> free_;

  std::vector<Queue> queues_;
  std::vector<Snapshot> messages_;  // connection x slots: the clock of the step that sent the message
  // connection x slots: the number of writes to the published location at the time of the publish
  std::vector<std::uint32_t> published_;
  std::vector<Snapshot> credits_;  // connection x slots: the clock of the receive that freed the slot
  // (thread, step) that is named by an After -> its snapshot, indexed by tile
  std::unordered_map<std::uint64_t, std::vector<Snapshot>> awaited_;

  std::vector<std::size_t> first_location_;  // indexed by rank
  std::vector<Location> locations_;
  std::vector<std::vector<Access>> read_sets_;
  std::uint64_t checks_ = 0;
};

}  // namespace tutti
