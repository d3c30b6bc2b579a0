// Exchange: sends and receives the messages of a group of transfers.
#include "executor/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr int kMessagesPerTurn = 16;    // messages of one transfer before the next transfer is tried
constexpr std::size_t kMostListed = 4;  // maximum number of transfers that waits_for() lists

}  // namespace

Status open(Transfer& transfer, Connections& connections) {
  if (transfer.direction == Direction::kSend) {
    auto connection = connections.send(transfer.peer, kPointToPointLane);
    if (!connection) return connection.error();
    transfer.send = *connection;
  } else {
    auto connection = connections.receive(transfer.peer, kPointToPointLane);
    if (!connection) return connection.error();
    transfer.receive = *connection;
  }
  return {};
}

Exchange::Exchange(std::vector<Transfer> transfers, std::span<const OwnCopy> own, Transport& transport,
                   PairNumbers& numbers, Purpose purpose)
    : transfers_(std::move(transfers)),
      states_(transfers_.size()),
      unfinished_(transfers_.size()),
      transport_(transport),
      numbers_(numbers),
      purpose_(purpose) {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    numbers_.begin(transfer.peer, transfer.direction, transfer.tag.sequence);
    states_[i].tag = transfer.tag;
    states_[i].bytes = transfer.bytes;
    states_[i].moves_seen = numbers_.moves(transfer.peer, transfer.direction);
  }
  for (const OwnCopy& copy : own) {
    if (copy.bytes > 0 && copy.from != copy.to) std::memmove(copy.to, copy.from, copy.bytes);
  }
}

// Sends the next message of a transfer and returns its length in bytes. If the receiver has advertised its buffer
// and the message is long enough, the network writes the message directly into that buffer, with as many bytes as
// it takes at once. Otherwise the message is sent as at most slot_bytes bytes from the user's buffer, which stays
// unchanged until the send has ended.
std::uint64_t Exchange::send_message(const Transfer& transfer, std::uint64_t moved) {
  const std::span<const std::byte> whole(transfer.data, transfer.bytes);
  const std::byte* const data = transfer.data + moved;
  const std::uint64_t left = transfer.bytes - moved;
  const std::uint64_t bytes = std::min(transport_.slot_bytes(), left);
  const bool aimed =
      bytes >= transfer.send->min_aimed_bytes() && transfer.send->aim(transfer.tag, transfer.bytes, moved);
  const std::uint64_t sent = aimed ? transfer.send->send_aimed(whole, data, left, transfer.tag) : 0;
  TUTTI_ASSERT(sent <= left);
  if (sent > 0) return sent;
  transfer.send->send_pinned(whole, data, bytes, transfer.tag);
  return bytes;
}

bool Exchange::send_next(Transfer& transfer, State& state) {
  // All messages were passed to the connection. The send ends when they have been handed over to the system or the
  // receiver.
  if (state.posted) {
    state.ended = transfer.send->handed_over();
    return state.ended;
  }
  if (!transfer.send->ready()) return false;
  state.moved += send_message(transfer, state.moved);
  state.begun = true;
  state.posted = state.moved == transfer.bytes;
  return true;
}

// Handles a transfer of the peer with other arguments than this receive. Records the mismatch. From now on, the
// messages are read with the tag and length that the peer gives, and dropped. Returns false if that is not
// possible, because the receive discards already or the length of the peer's transfer is invalid.
bool Exchange::discard(Transfer& transfer, State& state) {
  const CallTag theirs = transfer.receive->mismatched_tag();
  if (!bad_) {
    bad_transfer_ = &transfer;
    bad_ = BadMessage{.peer = transfer.peer, .kind = Arrival::kMismatch, .tag = theirs};
  }
  const std::size_t element_bytes = size_of(DataType{theirs.type});
  if (state.discards || element_bytes == 0 || theirs.count > ~std::uint64_t{0} / element_bytes) return false;
  state.discards = true;
  state.tag = theirs;
  state.bytes = theirs.count * element_bytes;
  return true;
}

// Checks the length and position of a received message. A message that the network did not write into the receive
// buffer must have the length `slot_bytes` that both ranks compute. A message that the network wrote directly into the
// receive buffer may have any length from 1 byte to the rest of the transfer, but must follow the previous one without
// a gap.
bool Exchange::fits(const Message& message, const State& state, std::uint64_t slot_bytes) {
  if (!message.output_offset) return message.bytes == slot_bytes;
  return state.shown && *message.output_offset == state.moved && message.bytes > 0 &&
         message.bytes <= state.bytes - state.moved;
}

