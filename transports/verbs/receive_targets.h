// ReceiveTargets: receive buffers that one rank advertises to another, so that the NIC of the sender writes messages
// directly to their final positions in the output of a call, and not into a slot. One object belongs to one lane. It
// contains the buffer that this rank advertises now, and the one that the peer advertises. It only does the
// bookkeeping: AdvertisedOutputs registers the memory and sends the descriptors. A value type.
//
// Protocol: when the receiver enters a call (for a point-to-point receive: after its first message has arrived), it
// writes a descriptor of its output into the memory of the sender. The sender's memory has space for kDescriptors
// descriptors, which are used in turn. A descriptor is overwritten only after a header from the sender has confirmed
// that the sender has read it. A sender that has not yet received the descriptor of its call uses slots, so it never
// waits for a descriptor. A receiver that gives a call up revokes its descriptor. The acknowledgement of the sender
// arrives after everything that the sender has in transit, because it follows on the same queue pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/call_tag.h"
#include "transports/verbs/registration_cache.h"

namespace tutti {

class ReceiveTargets {
 public:
  static constexpr std::uint32_t kDescriptors = 4;
  // Lanes with more queue pairs than this advertise nothing.
  static constexpr std::size_t kMaxQueuePairs = 32;
  // Used in place of an offset: the message is in its slot.
  static constexpr std::uint64_t kInSlot = ~std::uint64_t{0};
  using PairRegistrations =
      std::vector<std::shared_ptr<RegistrationCache::Registration>>;  // one registration for each queue pair

  struct Descriptor {  // describes an advertised output; an RDMA write copies it into the memory of the peer
    CallTag call;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;  // number of the advertisement on this lane, from 1; the lower 32 bits
    std::uint32_t unused = 0;
    std::array<std::uint32_t, kMaxQueuePairs> keys{};  // remote key of the buffer for each queue pair
  };
  static_assert(sizeof(Descriptor) == 184);

  // The functions from here to note_received() are about outputs of this rank. can_advertise() returns true if the
  // output of `call` is not advertised yet and a descriptor is free for it.
  bool can_advertise(const CallTag& call) const;
  // Advertises `output`, and returns the descriptor to send. `registrations` permits peers to write
  // to `output`, and is kept until withdraw(). Replaces the previous advertisement.
  Descriptor advertise(const CallTag& call, std::span<std::byte> output, PairRegistrations registrations);
  // True if [offset, offset + bytes) is in the output that this rank advertises for `call`. A message of the call
  // may then claim to be there.
  bool is_within(const CallTag& call, std::uint64_t offset, std::uint64_t bytes) const;
  PairRegistrations withdraw();  // ends the advertisement; returns its registrations
  // True if this rank advertises an output.
  bool is_advertising() const { return advertised_.has_value(); }
  // Starts to revoke the advertised output. Returns its number, for the message to the peer. Returns nothing if
  // nothing is advertised, or if it is already being revoked.
  std::optional<std::uint16_t> revoke();
  // Records that the peer has acknowledged the revocation of `number` on one queue pair.
  void note_acknowledgement(std::uint16_t number);
  // True if `ack_count` acknowledgements have arrived, one for each queue pair, or if nothing is advertised.
  bool is_revoked(std::size_t ack_count) const { return !advertised_ || advertised_->ack_count >= ack_count; }
  // Records that, according to a header of the peer, the peer has received `seen` descriptors so far. Returns false if
  // this rank has not advertised that many, which a correct peer never claims.
  bool note_received(std::uint32_t seen);

  // The functions from here on are about outputs of the peer. take() records a descriptor that the peer has written.
  // Returns false if its number is not the next one, which a correct peer never causes. The address and the keys in it
  // are not checked here: the NIC of the peer refuses access to memory that is not registered.
  bool take(const Descriptor& entry);
  // The output of the peer for `call` if it is exactly `output_bytes` long. Null if the peer has not advertised such
  // an output, or if the descriptor has not arrived yet.
  const Descriptor* find(const CallTag& call, std::uint64_t output_bytes) const;
  // Forgets the peer's descriptor with this number (the lower 16 bits), because the peer has revoked it.
  void forget(std::uint16_t number);
  const Descriptor& peer_descriptor() const { return peer_descriptor_; }  // the peer's last descriptor; number 0: none
  std::uint32_t seen() const { return received_count_; }

 private:
  struct Advertised {
    CallTag call;
    std::uint64_t bytes = 0;
    PairRegistrations registrations;
    std::uint32_t number = 0;
    bool revoking = false;
    std::size_t ack_count = 0;  // acknowledgements of the revocation, one for each queue pair
  };
  std::optional<Advertised> advertised_;
  std::uint32_t advertised_count_ = 0;  // descriptors that this rank has advertised so far; lower 32 bits
  std::uint32_t seen_by_peer_ = 0;      // how many of this rank's descriptors the peer has received, by its headers
  Descriptor peer_descriptor_;          // the last descriptor of the peer; number 0: none
  std::uint32_t received_count_ = 0;    // descriptors of the peer that have arrived so far
};

}  // namespace tutti
