// CollectiveTask: one collective in progress, as the engine drives it. There are three types: PlanExecution runs a
// plan over connections, InlineCollective passes short values through shared-memory mailboxes, and
// SingleCopyCollective lets ranks read and write each other's memory. Only the engine's driver uses a task.
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

// The checked arguments of one call.
struct Call {
  CallTag tag;
  DataType type = DataType::kFloat32;  // ignored if `user` is set
  std::size_t element_bytes = 4;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  UserReduction user;  // user.combine is non-null only for a reduction of the caller's own
  Lengths lengths;
  bool in_place = false;  // input and output overlap
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  WindowRef input_window;  // location of `input` in registered memory; window 0 if it is not registered
  WindowRef output_window;
};

// A message or an access to memory that has failed, so that the call cannot go on.
struct BadMessage {
  std::uint32_t peer = 0;  // the sender; for kUnreachable the owner of the memory, perhaps this rank itself
  // The failure: kMismatch, kCorrupt, kDamaged, kUnmapped, kWithdrawn, kUnreachable or kForbidden.
  Arrival kind = Arrival::kMismatch;
  CallTag tag;           // for kMismatch: the tag of the peer's call; sequence 0 if it is not known
  std::string damage{};  // for kDamaged: a description by the connection
  MemoryLoss loss{};     // for kUnmapped: why the peer's memory could not be mapped
};

class CollectiveTask {
 public:
  virtual ~CollectiveTask() = default;
  // Starts the next call. The memory that `call` points to must stay valid until the call is done or given up.
  virtual void start(const Call& call) = 0;
  // The output that peers on this machine may store to in that call; window 0 if there is none.
  virtual WindowRef offered(const Call& call) const = 0;
  // True if peers that share no memory with this rank may write to the output of the current call.
  virtual bool shows_output() const { return false; }
  // Used before a call is given up: asks `peer` to stop writing to the output. Returns true when the peer has
  // agreed, or if the output was never advertised to it.
  virtual bool revoke_output(std::uint32_t peer) { return static_cast<void>(peer), true; }
  // Withdraws the output, so that peers may not write to it any more. `gave_up`: the call has failed, and messages
  // to the output may be missing.
  virtual void withdraw_output(bool gave_up) { static_cast<void>(gave_up); }
  // Makes as much progress as is possible without waiting. Returns true if there was any. Stops at the first bad
  // message.
  virtual bool progress() = 0;
  virtual bool done() = 0;
  virtual const std::optional<BadMessage>& bad_message() const = 0;
  // Describes what the task waits for, for error messages.
  virtual std::string waits_for() = 0;
  // The ranks that the task waits for, each once, ascending.
  virtual std::vector<std::uint32_t> waits_for_ranks() = 0;
};

}  // namespace tutti
