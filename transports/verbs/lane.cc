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

constexpr std::size_t kSlotHeaderBytes = sizeof(VerbsLane::Header);  // bytes in front of a slot's payload
// In bytes. Shorter messages are copied into a slot, because a copy costs less than a registration.
constexpr std::uint64_t kMinPinnedBytes = 8192;
constexpr std::uint64_t kRegisteredBlock = 16 << 20;  // bytes; long memory is registered in blocks of this length
constexpr std::uint64_t kStripeBytes = 65536;  // a message has one part for each full kStripeBytes, see parts_of()
constexpr std::uint32_t kReleasedMask = 0xffffff;
// Layout of the immediate data. At most one of the following four flags is set. If none is set, the write is a part
// of a message: bits 0 to 15 contain the index of the slot, and bits 16 to 27 contain the number of parts minus 1.
// If a flag is set, the lower bits contain a number:
//   kIsReleased          the lower 24 bits of the number of messages that the sender of this write has released
//   kIsDescriptor        an output is advertised; the index of its descriptor
//   kIsRevocation        an output is revoked; the lower 16 bits of the number of its advertisement
//   kIsAcknowledgement   that revocation is acknowledged; the same number
constexpr std::uint32_t kIsReleased = 1u << 30;
constexpr std::uint32_t kIsDescriptor = 1u << 29;
constexpr std::uint32_t kIsRevocation = 1u << 28;
constexpr std::uint32_t kIsAcknowledgement = 1u << 31;
constexpr std::uint32_t kPartsShift = 16;
constexpr std::uint32_t kMostParts = 1u << 12;
// The part of `whole` to register if `whole` is too long to be registered as a whole: the blocks of kRegisteredBlock
// bytes that contain [data, data + bytes).
std::span<const std::byte> block_of(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes) {
  const auto offset = static_cast<std::uint64_t>(data - whole.data());
  const std::uint64_t begin = offset / kRegisteredBlock * kRegisteredBlock;
  const std::uint64_t end = (offset + bytes + kRegisteredBlock - 1) / kRegisteredBlock * kRegisteredBlock;
  return whole.subspan(begin, std::min<std::uint64_t>(end, whole.size()) - begin);
}

}  // namespace

std::uint64_t VerbsLane::stride() const {
  constexpr std::uint64_t kPage = 4096;
  return (kSlotHeaderBytes + options_.slot_bytes + kPage - 1) / kPage * kPage;
}

// Length of the send half and of the receive half of memory_: the slots, and one page for the descriptors of
// advertised outputs.
std::uint64_t VerbsLane::half_bytes() const {
  constexpr std::uint64_t kPage = 4096;
  constexpr std::uint64_t kEntryBytes = ReceiveTargets::kDescriptors * sizeof(ReceiveTargets::Descriptor);
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
  if (stage_ == Stage::kHandshakeSent || stage_ == Stage::kReadySent) connect();
  poll();
  acknowledge_revocation();
  if (must_report_released()) report_released();
}

bool VerbsLane::has_capacity() const {
  const std::uint64_t needed = 4 + static_cast<std::uint64_t>(parts_of(options_.slot_bytes) / pairs_.size());
  return std::all_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.posted - pair.done + needed <= depth(); });
}

bool VerbsLane::ready() {
  const auto may_send = [this] {
    return stage_ == Stage::kConnected && sent_ - peer_released_ < options_.slots && has_capacity() && broken_.empty();
  };
  if (may_send()) return true;
  pump();
  return may_send();
}

std::byte* VerbsLane::slot() { return send_slot(sent_) + kSlotHeaderBytes; }

// The number of parts that a message needs because the devices limit the length of one write.
std::size_t VerbsLane::least_parts_of(std::uint64_t bytes) const {
  const std::uint64_t whole = kSlotHeaderBytes + bytes;
  std::uint64_t longest = 0;
  for (const Pair& pair : pairs_) {
    const std::uint64_t most = pair.rail.rail->longest_message();
    if (most > 2 * kSlotHeaderBytes && (longest == 0 || most < longest)) longest = most - 2 * kSlotHeaderBytes;
  }
  return static_cast<std::size_t>(longest > 0 ? (whole + longest - 1) / longest : 1);
}

