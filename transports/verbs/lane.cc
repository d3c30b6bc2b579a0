#include "transports/verbs/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/verbs/stripes.h"

namespace tutti {
namespace {

using Use = VerbsDevice::MemoryUse;

constexpr std::size_t kHeaderPlace = sizeof(VerbsLane::Header);  // bytes in front of a slot's payload
constexpr std::uint64_t kPinnedFrom = 8192;           // bytes; shorter ones are copied into a slot, which costs less
constexpr std::uint64_t kRegisteredBlock = 16 << 20;  // bytes
constexpr std::uint64_t kStripeBytes = 65536;         // of a message for each further queue pair
constexpr std::uint32_t kReleasedMask = 0xffffff;
constexpr std::uint32_t kIsReleased = 1u << 30;  // in immediate data: else a part of a message
constexpr std::uint32_t kIsEntry = 1u << 29;     // likewise: an output is shown, in the entry of that number
constexpr std::uint32_t kIsRecall = 1u << 28;    // ... and no longer, by the number of its showing
constexpr std::uint32_t kIsAnswer = 1u << 31;    // to that
constexpr std::uint32_t kPartsShift = 16;        // of a message: parts - 1, above the slot
constexpr std::uint32_t kMostParts = 1u << 12;
// Of memory that is too long to be registered whole: the blocks of kRegisteredBlock that [data, data + bytes) lies in.
std::span<const std::byte> block_of(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes) {
  const auto offset = static_cast<std::uint64_t>(data - whole.data());
  const std::uint64_t begin = offset / kRegisteredBlock * kRegisteredBlock;
  const std::uint64_t end = (offset + bytes + kRegisteredBlock - 1) / kRegisteredBlock * kRegisteredBlock;
  return whole.subspan(begin, std::min<std::uint64_t>(end, whole.size()) - begin);
}

}  // namespace

std::uint64_t VerbsLane::stride() const {
  constexpr std::uint64_t kPage = 4096;
  return (kHeaderPlace + options_.slot_bytes + kPage - 1) / kPage * kPage;
}

// Slots, and behind them what the sender of these entries shows of its outputs.
std::uint64_t VerbsLane::half_bytes() const {
  constexpr std::uint64_t kPage = 4096;
  constexpr std::uint64_t kEntryBytes = Landings::kEntries * sizeof(Landings::Entry);
  static_assert(kEntryBytes <= kPage);
  return options_.slots * stride() + kPage;
}

std::byte* VerbsLane::send_slot(std::uint64_t number) const { return memory_ + (number % options_.slots) * stride(); }

const std::byte* VerbsLane::receive_slot(std::uint64_t number) const {
  return memory_ + half_bytes() + number % options_.slots * stride();
}

void VerbsLane::fail(const std::string& why) {
  if (broken_.empty()) broken_ = why;
}

bool VerbsLane::poll() {
  bool any = false;
  const VerbsRail* last = nullptr;
  for (const Pair& pair : pairs_) {
    if (stage_ == Stage::kClosed) break;
    if (pair.rail.rail != last) any |= pair.rail.rail->poll();
    last = pair.rail.rail;
  }
  return any;
}

void VerbsLane::pump() {
  if (stage_ == Stage::kIntroduced || stage_ == Stage::kAnswered) connect();
  poll();
  answer_recall();
  if (owes()) tell_released();
}

bool VerbsLane::room() const {
  const std::uint64_t needed = 4 + static_cast<std::uint64_t>(parts_of(options_.slot_bytes) / pairs_.size());
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.posted - pair.done + needed <= depth(); });
}

bool VerbsLane::ready() {
  const auto may_send = [this] {
    return stage_ == Stage::kConnected && sent_ - peer_released_ < options_.slots && room() && broken_.empty();
  };
  if (may_send()) return true;
  pump();
  return may_send();
}

std::byte* VerbsLane::slot() { return send_slot(sent_) + kHeaderPlace; }

// As the devices take a message.
std::size_t VerbsLane::least_parts_of(std::uint64_t bytes) const {
  const std::uint64_t whole = kHeaderPlace + bytes;
  std::uint64_t longest = 0;
  for (const Pair& pair : pairs_) {
    const std::uint64_t most = pair.rail.rail->longest_message();
    if (most > 2 * kHeaderPlace && (longest == 0 || most < longest)) longest = most - 2 * kHeaderPlace;
  }
  return static_cast<std::size_t>(longest > 0 ? (whole + longest - 1) / longest : 1);
}