bool Exchange::receive_next(Transfer& transfer, State& state) {
  // The buffer is advertised only after the first message has arrived. Before that, this transfer may be given up, and
  // the next transfer then gets its number. The peer would take the advertisement for one of the next transfer, and
  // would write the data of that transfer into the buffer of this one, which belongs to the user again.
  const bool may_show = state.begun && !state.discards && state.bytes >= transfer.receive->min_aimed_bytes();
  if (may_show && !std::exchange(state.asked, true)) {
    state.shown = transfer.receive->advertise_output(transfer.tag, {transfer.data, transfer.bytes});
  }
  const std::uint64_t bytes = std::min(transport_.slot_bytes(), state.bytes - state.moved);
  std::byte* place = state.discards ? nullptr : transfer.data + state.moved;
  const bool placed = !state.discards && transfer.receive->wants_place();
  const Arrival arrival =
      transfer.receive->arrival(state.tag, placed ? std::span(place, bytes) : std::span<std::byte>());
  if (arrival == Arrival::kNothing) return false;
  state.begun = true;
  if (arrival == Arrival::kMismatch && discard(transfer, state)) return true;
  const Message message = arrival == Arrival::kMessage ? transfer.receive->front() : Message{};
  if (arrival != Arrival::kMessage || !fits(message, state, bytes)) {
    const bool has_details = arrival == Arrival::kDamaged || arrival == Arrival::kUnmapped;
    bad_transfer_ = &transfer;
    bad_ = BadMessage{.peer = transfer.peer,
                      .kind = has_details ? arrival : Arrival::kCorrupt,
                      .tag = {},
                      .damage = transfer.receive->damage(),
                      .loss = transfer.receive->loss()};
    broken_ = true;
    return false;
  }
  if (message.carrier != Carrier::kDelivered && bytes > 0 && place != nullptr) std::memcpy(place, message.data, bytes);
  transfer.receive->release();
  state.moved += message.bytes;
  state.ended = state.moved == state.bytes;
  return true;
}

bool Exchange::advance(Transfer& transfer, State& state) {
  if (state.ended || !numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence)) return false;
  bool moved = false;
  for (int i = 0; i < kMessagesPerTurn && !state.ended && !broken_; ++i) {
    if (!(transfer.direction == Direction::kSend ? send_next(transfer, state) : receive_next(transfer, state))) break;
    moved = true;
  }
  if (moved) numbers_.note_move(transfer.peer, transfer.direction);
  if (state.ended) {
    if (state.shown) transfer.receive->withdraw_output(false);
    numbers_.end(transfer.peer, transfer.direction, transfer.tag.sequence);
    --unfinished_;
  }
  return moved;
}

void Exchange::renumber() {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    const std::uint64_t number = numbers_.upcoming(transfer.peer, transfer.direction);
    if (transfer.tag.sequence == number || states_[i].ended) continue;
    numbers_.end(transfer.peer, transfer.direction, transfer.tag.sequence);
    transfer.tag.sequence = states_[i].tag.sequence = number;
    numbers_.begin(transfer.peer, transfer.direction, number);
  }
}

bool Exchange::is_stale() const {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(),
                                  [this](const Transfer& transfer) { return transfer.peer == found_; });
  return found != transfers_.end() && found->tag.sequence != numbers_.upcoming(found_, Direction::kReceive);
}

void Exchange::look_again() {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    states_[i].ended = false;
    transfer.tag.sequence = states_[i].tag.sequence = numbers_.upcoming(transfer.peer, transfer.direction);
    numbers_.begin(transfer.peer, transfer.direction, transfer.tag.sequence);
  }
  unfinished_ = transfers_.size();
}

// Looks for a point-to-point message of any peer of the probe, and returns true if there is one. The tag of a probe
// usually differs from that of a real transfer, so that arrival() reports a message as a mismatch. If the tags are
// equal (a send of 0 int8), it reports a message. It leaves the message in place in both cases.
bool Exchange::probe() {
  const std::size_t count = transfers_.size();
  for (std::size_t i = 0; i < count && unfinished_ > 0; ++i) {
    const Transfer& transfer = transfers_[(numbers_.first_probed + i) % count];
    if (!numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence)) continue;
    const Arrival arrival = transfer.receive->arrival(transfer.tag);
    if (arrival == Arrival::kNothing) continue;
    // Skip a message of a collective that runs as an exchange, for example all_to_all_v. A probe looks for
    // point-to-point sends only.
    const bool is_collectives =
        arrival == Arrival::kMismatch && transfer.receive->mismatched_tag().kind != transfer.tag.kind;
    if (is_collectives) continue;
    found_ = transfer.peer;
    numbers_.first_probed = static_cast<std::uint32_t>((numbers_.first_probed + i + 1) % count);
    give_up();
    return true;
  }
  return false;
}