// The number of parts of a message: more than the devices require if the message is long enough for several queue
// pairs.
std::size_t VerbsLane::parts_of(std::uint64_t bytes) const {
  const std::uint64_t striped = std::clamp<std::uint64_t>(bytes / kStripeBytes, 1, pairs_.size());
  return std::max(least_parts_of(bytes), static_cast<std::size_t>(striped));
}

void VerbsLane::send(std::uint64_t bytes, const CallTag& tag) {
  send_message({.data = slot(), .bytes = bytes, .registrations = nullptr, .signaled = false}, tag);
}

// Every message that the NIC reads from the memory of the user is signaled. The reason: if the completion were
// requested later, the receiver might already have received everything and left, and then the request would never
// complete.
void VerbsLane::send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                            const CallTag& tag) {
  const std::optional<PairRegistrations> registrations =
      bytes < kMinPinnedBytes ? std::nullopt : register_source(whole, data, bytes);
  if (registrations)
    return send_message({.data = data, .bytes = bytes, .registrations = &*registrations, .signaled = true}, tag);
  if (bytes > 0) std::memcpy(slot(), data, bytes);
  send(bytes, tag);
}

// The length is chosen so that a message never crosses the end of a block of a long registration. Otherwise parts of
// the memory would be registered twice.
std::uint64_t VerbsLane::send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                    const CallTag& tag) {
  static_assert(kRegisteredBlock % kVerbsMaxDirectBytes == 0);
  const std::uint64_t usual = std::min<std::uint64_t>(bytes, options_.slot_bytes);
  const std::uint64_t bytes_to_block_end =
      kVerbsMaxDirectBytes - static_cast<std::uint64_t>(data - whole.data()) % kVerbsMaxDirectBytes;
  std::uint64_t length = std::max(usual, std::min(bytes, bytes_to_block_end));
  // A longer message would need more requests than has_capacity() has reserved.
  if (parts_of(length) > std::max(parts_of(options_.slot_bytes), pairs_.size())) length = usual;
  const std::optional<PairRegistrations> registrations =
      next_offset_ ? register_source(whole, data, length) : std::nullopt;
  if (!registrations) return 0;
  send_message({.data = data, .bytes = length, .registrations = &*registrations, .signaled = true}, tag);
  return length;
}

// Registers the whole memory, so that later messages from it find the registration in the cache. Only a block is
// registered if the memory takes more than a quarter of the cache.
std::optional<VerbsLane::PairRegistrations> VerbsLane::register_source(std::span<const std::byte> whole,
                                                                       const std::byte* data, std::uint64_t bytes) {
  const std::uint64_t most = pairs_[0].rail.rail->device().registrations(Use::kReadByUs)->most_bytes();
  return register_for_all(Use::kReadByUs, whole.size() <= most / 4 ? whole : block_of(whole, data, bytes));
}

// Registers memory with the device of every rail. Returns nothing if one device refuses.
std::optional<VerbsLane::PairRegistrations> VerbsLane::register_for_all(Use use, std::span<const std::byte> memory) {
  PairRegistrations registrations;
  for (const Pair& pair : pairs_) {
    if (!registrations.empty() && pair.rail.rail == pairs_[registrations.size() - 1].rail.rail) {
      registrations.push_back(registrations.back());
      continue;
    }
    auto entry = pair.rail.rail->device().registrations(use)->acquire(memory);
    if (entry == nullptr) return std::nullopt;
    registrations.push_back(std::move(entry));
  }
  return registrations;
}

bool VerbsLane::aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
  next_offset_.reset();
  // A new descriptor may have arrived, or a revocation.
  poll();
  const ReceiveTargets::Descriptor* const entry = receive_targets_.find(call, output_bytes);
  if (entry == nullptr || offset > entry->bytes) return false;
  next_offset_ = offset;
  return true;
}

