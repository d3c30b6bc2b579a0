// AdvertisedOutputs: the protocol by which the two ends of a VerbsLane advertise outputs of calls, so that the peer
// writes messages directly into them. It registers the outputs, sends and receives the descriptors, and revokes
// them; ReceiveTargets does the bookkeeping. Use it in the thread that drives progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/call_tag.h"
#include "transports/verbs/lane_memory.h"
#include "transports/verbs/lane_state.h"
#include "transports/verbs/queue_pairs.h"
#include "transports/verbs/receive_targets.h"
#include "transports/verbs/wire.h"

namespace tutti {

class AdvertisedOutputs {
 public:
  // All arguments must outlive this object.
  AdvertisedOutputs(LaneState& state, const LaneMemory& memory, QueuePairs& pairs)
      : state_(state), memory_(memory), pairs_(pairs) {}

  // Advertises `output` of this rank, so that the peer can write messages of the call directly into it. Ends the
  // previous advertisement. Returns false, and does neither, if `output` cannot be advertised, for example because the
  // memory cannot be registered.
  bool advertise(const CallTag& call, std::span<std::byte> output);
  // Asks the peer to stop writing into the advertised output. Returns true once the peer has acknowledged on every
  // queue pair, which implies that all its earlier writes have arrived. Also returns true if nothing is advertised, or
  // if the lane has broken or was closed.
  bool revoke();
  // Ends the advertisement, because the call has ended. `gave_up`: the call was given up, so messages may be missing.
  // The registration of the output is then dropped from the cache. As soon as no other call uses that registration, no
  // NIC can write there any more.
  void withdraw(bool gave_up);
  // Checks a header from the peer: true if the payload is in its slot, or if its claimed position is within the output
  // that this rank advertises for the call.
  bool is_in_bounds(const LaneHeader& header) const {
    return header.output_offset == ReceiveTargets::kInSlot ||
           targets_.is_within(header.tag, header.output_offset, header.bytes);
  }
  // Records the number of descriptors that, according to a header of the peer, the peer has received. A number that is
  // too high makes the lane corrupt.
  void note_received(std::uint32_t seen) {
    if (!targets_.note_received(seen)) state_.set_corrupt();
  }
  void note_acknowledgement(std::uint16_t number) { targets_.note_acknowledgement(number); }

  // The advertised outputs of both ranks. The sender finds the output of the peer here.
  const ReceiveTargets& targets() const { return targets_; }
  // Records the descriptor with this index, which the peer has written into the receive half of the lane's memory.
  void take_descriptor(std::uint32_t index);
  // Records that the peer revokes its advertisement `number`, and acknowledges that as soon as possible.
  void note_revocation(std::uint16_t number);
  // Acknowledges a revocation by the peer, if one is not acknowledged yet and the queue pairs have space for it.
  void acknowledge_revocation();

 private:
  LaneState& state_;  // belongs to the VerbsLane, like the two references below
  const LaneMemory& memory_;
  QueuePairs& pairs_;
  ReceiveTargets targets_;  // outputs of both ranks
  // The number of an output that the peer has revoked, until this rank has acknowledged the revocation.
  std::optional<std::uint16_t> revoked_by_peer_;
};

}  // namespace tutti
