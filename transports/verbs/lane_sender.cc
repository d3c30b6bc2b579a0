#include "transports/verbs/lane_sender.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "transports/verbs/stripes.h"

namespace tutti {
namespace {

// The length in bytes from which on send_pinned() lets the NIC read a message from the memory of the user. It copies
// shorter messages into a slot, because a copy costs less than a registration.
constexpr std::uint64_t kMinPinnedBytes = 8192;
constexpr std::uint64_t kRegisteredBlock = 16 << 20;  // bytes; long memory is registered in blocks of this length

// The part of `whole` to register if `whole` is too long to be registered as a whole: the blocks of kRegisteredBlock
// bytes that contain [data, data + bytes).
std::span<const std::byte> block_of(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes) {
  const auto offset = static_cast<std::uint64_t>(data - whole.data());
  const std::uint64_t begin = offset / kRegisteredBlock * kRegisteredBlock;
  const std::uint64_t end = (offset + bytes + kRegisteredBlock - 1) / kRegisteredBlock * kRegisteredBlock;
  return whole.subspan(begin, std::min<std::uint64_t>(end, whole.size()) - begin);
}

}  // namespace

void LaneSender::send(std::uint64_t bytes, const CallTag& tag) {
  send_message({.data = slot(), .bytes = bytes, .registrations = nullptr, .signaled = false}, tag);
}

// Every message that the NIC reads from the memory of the user is signaled. The reason: if the completion were
// requested later, the receiver might already have received everything and left, and then the request would never
// complete.
void LaneSender::send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                             const CallTag& tag) {
  const std::optional<PairRegistrations> registrations =
      bytes < kMinPinnedBytes ? std::nullopt : register_source(whole, data, bytes);
  if (registrations)
    return send_message({.data = data, .bytes = bytes, .registrations = &*registrations, .signaled = true}, tag);
  if (bytes > 0) std::memcpy(slot(), data, bytes);
  send(bytes, tag);
}

bool LaneSender::aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) {
  next_offset_.reset();
  // Process completions first, because a new descriptor or a revocation may have arrived.
  pairs_.poll();
  const ReceiveTargets::Descriptor* const entry = targets_.find(call, output_bytes);
  if (entry == nullptr || offset > entry->bytes) return false;
  next_offset_ = offset;
  return true;
}

// The message ends at the next offset in `whole` that is a multiple of kVerbsMaxDirectBytes, or after one slot's length
// if that is further on, but at the latest after `bytes` bytes. So messages seldom cross the end of a block of
// kRegisteredBlock bytes. If `whole` is registered block by block, a message that crosses the end of a block makes
// register_source() register that block and the next one together.
std::uint64_t LaneSender::send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                                     const CallTag& tag) {
  static_assert(kRegisteredBlock % kVerbsMaxDirectBytes == 0);
  const std::uint64_t usual = std::min<std::uint64_t>(bytes, options_.slot_bytes);
  const std::uint64_t bytes_to_block_end =
      kVerbsMaxDirectBytes - static_cast<std::uint64_t>(data - whole.data()) % kVerbsMaxDirectBytes;
  std::uint64_t length = std::max(usual, std::min(bytes, bytes_to_block_end));
  // Use the length of a slot if this length would need more requests than QueuePairs::has_capacity() has reserved.
  if (pairs_.parts_of(length) > std::max(pairs_.parts_of(options_.slot_bytes), pairs_.size())) length = usual;
  const std::optional<PairRegistrations> registrations =
      next_offset_ ? register_source(whole, data, length) : std::nullopt;
  if (!registrations) return 0;
  send_message({.data = data, .bytes = length, .registrations = &*registrations, .signaled = true}, tag);
  return length;
}

// Registers the whole memory, so that later messages from it find the registration in the cache. Only the blocks that
// contain the message are registered if the memory takes more than a quarter of the cache.
std::optional<LaneSender::PairRegistrations> LaneSender::register_source(std::span<const std::byte> whole,
                                                                         const std::byte* data, std::uint64_t bytes) {
  const auto use = VerbsDevice::MemoryUse::kReadByUs;
  const std::uint64_t most = pairs_.most_registered_bytes(use);
  return pairs_.register_memory(use, whole.size() <= most / 4 ? whole : block_of(whole, data, bytes));
}