std::size_t VerbsLane::parts_of(std::uint64_t bytes) const {
  const std::uint64_t striped = std::clamp<std::uint64_t>(bytes / kStripeBytes, 1, pairs_.size());
  return std::max(least_parts_of(bytes), static_cast<std::size_t>(striped));
}

void VerbsLane::send(std::uint64_t bytes, const CallTag& tag) {
  send_message({.data = slot(), .bytes = bytes, .held = nullptr, .tells = false}, tag);
}

// Every message from memory that is not ours tells by itself: whoever asks later may find that its receiver, which has
// all of it, has left, and gets no answer any more.
void VerbsLane::send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                            const CallTag& tag) {
  const std::optional<Held> held = bytes < kPinnedFrom ? std::nullopt : hold_source(whole, data, bytes);
  if (held) return send_message({.data = data, .bytes = bytes, .held = &*held, .tells = true}, tag);
  if (bytes > 0) std::memcpy(slot(), data, bytes);
  send(bytes, tag);
}

// Cut where the blocks of a long registration end, so that none is registered twice.
std::uint64_t VerbsLane::send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                    const CallTag& tag) {
  static_assert(kRegisteredBlock % kVerbsLongestAimed == 0);
  const std::uint64_t usual = std::min<std::uint64_t>(bytes, options_.slot_bytes);
  const std::uint64_t room_to_cut =
      kVerbsLongestAimed - static_cast<std::uint64_t>(data - whole.data()) % kVerbsLongestAimed;
  std::uint64_t length = std::max(usual, std::min(bytes, room_to_cut));
  if (parts_of(length) > std::max(parts_of(options_.slot_bytes), pairs_.size())) length = usual;  // see room()
  const std::optional<Held> held = landing_ ? hold_source(whole, data, length) : std::nullopt;
  if (!held) return 0;
  send_message({.data = data, .bytes = length, .held = &*held, .tells = true}, tag);
  return length;
}

// Registers all of it, so that its next pieces are found, unless that is much.
std::optional<VerbsLane::Held> VerbsLane::hold_source(std::span<const std::byte> whole, const std::byte* data,
                                                      std::uint64_t bytes) {
  const std::uint64_t most = pairs_[0].rail.rail->device().registrations(Use::kReadByUs)->most_bytes();
  return hold(Use::kReadByUs, whole.size() <= most / 4 ? whole : block_of(whole, data, bytes));
}

// Registers memory with every rail's device. Nothing where one refuses.
std::optional<VerbsLane::Held> VerbsLane::hold(Use use, std::span<const std::byte> memory) {
  Held held;
  for (const Pair& pair : pairs_) {
    if (!held.empty() && pair.rail.rail == pairs_[held.size() - 1].rail.rail) {
      held.push_back(held.back());
      continue;
    }
    auto entry = pair.rail.rail->device().registrations(use)->acquire(memory);
    if (entry == nullptr) return std::nullopt;
    held.push_back(std::move(entry));
  }
  return held;
}

bool VerbsLane::aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
  landing_.reset();
  poll();  // it may lie there, or be recalled
  const Landings::Entry* const entry = landings_.find(call, output_bytes);
  if (entry == nullptr || offset > entry->bytes) return false;
  landing_ = offset;
  return true;
}

