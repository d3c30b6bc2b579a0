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
  DataType type = DataType::kFloat32;  // ignored if user.combine is not null
  std::size_t element_bytes = 4;
  ReduceOp op = ReduceOp::kSum;
  Scale scale;
  std::uint64_t label = 0;  // CallOptions::label
  UserReduction user;       // user.combine is null unless the user passed a reduction function
  Lengths lengths;
  bool in_place = false;  // the input and the output overlap
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // Location of `input` and of `output` in registered memory. Window 0: the buffer is not registered, or peers must not
  // use its registration.
  WindowRef input_window;
  WindowRef output_window;
};

// Describes a message that does not fit the call, or a failed access to memory of a peer. The call cannot go on.
struct BadMessage {
  // The sender of the message or the owner of the memory. For kUnreachable this can be this rank itself.
  std::uint32_t peer = 0;
  // The failure: kMismatch, kCorrupt, kDamaged, kUnmapped, kWithdrawn, kUnreachable or kForbidden.
  Arrival kind = Arrival::kMismatch;
  CallTag tag;           // for kMismatch: the peer's tag; sequence 0 if it is unknown
  std::string damage{};  // for kDamaged: a description by the connection
  MemoryLoss loss{};     // for kUnmapped: the reason why the peer's memory could not be mapped
};

class CollectiveTask {
 public:
  virtual ~CollectiveTask() = default;
  // Starts the next call. The buffers to which `call` points must stay valid until the call is done or given up.
  virtual void start(const Call& call) = 0;
  // The output of `call` that this rank offers to peers that share memory with it, so that they may store into it.
  // Window 0 if this rank offers none.
  virtual WindowRef offered(const Call& call) const = 0;
  // True if this rank has advertised the output of the current call to peers that it reaches by a network, so that the
  // network may write into it.
  virtual bool shows_output() const { return false; }
  // Call this repeatedly before a call is given up: asks `peer` to stop writing to the output over the network. Returns
  // true when the peer has confirmed that, if the output was not advertised to it, or if its connection has broken.
  virtual bool revoke_output(std::uint32_t peer) { return static_cast<void>(peer), true; }
  // Ends the advertisement of the output; see ReceiveConnection::withdraw_output(). `gave_up`: true if the call has
  // failed, so that messages to the output may be missing.
  virtual void withdraw_output(bool gave_up) { static_cast<void>(gave_up); }
  // Makes some progress, without waiting. Returns true if there was any. Stops at the first bad message, which
  // bad_message() then describes.
  virtual bool progress() = 0;
  virtual bool done() = 0;
  virtual const std::optional<BadMessage>& bad_message() const = 0;
  // Describes the events for which the task waits, for error messages.
  virtual std::string waits_for() = 0;
  // The ranks for which the task waits, each once, in ascending order. Can be empty, for example if the task only waits
  // until its own messages have been sent or read.
  virtual std::vector<std::uint32_t> waits_for_ranks() = 0;
};

}  // namespace tutti