void LaneSender::send_message(const Payload& payload, const CallTag& tag) {
  const auto [data, bytes, registrations, signaled] = payload;
  const std::optional<std::uint64_t> output_offset = std::exchange(next_offset_, std::nullopt);
  const ReceiveTargets::Descriptor& output = targets_.peer_descriptor();
  const bool is_direct = output_offset && bytes >= kVerbsMinDirectBytes && *output_offset <= output.bytes &&
                         bytes <= output.bytes - *output_offset;
  TUTTI_ASSERT((is_direct || bytes <= options_.slot_bytes) && state_.is_connected());
  const std::uint64_t number = sent_++;
  std::byte* const start = memory_.send_slot(number);
  const LaneHeader header{.tag = tag,
                          .bytes = bytes,
                          .number = static_cast<std::uint32_t>(number),
                          .released = static_cast<std::uint32_t>(receiver_.released()),
                          .output_offset = is_direct ? *output_offset : ReceiveTargets::kInSlot,
                          .seen = targets_.seen()};
  std::memcpy(start, &header, sizeof(header));
  receiver_.note_reported();
  const std::size_t parts = pairs_.parts_of(bytes);
  TUTTI_ASSERT(parts <= LaneImmediate::kMostParts);
  // The parts have equal lengths if the speeds are unknown, or if the devices limit the length of a part.
  std::span<const std::uint32_t> weights = pairs_.weights();
  if (parts > weights.size() || pairs_.least_parts_of(bytes) > 1) weights = {};
  const auto slot = static_cast<std::uint32_t>(number % options_.slots);
  const std::uint32_t immediate = static_cast<std::uint32_t>(parts - 1) << LaneImmediate::kPartsShift | slot;
  const std::size_t first = parts > 1 ? 0 : next_pair_;
  if (parts == 1) next_pair_ = (next_pair_ + 1) % pairs_.size();
  const GatherElement head{.data = start, .bytes = sizeof(header), .key = pairs_.memory_key(first)};
  const std::uint64_t slot_offset = memory_.slot_offset(number);
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t index = (first + i) % pairs_.size();
    const std::uint64_t begin = i == 0 ? 0 : stripe_end(bytes, parts, weights, i - 1);
    const std::uint64_t length = stripe_end(bytes, parts, weights, i) - begin;
    const bool headed = i == 0 && !is_direct;  // this part follows the header in the same write
    std::array<GatherElement, 2> elements;
    std::size_t count = 0;
    if (headed) elements[count++] = head;
    if (headed && registrations == nullptr) {
      elements[0].bytes += length;  // the payload follows the header in the slot
    } else if (length > 0) {
      const std::uint32_t key =
          registrations != nullptr ? (*registrations)[index]->key().local : pairs_.memory_key(index);
      elements[count++] = {.data = data + begin, .bytes = length, .key = key};
    }
    const RemoteAddress aim =
        is_direct ? RemoteAddress{.address = output.address + *output_offset + begin, .key = output.keys[index]}
                  : pairs_.remote_memory(index, slot_offset + (headed ? 0 : sizeof(header) + begin));
    // The first part of a direct message has no immediate data. The header follows it on the same queue pair and
    // announces both.
    const bool leads = is_direct && i == 0;
    const std::array<RdmaWrite, QueuePairs::kMostChained> writes = {
        RdmaWrite{.elements = std::span(elements).first(count),
                  .aim = aim,
                  .immediate = leads ? std::nullopt : std::optional(immediate),
                  .signaled = signaled && !leads},
        RdmaWrite{.elements = std::span(&head, 1),
                  .aim = pairs_.remote_memory(index, slot_offset),
                  .immediate = immediate,
                  .signaled = signaled}};
    pairs_.post(index, std::span(writes).first(leads ? 2 : 1));
    if (registrations != nullptr) pairs_.pin_until_done(index, (*registrations)[index]);
  }
}

void LaneSender::note_released(std::uint32_t released) {
  const std::uint32_t more = released - static_cast<std::uint32_t>(peer_released_);
  if (more <= options_.slots) add_released(more);
}

// Counters of released messages arrive in headers and in reports, over different queue pairs, so they can arrive out of
// order. For an old counter, `more` is too great, and the counter is ignored.
void LaneSender::note_released_report(std::uint32_t immediate) {
  const std::uint32_t more = (immediate - static_cast<std::uint32_t>(peer_released_)) & LaneImmediate::kReleasedMask;
  if (more <= options_.slots) add_released(more);
}

void LaneSender::add_released(std::uint64_t more) {
  if (peer_released_ + more <= sent_) {
    peer_released_ += more;
  } else {
    state_.set_corrupt();
  }
}

}  // namespace tutti