void VerbsLane::send_message(const Payload& payload, const CallTag& tag) {
  const auto [data, bytes, registrations, signaled] = payload;
  const std::optional<std::uint64_t> output_offset = std::exchange(next_offset_, std::nullopt);
  const ReceiveTargets::Descriptor& output = receive_targets_.peer_descriptor();
  const bool is_direct = output_offset && bytes >= kVerbsMinDirectBytes && *output_offset <= output.bytes &&
                         bytes <= output.bytes - *output_offset;
  TUTTI_ASSERT((is_direct || bytes <= options_.slot_bytes) && stage_ == Stage::kConnected);
  const std::uint64_t number = sent_++;
  std::byte* const start = send_slot(number);
  const Header header{.tag = tag,
                      .bytes = bytes,
                      .number = static_cast<std::uint32_t>(number),
                      .released = static_cast<std::uint32_t>(released_),
                      .output_offset = is_direct ? *output_offset : ReceiveTargets::kInSlot,
                      .seen = receive_targets_.seen()};
  std::memcpy(start, &header, sizeof(header));
  reported_released_ = released_;
  const std::size_t parts = parts_of(bytes);
  TUTTI_ASSERT(parts <= kMostParts);
  // The parts have equal lengths if the speeds are unknown, or if the devices limit the length of a part.
  std::span<const std::uint32_t> weights = weights_;
  if (parts > weights_.size() || least_parts_of(bytes) > 1) weights = {};
  const auto slot = static_cast<std::uint32_t>(number % options_.slots);
  const std::uint32_t immediate = static_cast<std::uint32_t>(parts - 1) << kPartsShift | slot;
  const std::size_t first = parts > 1 ? 0 : next_pair_;
  if (parts == 1) next_pair_ = (next_pair_ + 1) % pairs_.size();
  const GatherElement head{.data = start, .bytes = kSlotHeaderBytes, .key = pairs_[first].source->lkey};
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t index = (first + i) % pairs_.size();
    const std::uint64_t begin = i == 0 ? 0 : stripe_end(bytes, parts, weights, i - 1);
    const std::uint64_t length = stripe_end(bytes, parts, weights, i) - begin;
    const Pair& pair = pairs_[index];
    const bool headed = i == 0 && !is_direct;  // this part follows the header in the same write
    std::array<GatherElement, 2> elements;
    std::size_t count = 0;
    if (headed) elements[count++] = head;
    if (headed && registrations == nullptr) {
      elements[0].bytes += length;  // the payload follows the header in the slot
    } else if (length > 0) {
      const std::uint32_t key = registrations != nullptr ? (*registrations)[index]->key().local : pair.source->lkey;
      elements[count++] = {.data = data + begin, .bytes = length, .key = key};
    }
    const RemoteAddress aim =
        is_direct ? RemoteAddress{.address = output.address + *output_offset + begin, .key = output.keys[index]}
                  : slots_at(index, slot * stride() + (headed ? 0 : kSlotHeaderBytes + begin));
    // The first part of a direct message has no immediate data. The header follows it on the same queue pair and
    // announces both.
    const bool leads = is_direct && i == 0;
    const std::array<Write, kMostChained> writes = {Write{.elements = std::span(elements).first(count),
                                                          .aim = aim,
                                                          .immediate = leads ? std::nullopt : std::optional(immediate),
                                                          .signaled = signaled && !leads},
                                                    Write{.elements = std::span(&head, 1),
                                                          .aim = slots_at(index, slot * stride()),
                                                          .immediate = immediate,
                                                          .signaled = signaled}};
    post(index, std::span(writes).first(leads ? 2 : 1));
    if (registrations == nullptr) continue;
    pairs_[index].last_pinned = pairs_[index].posted;
    pairs_[index].uses.emplace_back(pairs_[index].posted, (*registrations)[index]);
  }
}

VerbsLane::RemoteAddress VerbsLane::slots_at(std::size_t pair, std::uint64_t offset) const {
  return {.address = remote_slots_ + offset, .key = pairs_[pair].remote_key};
}

void VerbsLane::post_empty(std::size_t pair, std::uint32_t immediate) {
  const Write write{.elements = {}, .aim = slots_at(pair, 0), .immediate = immediate};
  post(pair, std::span(&write, 1));
}

