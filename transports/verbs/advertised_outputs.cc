#include "transports/verbs/advertised_outputs.h"

#include <cstring>
#include <utility>

namespace tutti {

using Use = VerbsDevice::MemoryUse;

bool AdvertisedOutputs::advertise(const CallTag& call, std::span<std::byte> output) {
  if (!state_.works() || pairs_.size() > ReceiveTargets::kMaxQueuePairs) return false;
  if (!targets_.can_advertise(call) || !pairs_.has_capacity()) return false;
  // An output longer than a quarter of the registration cache is not advertised, because a few such outputs that are
  // used in turn would evict each other from the cache.
  if (output.size() > pairs_.most_registered_bytes(Use::kWrittenByPeers) / 4) return false;
  auto registrations = pairs_.register_memory(Use::kWrittenByPeers, output);
  if (!registrations) return false;
  withdraw(false);
  const ReceiveTargets::Descriptor entry = targets_.advertise(call, output, std::move(*registrations));
  const std::uint32_t index = entry.number % ReceiveTargets::kDescriptors;
  const std::uint64_t offset = memory_.descriptor_offset(index);
  std::memcpy(memory_.send_half() + offset, &entry, sizeof(entry));
  const GatherElement element{
      .data = memory_.send_half() + offset, .bytes = sizeof(entry), .key = pairs_.memory_key(0)};
  const RdmaWrite write{.elements = std::span(&element, 1),
                        .aim = pairs_.remote_memory(0, offset),
                        .immediate = LaneImmediate::kIsDescriptor | index};
  pairs_.post(0, std::span(&write, 1));
  return true;
}

bool AdvertisedOutputs::revoke() {
  if (!targets_.is_advertising() || !state_.works()) return true;
  pairs_.poll();
  if (targets_.is_revoked(pairs_.size())) return true;
  if (!pairs_.has_capacity()) return false;
  const auto number = targets_.revoke();
  if (number) {  // the revocation uses queue pair 0 like the descriptor, so it arrives after the descriptor
    pairs_.post_empty(0, LaneImmediate::kIsRevocation | *number);
  }
  return targets_.is_revoked(pairs_.size());
}

void AdvertisedOutputs::withdraw(bool gave_up) {
  const ReceiveTargets::PairRegistrations registrations = targets_.withdraw();
  if (gave_up) pairs_.forget(Use::kWrittenByPeers, registrations);
}

void AdvertisedOutputs::take_descriptor(std::uint32_t index) {
  ReceiveTargets::Descriptor entry;
  std::memcpy(&entry, memory_.receive_half() + memory_.descriptor_offset(index), sizeof(entry));
  if (!targets_.take(entry)) state_.set_corrupt();
}

void AdvertisedOutputs::note_revocation(std::uint16_t number) {
  targets_.forget(number);
  revoked_by_peer_ = number;
  acknowledge_revocation();
}

// Acknowledges on each queue pair, so that each acknowledgement arrives after everything that was written on that
// queue pair.
void AdvertisedOutputs::acknowledge_revocation() {
  if (!revoked_by_peer_ || !pairs_.has_capacity() || !state_.broken().empty()) return;
  const std::uint32_t number = *std::exchange(revoked_by_peer_, std::nullopt);
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    pairs_.post_empty(i, LaneImmediate::kIsAcknowledgement | number);
  }
}

}  // namespace tutti
