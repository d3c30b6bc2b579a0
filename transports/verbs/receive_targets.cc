#include "transports/verbs/receive_targets.h"

#include <utility>

namespace tutti {

bool ReceiveTargets::can_advertise(const CallTag& call) const {
  return advertised_count_ - seen_by_peer_ < kDescriptors && !(advertised_ && advertised_->call == call);
}

ReceiveTargets::Descriptor ReceiveTargets::advertise(const CallTag& call, std::span<std::byte> output,
                                                     PairRegistrations registrations) {
  Descriptor entry{.call = call,
                   .address = reinterpret_cast<std::uintptr_t>(output.data()),
                   .bytes = output.size(),
                   .number = ++advertised_count_};
  for (std::size_t i = 0; i < registrations.size(); ++i) entry.keys[i] = registrations[i]->key().remote;
  advertised_ = Advertised{
      .call = call, .bytes = output.size(), .registrations = std::move(registrations), .number = advertised_count_};
  return entry;
}

bool ReceiveTargets::is_within(const CallTag& call, std::uint64_t offset, std::uint64_t bytes) const {
  return advertised_ && advertised_->call == call && offset <= advertised_->bytes &&
         bytes <= advertised_->bytes - offset;
}

ReceiveTargets::PairRegistrations ReceiveTargets::withdraw() {
  PairRegistrations registrations = advertised_ ? std::move(advertised_->registrations) : PairRegistrations{};
  advertised_.reset();
  return registrations;
}

std::optional<std::uint16_t> ReceiveTargets::revoke() {
  if (!advertised_ || std::exchange(advertised_->revoking, true)) return std::nullopt;
  return static_cast<std::uint16_t>(advertised_->number);
}

void ReceiveTargets::note_acknowledgement(std::uint16_t number) {
  if (advertised_ && static_cast<std::uint16_t>(advertised_->number) == number) ++advertised_->ack_count;
}

void ReceiveTargets::forget(std::uint16_t number) {
  if (static_cast<std::uint16_t>(peer_descriptor_.number) == number) peer_descriptor_ = {};
}

// Headers on different queue pairs can arrive out of order, so the highest counter is kept. The counters wrap around. A
// header that is late is only a few messages late, so a difference in the upper half of the range means that `seen` is
// greater than `advertised_count_`.
bool ReceiveTargets::note_received(std::uint32_t seen) {
  constexpr std::uint32_t kMostLate = ~std::uint32_t{0} / 2;
  const std::uint32_t unseen = advertised_count_ - seen;
  if (unseen > kMostLate) return false;
  if (unseen < advertised_count_ - seen_by_peer_) seen_by_peer_ = seen;
  return true;
}

bool ReceiveTargets::take(const Descriptor& entry) {
  if (entry.number != received_count_ + 1) return false;
  ++received_count_;
  peer_descriptor_ = entry;
  return true;
}

const ReceiveTargets::Descriptor* ReceiveTargets::find(const CallTag& call, std::uint64_t output_bytes) const {
  return peer_descriptor_.number != 0 && peer_descriptor_.call == call && peer_descriptor_.bytes == output_bytes
             ? &peer_descriptor_
             : nullptr;
}

}  // namespace tutti