// Posts the requests as one list. The device is then notified only once, and no request of another lane gets in
// between.
void VerbsLane::post(std::size_t index, std::span<const Write> writes) {
  TUTTI_ASSERT(!writes.empty() && writes.size() <= kMostChained);
  Pair& pair = pairs_[index];
  std::array<std::array<ibv_sge, 2>, kMostChained> parts{};
  std::array<ibv_send_wr, kMostChained> requests{};
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const Write& write = writes[i];
    std::uint64_t bytes = 0;
    for (std::size_t k = 0; k < write.elements.size(); ++k) {
      const GatherElement& element = write.elements[k];
      parts[i][k] = {.addr = reinterpret_cast<std::uintptr_t>(element.data),
                     .length = static_cast<std::uint32_t>(element.bytes),
                     .lkey = element.key};
      bytes += element.bytes;
    }
    ibv_send_wr& request = requests[i];
    request.wr_id = ++pair.posted;
    request.next = i + 1 < writes.size() ? &requests[i + 1] : nullptr;
    request.sg_list = parts[i].data();
    request.num_sge = static_cast<int>(write.elements.size());
    request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.imm_data = htobe32(write.immediate.value_or(0));
    request.wr.rdma.remote_addr = write.aim.address;
    request.wr.rdma.rkey = write.aim.key;
    if (bytes > 0 && bytes <= pair.most_inline) request.send_flags |= IBV_SEND_INLINE;
    if (write.signaled || pair.posted - pair.last_signaled >= depth() / 4) {
      request.send_flags |= IBV_SEND_SIGNALED;
      pair.last_signaled = pair.posted;
    }
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(pair.pair, requests.data(), &bad); error != 0) {
    on_failure(index, fmt::format("a request is refused: {}", std::strerror(error)));
  }
}

// Always false if the connection is broken. A caller that waits for true then finds that the peer is unreachable.
bool VerbsLane::pins_done() const {
  return stage_ == Stage::kClosed ||
         (broken_.empty() &&
          std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.last_pinned <= pair.done; }));
}

bool VerbsLane::idle() const {
  return !broken_.empty() || stage_ == Stage::kClosed ||
         std::all_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.posted == pair.done; });
}

// Posts an empty write without immediate data, which the peer does not notice. Its completion implies the completion
// of all requests before it.
void VerbsLane::request_completion(std::size_t index) {
  const Write write{.elements = {}, .aim = slots_at(index, 0), .immediate = std::nullopt, .signaled = true};
  post(index, std::span(&write, 1));
}