void VerbsLane::send_message(const Payload& payload, const CallTag& tag) {
  const auto [data, bytes, held, tells] = payload;
  const std::optional<std::uint64_t> landing = std::exchange(landing_, std::nullopt);
  const Landings::Entry& output = landings_.peers();
  const bool lands =
      landing && bytes >= kVerbsLeastAimed && *landing <= output.bytes && bytes <= output.bytes - *landing;
  TUTTI_ASSERT((lands || bytes <= options_.slot_bytes) && stage_ == Stage::kConnected);
  const std::uint64_t number = sent_++;
  std::byte* const start = send_slot(number);
  const Header header{.tag = tag,
                      .bytes = bytes,
                      .number = static_cast<std::uint32_t>(number),
                      .released = static_cast<std::uint32_t>(released_),
                      .landing = lands ? *landing : Landings::kNowhere,
                      .seen = landings_.seen()};
  std::memcpy(start, &header, sizeof(header));
  told_ = released_;
  const std::size_t parts = parts_of(bytes);
  TUTTI_ASSERT(parts <= kMostParts);
  std::span<const std::uint32_t> weights = weights_;  // evenly, where devices take no more at once
  if (parts > weights_.size() || least_parts_of(bytes) > 1) weights = {};
  const auto slot = static_cast<std::uint32_t>(number % options_.slots);
  const std::uint32_t immediate = static_cast<std::uint32_t>(parts - 1) << kPartsShift | slot;
  const std::size_t first = parts > 1 ? 0 : next_pair_;
  if (parts == 1) next_pair_ = (next_pair_ + 1) % pairs_.size();
  const Piece head{.data = start, .bytes = kHeaderPlace, .key = pairs_[first].source->lkey};
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t index = (first + i) % pairs_.size();
    const std::uint64_t begin = i == 0 ? 0 : stripe_end(bytes, parts, weights, i - 1);
    const std::uint64_t length = stripe_end(bytes, parts, weights, i) - begin;
    const Pair& pair = pairs_[index];
    const bool headed = i == 0 && !lands;  // this part has the header in front of it
    std::array<Piece, 2> pieces;
    std::size_t count = 0;
    if (headed) pieces[count++] = head;
    if (headed && held == nullptr) {
      pieces[0].bytes += length;  // the payload lies behind it
    } else if (length > 0) {
      const std::uint32_t key = held != nullptr ? (*held)[index]->key().local : pair.source->lkey;
      pieces[count++] = {.data = data + begin, .bytes = length, .key = key};
    }
    const Aim aim = lands ? Aim{.address = output.address + *landing + begin, .key = output.keys[index]}
                          : slots_at(index, slot * stride() + (headed ? 0 : kHeaderPlace + begin));
    // Of what lands, the header goes behind the first part, and tells of it, too.
    const bool leads = lands && i == 0;
    const std::array<Write, kMostChained> writes = {Write{.pieces = std::span(pieces).first(count),
                                                          .aim = aim,
                                                          .immediate = leads ? std::nullopt : std::optional(immediate),
                                                          .tells = tells && !leads},
                                                    Write{.pieces = std::span(&head, 1),
                                                          .aim = slots_at(index, slot * stride()),
                                                          .immediate = immediate,
                                                          .tells = tells}};
    post(index, std::span(writes).first(leads ? 2 : 1));
    if (held == nullptr) continue;
    pairs_[index].pinned = pairs_[index].posted;
    pairs_[index].uses.emplace_back(pairs_[index].posted, (*held)[index]);
  }
}

VerbsLane::Aim VerbsLane::slots_at(std::size_t pair, std::uint64_t offset) const {
  return {.address = remote_slots_ + offset, .key = pairs_[pair].remote_key};
}

void VerbsLane::post_empty(std::size_t pair, std::uint32_t immediate) {
  const Write write{.pieces = {}, .aim = slots_at(pair, 0), .immediate = immediate};
  post(pair, std::span(&write, 1));
}

// In one list: the device is told once, and none of another lane comes between.
void VerbsLane::post(std::size_t index, std::span<const Write> writes) {
  TUTTI_ASSERT(!writes.empty() && writes.size() <= kMostChained);
  Pair& pair = pairs_[index];
  std::array<std::array<ibv_sge, 2>, kMostChained> parts{};
  std::array<ibv_send_wr, kMostChained> requests{};
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const Write& write = writes[i];
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < write.pieces.size(); ++k) {
      const Piece& piece = write.pieces[k];
      parts[i][k] = {.addr = reinterpret_cast<std::uintptr_t>(piece.data),
                     .length = static_cast<std::uint32_t>(piece.bytes),
                     .lkey = piece.key};
      bytes += piece.bytes;
    }
    ibv_send_wr& request = requests[i];
    request.wr_id = ++pair.posted;
    request.next = i + 1 < writes.size() ? &requests[i + 1] : nullptr;
    request.sg_list = parts[i].data();
    request.num_sge = static_cast<int>(write.pieces.size());
    request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.imm_data = htobe32(write.immediate.value_or(0));
    request.wr.rdma.remote_addr = write.aim.address;
    request.wr.rdma.rkey = write.aim.key;
    if (bytes > 0 && bytes <= pair.most_inline) request.send_flags |= IBV_SEND_INLINE;
    if (write.tells || pair.posted - pair.asked >= depth() / 4) {
      request.send_flags |= IBV_SEND_SIGNALED;
      pair.asked = pair.posted;
    }
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair.pair, requests.data(), &bad); error != 0) {
    on_failure(index, fmt::format("a request is refused: {}", std::strerror(error)));
  }
}

