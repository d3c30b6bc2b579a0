#include "transports/verbs/landings.h"

#include <utility>

namespace tutti {

bool Landings::may_show(const CallTag& call) const {
  return made_ - seen_by_peer_ < kEntries && !(own_ && own_->call == call);
}

Landings::Entry Landings::show(const CallTag& call, std::span<std::byte> output, Held held) {
  Entry entry{.call = call,
              .address = reinterpret_cast<std::uintptr_t>(output.data()),
              .bytes = output.size(),
              .number = ++made_};
  for (std::size_t i = 0; i < held.size(); ++i) entry.keys[i] = held[i]->key().remote;
  own_ = Own{.call = call, .bytes = output.size(), .held = std::move(held), .number = made_};
  return entry;
}

bool Landings::shown(const CallTag& call, std::uint64_t offset, std::uint64_t bytes) const {
  return own_ && own_->call == call && offset <= own_->bytes && bytes <= own_->bytes - offset;
}

Landings::Held Landings::hide() {
  Held held = own_ ? std::move(own_->held) : Held{};
  own_.reset();
  return held;
}

std::optional<std::uint16_t> Landings::recall() {
  if (!own_ || std::exchange(own_->asked_back, true)) return std::nullopt;
  return static_cast<std::uint16_t>(own_->number);
}

void Landings::note_answer(std::uint16_t number) {
  if (own_ && static_cast<std::uint16_t>(own_->number) == number) ++own_->answers;
}

void Landings::forget(std::uint16_t number) {
  if (static_cast<std::uint16_t>(peers_.number) == number) peers_ = {};
}

// Of headers that come out of order, by several queue pairs, the latest counts; more than all has nobody seen.
void Landings::note_seen(std::uint32_t seen) {
  if (made_ - seen < made_ - seen_by_peer_) seen_by_peer_ = seen;
}

bool Landings::take(const Entry& entry) {
  if (entry.number != seen_ + 1) return false;
  ++seen_;
  peers_ = entry;
  return true;
}

const Landings::Entry* Landings::find(const CallTag& call, std::uint64_t output_bytes) const {
  return peers_.number != 0 && peers_.call == call && peers_.bytes == output_bytes ? &peers_ : nullptr;
}

}  // namespace tutti