void VerbsLane::ask_for_completion() {
  if (stage_ != Stage::kConnected) return;
  for (std::size_t i = 0; i < pairs_.size() && broken_.empty(); ++i) {
    if (pairs_[i].last_signaled != pairs_[i].posted) request_completion(i);
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
  if (broken_.empty()) report_broken(index, words);
  fail(fmt::format("{}: {}{}", describe_pair(pair), words, trouble.empty() ? "" : "; " + trouble));
}

std::string VerbsLane::describe_pair(const Pair& pair) const {
  const VerbsPort& port = pair.rail.rail->port();
  return fmt::format("{} port {}, queue pair {} (to queue pair {} of {} port {} at rank {})", port.device, port.number,
                     pair.pair != nullptr ? pair.pair->qp_num : 0, pair.remote_number, pair.rail.remote.device,
                     pair.rail.remote.number, options_.peer);
}

std::string VerbsLane::describe_path() const {
  std::string text;
  for (const Pair& pair : pairs_) text += (text.empty() ? "" : ", ") + describe_pair(pair);
  return text;
}

void VerbsLane::on_arrival(std::size_t, std::uint32_t immediate) {
  if ((immediate & kIsAcknowledgement) != 0)
    return receive_targets_.note_acknowledgement(static_cast<std::uint16_t>(immediate));
  if ((immediate & kIsRevocation) != 0) {
    receive_targets_.forget(static_cast<std::uint16_t>(immediate));
    revoked_by_peer_ = static_cast<std::uint16_t>(immediate);
    return acknowledge_revocation();
  }
  if ((immediate & kIsDescriptor) != 0) return take_descriptor(immediate & (ReceiveTargets::kDescriptors - 1));
  if ((immediate & kIsReleased) != 0) {
    // Numbers on different queue pairs can arrive out of order. `more` is then too great, and the old number is
    // ignored.
    const std::uint32_t more = (immediate - static_cast<std::uint32_t>(peer_released_)) & kReleasedMask;
    return more <= options_.slots ? add_released(more) : void();
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
  if (more <= options_.slots) add_released(more);
  receive_targets_.note_received(header.seen);
  // Report the releases even if this poll() was called for another lane, because the peer may wait for nothing else.
  if (must_report_released()) report_released();
}

void VerbsLane::add_released(std::uint64_t more) {
  if (peer_released_ + more <= sent_) {
    peer_released_ += more;
  } else {
    corrupt_ = true;
  }
}

void VerbsLane::take_descriptor(std::uint32_t number) {
  ReceiveTargets::Descriptor entry;
  const std::byte* const entries = receive_slot(0) + options_.slots * stride();
  std::memcpy(&entry, entries + number * sizeof(entry), sizeof(entry));
  corrupt_ |= !receive_targets_.take(entry);
}

bool VerbsLane::advertise_output(const CallTag& call, std::span<std::byte> output) {
  if (stage_ != Stage::kConnected || !broken_.empty() || pairs_.size() > ReceiveTargets::kMaxQueuePairs) {
    return false;
  }
  if (!receive_targets_.can_advertise(call) || !has_capacity()) return false;
  // Longer outputs are not advertised, because two of them in turn would evict each other from the cache.
  if (output.size() > pairs_[0].rail.rail->device().registrations(Use::kWrittenByPeers)->most_bytes() / 4) return false;
  auto registrations = register_for_all(Use::kWrittenByPeers, output);
  if (!registrations) return false;
  withdraw_output(false);
  const ReceiveTargets::Descriptor entry = receive_targets_.advertise(call, output, std::move(*registrations));
  const std::uint32_t place = entry.number % ReceiveTargets::kDescriptors;
  const std::uint64_t offset = options_.slots * stride() + place * sizeof(entry);
  std::memcpy(memory_ + offset, &entry, sizeof(entry));
  const GatherElement element{.data = memory_ + offset, .bytes = sizeof(entry), .key = pairs_[0].source->lkey};
  const Write write{.elements = std::span(&element, 1), .aim = slots_at(0, offset), .immediate = kIsDescriptor | place};
  post(0, std::span(&write, 1));
  return true;
}

bool VerbsLane::revoke_output() {
  if (!receive_targets_.is_advertising() || stage_ != Stage::kConnected || !broken_.empty()) return true;
  poll();
  if (receive_targets_.is_revoked(pairs_.size())) return true;
  if (!has_capacity()) return false;
  const auto number = receive_targets_.revoke();
  if (number) post_empty(0, kIsRevocation | *number);  // follows the descriptor on the same queue pair
  return receive_targets_.is_revoked(pairs_.size());
}

// Acknowledges on each queue pair, so that each acknowledgement arrives after everything that was written on that
// queue pair.
void VerbsLane::acknowledge_revocation() {
  if (!revoked_by_peer_ || !has_capacity() || !broken_.empty()) return;
  const std::uint32_t number = *std::exchange(revoked_by_peer_, std::nullopt);
  for (std::size_t i = 0; i < pairs_.size(); ++i) post_empty(i, kIsAcknowledgement | number);
}

void VerbsLane::withdraw_output(bool gave_up) {
  const PairRegistrations registrations = receive_targets_.withdraw();
  for (std::size_t i = 0; gave_up && i < registrations.size(); ++i) {
    pairs_[i].rail.rail->device().registrations(Use::kWrittenByPeers)->forget(registrations[i]);
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
  const bool in_slot = header.output_offset == ReceiveTargets::kInSlot;
  corrupt_ |= header.number != static_cast<std::uint32_t>(released_) || header.tag.sequence == 0 ||
              (in_slot && header.bytes > options_.slot_bytes);
  if (corrupt_) return nullptr;
  return &front_.emplace(header);
}

bool VerbsLane::front_is_in_bounds() const {
  return front_->output_offset == ReceiveTargets::kInSlot ||
         receive_targets_.is_within(front_->tag, front_->output_offset, front_->bytes);
}

const std::byte* VerbsLane::payload() const { return receive_slot(released_) + kSlotHeaderBytes; }

void VerbsLane::release() {
  front_.reset();
  whole_[released_ % options_.slots] = false;
  ++released_;
  if (must_report_released()) report_released();
}

// True if the releases of this rank should be reported in a message of their own. The next message in the other
// direction would report them at no cost, so up to half of the slots may wait for it. They may not wait if the peer
// has no credit left, as far as this rank knows, because the peer may need a credit before this rank can send that
// next message.
bool VerbsLane::must_report_released() const {
  if (reported_released_ == released_) return false;
  return released_ - reported_released_ >= std::max<std::uint64_t>(1, options_.slots / 2) ||
         arrived_ - reported_released_ >= options_.slots;
}

void VerbsLane::report_released() {
  if (stage_ != Stage::kConnected || !broken_.empty() || !has_capacity()) return;
  reported_released_ = released_;
  post_empty(0, kIsReleased | (static_cast<std::uint32_t>(released_) & kReleasedMask));
}

}  // namespace tutti
