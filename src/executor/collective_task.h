// CollectiveTask: one call under way, as the engine drives it. Two kinds: PlanExecution (bytes.h) runs a plan over
// connections, InlineCollective (mailbox.h) shows short values to all ranks at once. Belongs to the driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/call_tag.h"
#include "plan/layout.h"
#include "transports/transport.h"
#include "tutti/types.h"
#include "tutti/user_reduction.h"

namespace tutti {

// One call's arguments, checked.
struct Call {
  CallTag tag;
  DataType type = DataType::kFloat32;  // with `user`: not looked at
  std::size_t element_bytes = 4;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  UserReduction user;  // user.combine is null but for a reduction of the caller's own
  Lengths lengths;
  bool in_place = false;  // some of input and output is the same memory
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  WindowRef input_window;  // where `input` lies in registered memory, if it does
  WindowRef output_window;
};

// What a peer sent that it must not have sent.
struct BadMessage {
  std::uint32_t peer = 0;             // kUnreachable: whose memory it is, perhaps this rank's own
  Arrival kind = Arrival::kMismatch;  // or kCorrupt, kDamaged, kUnmapped, kWithdrawn, kUnreachable, kForbidden
  CallTag tag;                        // for kMismatch: the peer's; sequence 0: not known
  std::string damage{};               // for kDamaged: the connection's words
  MemoryLoss loss{};                  // for kUnmapped: of the peer's memory
};

class CollectiveTask {
 public:
  virtual ~CollectiveTask() = default;
  // The next call. What it points to stays as it is until the call is done or given up.
  virtual void start(const Call& call) = 0;
  // The output that peers may store to in that call.
  virtual WindowRef offered(const Call& call) const = 0;
  // True when peers that share no memory with this rank may write to its output of the call that was started last.
  virtual bool shows_output() const { return false; }
  // Asks `peer` to write there no more; true when it has agreed, or was never shown anything. Of a call to be given up.
  virtual bool recall_output(std::uint32_t peer) { return static_cast<void>(peer), true; }
  // They may no more. `gave_up`: what they have to write may be missing.
  virtual void hide_output(bool gave_up) { static_cast<void>(gave_up); }
  // Runs what can run now; true if anything did. Stops at the first bad message.
  virtual bool progress() = 0;
  virtual bool done() = 0;
  virtual const std::optional<BadMessage>& bad_message() const = 0;
  // What it waits for, in words.
  virtual std::string waits_for() = 0;
  // The ranks among that, each once, ascending.
  virtual std::vector<std::uint32_t> waits_for_ranks() = 0;
};

}  // namespace tutti
