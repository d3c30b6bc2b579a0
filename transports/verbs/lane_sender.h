// LaneSender: the sending direction of one VerbsLane. It counts credits, and writes messages into the slots of the
// peer or directly into the output that the peer advertises. Use it in the thread that drives progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/call_tag.h"
#include "transports/verbs/advertised_outputs.h"
#include "transports/verbs/lane_memory.h"
#include "transports/verbs/lane_receiver.h"
#include "transports/verbs/lane_state.h"
#include "transports/verbs/queue_pairs.h"

namespace tutti {

// Minimum length, in bytes, of a direct message, which is written directly into an advertised output. A shorter message
// is faster if it is written into a slot and copied from there, because a direct message needs a second write for its
// header.
inline constexpr std::uint64_t kVerbsMinDirectBytes = 32 * 1024;
// Maximum length of a direct message, in bytes, unless a slot is longer. At this length the cost per message is already
// negligible, and a longer message would delay the revocation of an output.
inline constexpr std::uint64_t kVerbsMaxDirectBytes = 4 << 20;

class LaneSender {
 public:
  // All arguments must outlive this object.
  LaneSender(const VerbsLaneOptions& options, LaneState& state, const LaneMemory& memory, QueuePairs& pairs,
             LaneReceiver& receiver, const ReceiveTargets& targets)
      : options_(options), state_(state), memory_(memory), pairs_(pairs), receiver_(receiver), targets_(targets) {}

  // True if a message can be sent now. Call slot(), send(), send_pinned() and send_aimed() only if it is true.
  bool may_send() const {
    return state_.is_connected() && sent_ - peer_released_ < options_.slots && pairs_.has_capacity() &&
           state_.broken().empty();
  }
  std::byte* slot() const { return memory_.send_slot(sent_) + sizeof(LaneHeader); }
  void send(std::uint64_t bytes, const CallTag& tag);  // sends the first `bytes` bytes of slot()
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes, const CallTag& tag);
  // Directs the next message to `offset` in the output that the peer advertises for `call`. If that message turns out
  // to be shorter than kVerbsMinDirectBytes, or does not fit into the output, it goes into a slot all the same. Returns
  // false if the peer does not advertise an output of `output_bytes` bytes (any more), if the descriptor of the output
  // has not arrived yet, or if `offset` is greater than `output_bytes`.
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset);
  // Call it after aim() has returned true. See SendConnection::send_aimed().
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag);

  // note_released() and note_released_report() record how many messages the peer has released. The first takes the
  // counter from a header of the peer, and the second from the immediate data of a report.
  void note_released(std::uint32_t released);
  void note_released_report(std::uint32_t immediate);

 private:
  using PairRegistrations = ReceiveTargets::PairRegistrations;
  struct Payload {
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    // registrations of `data` for each queue pair; null if the data is in the send slot of this message
    const PairRegistrations* registrations = nullptr;
    // request a completion from the NIC, because a caller will soon wait for it
    bool signaled = false;
  };
  std::optional<PairRegistrations> register_source(std::span<const std::byte> whole, const std::byte* data,
                                                   std::uint64_t bytes);
  void send_message(const Payload& payload, const CallTag& tag);
  void add_released(std::uint64_t more);

  const VerbsLaneOptions& options_;  // belongs to the VerbsLane, like the five references below
  LaneState& state_;
  const LaneMemory& memory_;
  QueuePairs& pairs_;
  LaneReceiver& receiver_;
  const ReceiveTargets& targets_;
  std::uint64_t sent_ = 0;           // messages sent so far
  std::uint64_t peer_released_ = 0;  // messages that the peer has released so far, as far as this rank knows
  std::size_t next_pair_ = 0;        // the queue pair for the next message that is sent as a single part
  // The offset in the output of the peer that aim() has set for the next message.
  std::optional<std::uint64_t> next_offset_;
};

}  // namespace tutti
