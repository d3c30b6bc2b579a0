#include "executor/peer_buffers.h"

#include <sched.h>

#include <cstring>

#include "executor/single_copy.h"

namespace tutti {

PeerBuffers::PeerBuffers(const Call& call, const WorkDivision& work, MailboxBoard& marks, Transport& transport,
                         const MachineChoices& choices, std::optional<BadMessage>& bad)
    : call_(call), work_(work), marks_(marks), transport_(transport), choices_(choices), bad_(bad) {
  inputs_.resize(marks.ranks());
  outputs_.resize(marks.ranks());
  cpus_.resize(marks.ranks());
}

void PeerBuffers::begin() { offered_ = needs_calls_ = fetches_ = to_payload_buffers_ = false; }

bool PeerBuffers::advertise() {
  const std::uint32_t rank = marks_.rank();
  MemoryAdvert advert{};
  const bool possible = work_.block_bytes() > 0 && !(replaces_input_in_place(work_.kind()) && call_.in_place);
  const bool usable =
      possible &&
      (!work_.input_is_used(rank) || show(call_.input_window, call_.input, advert.input_window, advert.input_offset)) &&
      (!work_.output_is_used(rank) ||
       show(call_.output_window, call_.output, advert.output_window, advert.output_offset));
  const bool direct = usable || (possible && work_.root_helps() && rank != work_.root());
  const auto is_own = [](std::uint32_t window) { return window != 0 && window != kInPayloadBuffer; };
  offered_ = usable && (is_own(advert.input_window) || is_own(advert.output_window));
  fetches_ = to_payload_buffers_ = usable && advert.output_window == kInPayloadBuffer;
  advert.by_plan = direct ? 0 : 1;
  advert.cpu = cpus_[rank] = work_.has_shares() ? sched_getcpu() : 0;
  static_assert(sizeof(MemoryAdvert) <= sizeof(MailboxMark::payload));
  marks_.open(work_.uses_payload_buffers());
  std::memcpy(marks_.mark(rank).payload.data(), &advert, sizeof advert);
  if (usable && advert.input_window == kInPayloadBuffer) {
    std::memcpy(marks_.long_payload_buffer(rank), call_.input, work_.input_bytes());
  }
  marks_.close();
  return direct;
}

bool PeerBuffers::show(const WindowRef& window, const std::byte* data, std::uint32_t& shown_window,
                       std::uint64_t& shown_offset) const {
  if (window.window != 0) {
    shown_window = window.window;
    shown_offset = window.offset;
    return true;
  }
  const Collective collective{.kind = work_.kind(), .ranks = marks_.ranks()};
  if (uses_attached_memory(collective, work_.block_bytes(), transport_.attachment(), choices_)) {
    shown_window = kAttached;
    shown_offset = reinterpret_cast<std::uintptr_t>(data);
    return true;
  }
  if (work_.uses_payload_buffers()) shown_window = kInPayloadBuffer;
  return work_.uses_payload_buffers();
}

PeerBuffers::PeerState PeerBuffers::look_up(std::uint32_t peer) {
  missing_ = 0;
  const MailboxBoard::MailboxState state = marks_.look(peer);
  if (state == MailboxBoard::MailboxState::kOtherCall) bad_ = BadMessage{.peer = peer, .tag = {}};
  if (state != MailboxBoard::MailboxState::kWritten) return PeerState::kPending;
  MemoryAdvert advert;
  std::memcpy(&advert, marks_.mark(peer).payload.data(), sizeof advert);
  if (!marks_.holds(peer)) return PeerState::kPending;
  if (advert.by_plan != 0) return PeerState::kRunsPlan;
  inputs_[peer] = outputs_[peer] = {};
  cpus_[peer] = advert.cpu;
  const bool without_help = work_.root_helps() && peer != work_.root();
  if (without_help && advert.input_window == 0 && advert.output_window == 0) return PeerState::kFound;
  const WindowRef input{advert.input_window, advert.input_offset};
  const WindowRef output{advert.output_window, advert.output_offset};
  const bool found = (!work_.input_is_used(peer) || find(peer, 0, input, work_.input_bytes(), inputs_[peer])) &&
                     (!work_.output_is_used(peer) || find(peer, 1, output, work_.output_bytes(), outputs_[peer]));
  return found ? PeerState::kFound : PeerState::kPending;
}

bool PeerBuffers::find(std::uint32_t peer, std::size_t which, const WindowRef& advert, std::uint64_t bytes,
                       Location& location) {
  const auto corrupt = [&] {
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kCorrupt, .tag = {}};
    return false;
  };
  if (advert.window == 0 || advert.offset % call_.element_bytes != 0) return corrupt();
  if (advert.window == kInPayloadBuffer) {
    if (!work_.uses_payload_buffers()) return corrupt();
    // For an output there is no address, because the peer copies its output itself.
    location = {.data = which == 0 ? marks_.long_payload_buffer(peer) : nullptr};
    to_payload_buffers_ |= which != 0;
    return true;
  }
  if (advert.window != kAttached) {
    missing_ = advert.window;
    const auto data = transport_.peer_memory(peer, which, advert, bytes);
    if (!data) return false;
    location = {.data = *data};
    return *data != nullptr || corrupt();
  }
  if (transport_.attachment() == Attachment::kNone || advert.offset == 0) return corrupt();
  const bool pointer = transport_.attachment() == Attachment::kPointers;
  location = {
      .data = pointer ? reinterpret_cast<std::byte*>(advert.offset) : nullptr,  // NOLINT: a thread of this process
      .address = advert.offset};
  needs_calls_ |= !pointer;
  return true;
}

void PeerBuffers::report_loss(std::uint32_t peer) {
  auto loss = bad_ || missing_ == 0 ? std::nullopt : transport_.take_memory_loss(peer, missing_);
  if (loss) bad_ = BadMessage{.peer = peer, .kind = Arrival::kUnmapped, .tag = {}, .loss = *std::move(loss)};
}

void PeerBuffers::add_own() {
  inputs_[marks_.rank()] = {.data = const_cast<std::byte*>(call_.input)};  // NOLINT: the input is only read
  outputs_[marks_.rank()] = {.data = call_.output};
}

}  // namespace tutti