// Never of a way that is broken: who waits for it learns that the peer cannot be reached.
bool VerbsLane::pins_done() const {
  return stage_ == Stage::kClosed ||
         (broken_.empty() &&
          std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.pinned <= pair.done; }));
}

bool VerbsLane::idle() const {
  return !broken_.empty() || stage_ == Stage::kClosed ||
         std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.posted == pair.done; });
}

// An empty write without immediate data, which the peer does not see: when it is done, all before it is.
void VerbsLane::ask(std::size_t index) {
  const Write write{.pieces = {}, .aim = slots_at(index, 0), .immediate = std::nullopt, .tells = true};
  post(index, std::span(&write, 1));
}

void VerbsLane::ask_for_completion() {
  if (stage_ != Stage::kConnected) return;
  for (std::size_t i = 0; i < pairs_.size() && broken_.empty(); ++i) {
    if (pairs_[i].asked != pairs_[i].posted) ask(i);
  }
}

void VerbsLane::on_done(std::size_t index, std::uint64_t number) {
  Pair& pair = pairs_[index];
  pair.done = number;
  while (!pair.uses.empty() && pair.uses.front().first <= number) pair.uses.pop_front();
}

void VerbsLane::on_failure(std::size_t index, const std::string& words) {
  const Pair& pair = pairs_[index];
  VerbsRail& rail = *pair.rail.rail;
  rail.device().pump();
  const std::string trouble = rail.device().reports().trouble(rail.port().number);
  if (broken_.empty()) tell_broken(index, words);
  fail(fmt::format("{}: {}{}", way_of(pair), words, trouble.empty() ? "" : "; " + trouble));
}

std::string VerbsLane::way_of(const Pair& pair) const {
  const VerbsPort& port = pair.rail.rail->port();
  return fmt::format("{} port {}, queue pair {} (to queue pair {} of {} port {} at rank {})", port.device, port.number,
                     pair.pair != nullptr ? pair.pair->qp_num : 0, pair.remote_number, pair.rail.remote.device,
                     pair.rail.remote.number, options_.peer);
}

std::string VerbsLane::way() const {
  std::string text;
  for (const Pair& pair : pairs_) text += (text.empty() ? "" : ", ") + way_of(pair);
  return text;
}

void VerbsLane::on_arrival(std::size_t, std::uint32_t immediate) {
  if ((immediate & kIsAnswer) != 0) return landings_.note_answer(static_cast<std::uint16_t>(immediate));
  if ((immediate & kIsRecall) != 0) {
    landings_.forget(static_cast<std::uint16_t>(immediate));
    recalled_by_peer_ = static_cast<std::uint16_t>(immediate);
    return answer_recall();
  }
  if ((immediate & kIsEntry) != 0) return take_entry(immediate & (Landings::kEntries - 1));
  if ((immediate & kIsReleased) != 0) {
    // Of numbers that come out of order, by several queue pairs, the later one counts.
    const std::uint32_t more = (immediate - static_cast<std::uint32_t>(peer_released_)) & kReleasedMask;
    return more <= options_.slots ? note_released(more) : void();
  }
  const std::uint32_t slot = immediate & ((1u << kPartsShift) - 1);
  const std::uint32_t parts = (immediate >> kPartsShift & (kMostParts - 1)) + 1;
  if (slot >= options_.slots || whole_[slot]) {
    corrupt_ = true;
    return;
  }
  if (++parts_[slot] < parts) return;
  parts_[slot] = 0;
  whole_[slot] = true;
  ++arrived_;
  Header header;
  std::memcpy(&header, receive_slot(slot), sizeof(header));
  const std::uint32_t more = header.released - static_cast<std::uint32_t>(peer_released_);
  if (more <= options_.slots) note_released(more);
  landings_.note_seen(header.seen);
  if (owes()) tell_released();  // whoever polled: the peer may wait for this alone
}

void VerbsLane::note_released(std::uint64_t more) {
  if (peer_released_ + more <= sent_) {
    peer_released_ += more;
  } else {
    corrupt_ = true;
  }
}