bool Exchange::progress() {
  if (probes()) return unfinished_ > 0 && probe();
  bool moved = false;
  for (std::size_t i = 0; i < transfers_.size() && !broken_; ++i) moved |= advance(transfers_[i], states_[i]);
  transport_.flush();
  return moved;
}

bool Exchange::queue_has_moved() {
  if (probes()) return false;
  bool any = false;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    State& state = states_[i];
    if (state.ended || numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence)) continue;
    const std::uint64_t moves = numbers_.moves(transfer.peer, transfer.direction);
    any |= std::exchange(state.moves_seen, moves) != moves;
  }
  return any;
}

bool Exchange::done() { return !bad_ && unfinished_ == 0; }

std::vector<const Transfer*> Exchange::unfinished() const {
  std::vector<const Transfer*> open;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (!states_[i].ended) open.push_back(&transfers_[i]);
  }
  return open;
}

bool Exchange::stalled(const Transfer& transfer) const {
  if (!numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence)) return false;
  if (transfer.direction == Direction::kSend) {
    return states_[static_cast<std::size_t>(&transfer - transfers_.data())].posted ? !transfer.send->handed_over()
                                                                                   : !transfer.send->ready();
  }
  return !transfer.receive->may_bring_more() && transfer.receive->arrival(transfer.tag, {}) == Arrival::kNothing;
}

std::string Exchange::waits_for() const {
  std::string text;
  std::size_t listed = 0;
  for (std::size_t i = 0; i < transfers_.size() && listed < kMostListed; ++i) {
    if (states_[i].ended) continue;
    const Transfer& transfer = transfers_[i];
    if (listed++ > 0) text += "; ";
    if (!numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence)) {
      text += fmt::format("an earlier transfer with rank {}", transfer.peer);
    } else if (transfer.direction == Direction::kSend) {
      text +=
          fmt::format("a credit from rank {} ({} of {} bytes sent)", transfer.peer, states_[i].moved, transfer.bytes);
    } else {
      text += fmt::format("a message from rank {} ({} of {} bytes received)", transfer.peer, states_[i].moved,
                          transfer.bytes);
    }
  }
  return text.empty() ? "sent messages to leave this process" : text;
}

bool Exchange::release_buffers(std::uint32_t peer) {
  bool released = true;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (states_[i].ended || transfer.peer != peer) continue;
    if (states_[i].shown) released &= transfer.receive->revoke_output();
    if (transfer.direction == Direction::kSend && states_[i].begun) released &= transfer.send->pins_done();
  }
  return released;
}

void Exchange::give_up() {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (std::exchange(states_[i].ended, true)) continue;
    if (states_[i].shown) transfer.receive->withdraw_output(true);
    // A part of the first message may be in the buffer already. That does not count as moved, because the next receive
    // still gets the whole message.
    const bool has_turn = numbers_.turn(transfer.peer, transfer.direction, transfer.tag.sequence);
    if (transfer.direction == Direction::kReceive && has_turn && !probes()) transfer.receive->withdraw_place();
    states_[i].untouched = !states_[i].begun && !probes();
    numbers_.end(transfer.peer, transfer.direction, transfer.tag.sequence);
    if (transfer.direction == Direction::kSend && states_[i].begun) transfer.send->drop_pins();
  }
  unfinished_ = 0;
}

const Transfer* Exchange::half_moved() const {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const bool named = broken_ && &transfers_[i] == bad_transfer_;
    if (states_[i].begun && !states_[i].ended && !named) return &transfers_[i];
  }
  return nullptr;
}

bool Exchange::untouched(const Transfer& transfer) const noexcept {
  return states_[static_cast<std::size_t>(&transfer - transfers_.data())].untouched;
}

void Exchange::close_gap(std::uint32_t peer, Direction direction, std::uint64_t number) noexcept {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    Transfer& transfer = transfers_[i];
    if (states_[i].ended || transfer.peer != peer || transfer.direction != direction) continue;
    if (transfer.tag.sequence > number) states_[i].tag.sequence = --transfer.tag.sequence;
  }
}

}  // namespace tutti