void VerbsLane::take_entry(std::uint32_t number) {
  Landings::Entry entry;
  const std::byte* const entries = receive_slot(0) + options_.slots * stride();
  std::memcpy(&entry, entries + number * sizeof(entry), sizeof(entry));
  corrupt_ |= !landings_.take(entry);
}

bool VerbsLane::show_output(const CallTag& call, std::span<std::byte> output) {
  if (stage_ != Stage::kConnected || !broken_.empty() || pairs_.size() > Landings::kMostKeys) {
    return false;
  }
  if (!landings_.may_show(call) || !room()) return false;
  // Of what is longer, two in turn would drive each other out of the cache.
  if (output.size() > pairs_[0].rail.rail->device().registrations(Use::kWrittenByPeers)->most_bytes() / 4) return false;
  auto held = hold(Use::kWrittenByPeers, output);
  if (!held) return false;
  hide_output(false);
  const Landings::Entry entry = landings_.show(call, output, std::move(*held));
  const std::uint32_t place = entry.number % Landings::kEntries;
  const std::uint64_t offset = options_.slots * stride() + place * sizeof(entry);
  std::memcpy(memory_ + offset, &entry, sizeof(entry));
  const Piece piece{.data = memory_ + offset, .bytes = sizeof(entry), .key = pairs_[0].source->lkey};
  const Write write{.pieces = std::span(&piece, 1), .aim = slots_at(0, offset), .immediate = kIsEntry | place};
  post(0, std::span(&write, 1));
  return true;
}

bool VerbsLane::recall_output() {
  if (!landings_.shows() || stage_ != Stage::kConnected || !broken_.empty()) return true;
  poll();
  if (landings_.recalled(pairs_.size())) return true;
  if (!room()) return false;
  const auto number = landings_.recall();
  if (number) post_empty(0, kIsRecall | *number);  // behind the entry
  return landings_.recalled(pairs_.size());
}

// By each queue pair: behind what was written by it.
void VerbsLane::answer_recall() {
  if (!recalled_by_peer_ || !room() || !broken_.empty()) return;
  const std::uint32_t number = *std::exchange(recalled_by_peer_, std::nullopt);
  for (std::size_t i = 0; i < pairs_.size(); ++i) post_empty(i, kIsAnswer | number);
}

void VerbsLane::hide_output(bool gave_up) {
  const Held held = landings_.hide();
  for (std::size_t i = 0; gave_up && i < held.size(); ++i) {
    pairs_[i].rail.rail->device().registrations(Use::kWrittenByPeers)->forget(held[i]);
  }
}

const VerbsLane::Header* VerbsLane::front() {
  if (front_) return &*front_;
  const std::size_t slot = released_ % options_.slots;
  if (!whole_[slot]) {
    pump();
    if (!whole_[slot]) return nullptr;
  }
  Header header;
  std::memcpy(&header, receive_slot(released_), sizeof(header));
  const bool in_slot = header.landing == Landings::kNowhere;
  corrupt_ |= header.number != static_cast<std::uint32_t>(released_) || header.tag.sequence == 0 ||
              (in_slot && header.bytes > options_.slot_bytes);
  if (corrupt_) return nullptr;
  return &front_.emplace(header);
}

bool VerbsLane::front_is_placed() const {
  return front_->landing == Landings::kNowhere || landings_.shown(front_->tag, front_->landing, front_->bytes);
}

const std::byte* VerbsLane::payload() const { return receive_slot(released_) + kHeaderPlace; }

void VerbsLane::release() {
  front_.reset();
  whole_[released_ % options_.slots] = false;
  ++released_;
  if (owes()) tell_released();
}

// A message of ours that goes out soon would tell it at no cost, so a few may wait for one; but not where the peer has
// no credit left as far as we know, for it may need one to come to that message.
bool VerbsLane::owes() const {
  if (told_ == released_) return false;
  return released_ - told_ >= std::max<std::uint64_t>(1, options_.slots / 2) || arrived_ - told_ >= options_.slots;
}

void VerbsLane::tell_released() {
  if (stage_ != Stage::kConnected || !broken_.empty() || !room()) return;
  told_ = released_;
  post_empty(0, kIsReleased | (static_cast<std::uint32_t>(released_) & kReleasedMask));
}

}  // namespace tutti
