#include "transports/shm/shm_connection.h"

#include "base/assert.h"

namespace tutti {

ShmSendConnection::ShmSendConnection(Segment receiver, Ringer ringer, const SegmentShape& shape, std::uint32_t sender,
                                     std::uint16_t lane)
    : segment_(std::move(receiver)), shape_(shape), inbox_(segment_.inbox(sender, lane)), ringer_(std::move(ringer)) {}

bool ShmSendConnection::ready() {
  if (sent_ - consumed_ < shape_.slots) return true;
  consumed_ = inbox_.consumed->count.load(std::memory_order_seq_cst);
  return sent_ - consumed_ < shape_.slots;
}

void ShmSendConnection::send_reply(const Message& over, const CallTag& tag) {
  TUTTI_ASSERT(over.slot < shape_.slots);
  post(Carrier::kReplied, {.window = 0, .offset = over.slot}, over.bytes, tag);
}

std::byte* ShmSendConnection::slot() { return inbox_.slots + (sent_ % shape_.slots) * std::size_t{shape_.slot_bytes}; }

// Writes the descriptor of the next message and wakes the receiver.
void ShmSendConnection::post(Carrier carrier, const WindowRef& place, std::uint64_t bytes, const CallTag& tag) {
  Descriptor& descriptor = inbox_.descriptors[sent_ % shape_.slots];
  descriptor.tag.store(tag);
  descriptor.bytes.store(bytes, std::memory_order_relaxed);
  descriptor.offset.store(place.offset, std::memory_order_relaxed);
  descriptor.window.store(place.window, std::memory_order_relaxed);
  descriptor.carrier.store(static_cast<std::uint32_t>(carrier), std::memory_order_relaxed);
  ++sent_;
  // This store publishes all of the above and the bytes of the message. It is seq_cst and precedes ring(), so that no
  // wake-up is lost: see doorbell.h.
  descriptor.number.store(sent_, std::memory_order_seq_cst);
  ringer_.ring();
}

void ShmSendConnection::send_slot(std::uint64_t bytes, const CallTag& tag) {
  TUTTI_ASSERT(bytes <= shape_.slot_bytes);
  post(Carrier::kSlot, {}, bytes, tag);
}

void ShmSendConnection::send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) {
  TUTTI_ASSERT(place.window != 0);
  post(Carrier::kPublished, place, bytes, tag);
}

void ShmSendConnection::send_delivered(std::uint64_t bytes, const CallTag& tag) {
  post(Carrier::kDelivered, {}, bytes, tag);
}

bool ShmSendConnection::drained() {
  if (sent_ == consumed_) return true;
  consumed_ = inbox_.consumed->count.load(std::memory_order_seq_cst);
  return sent_ == consumed_;
}

ShmReceiveConnection::ShmReceiveConnection(Segment receiver, Segment sender, Ringer ringer, const SegmentShape& shape,
                                           std::uint32_t rank, std::uint32_t peer, std::uint16_t lane,
                                           std::shared_ptr<SegmentExchange> exchange)
    : segment_(std::move(receiver)),
      shape_(shape),
      peer_(peer),
      inbox_(segment_.inbox(peer, lane)),
      sender_(std::move(sender)),
      reply_slots_(sender_.inbox(rank, lane).slots),
      ringer_(std::move(ringer)),
      exchange_(std::move(exchange)) {}

// Checks the message in `descriptor`, which is the next one, and describes it in front_.
Arrival ShmReceiveConnection::look(Descriptor& descriptor) {
  const auto carrier = descriptor.carrier.load(std::memory_order_relaxed);
  const std::uint64_t bytes = descriptor.bytes.load(std::memory_order_relaxed);
  front_ = {.carrier = static_cast<Carrier>(carrier), .data = nullptr, .bytes = bytes};
  if (bytes > shape_.slot_bytes) return Arrival::kCorrupt;
  if (front_.carrier == Carrier::kSlot) {
    front_.slot = static_cast<std::uint32_t>(received_ % shape_.slots);
    front_.data = inbox_.slots + front_.slot * std::size_t{shape_.slot_bytes};
  } else if (front_.carrier == Carrier::kReplied) {
    const std::uint64_t slot = descriptor.offset.load(std::memory_order_relaxed);
    if (slot >= shape_.slots) return Arrival::kCorrupt;
    front_.data = reply_slots_ + slot * shape_.slot_bytes;
  } else if (front_.carrier == Carrier::kPublished) {
    const std::uint32_t id = descriptor.window.load(std::memory_order_relaxed);
    const std::uint64_t offset = descriptor.offset.load(std::memory_order_relaxed);
    if (id != window_id_ || window_ == nullptr) {
      window_ = exchange_->find(peer_, id);
      window_id_ = id;
    }
    if (window_ == nullptr) {
      auto loss = exchange_->take_loss(peer_, id);
      if (!loss) return Arrival::kNothing;  // the memory is in transit, is sent again, or was withdrawn
      loss_ = *std::move(loss);
      return Arrival::kUnmapped;
    }
    if (offset > window_->size() || bytes > window_->size() - offset) return Arrival::kCorrupt;
    front_.data = window_->data() + offset;
  } else if (front_.carrier != Carrier::kDelivered) {
    return Arrival::kCorrupt;
  }
  return Arrival::kMessage;
}

Arrival ShmReceiveConnection::arrival(const CallTag& call, std::span<std::byte>) {
  if (front_tag_.sequence == call.sequence) {
    // The sequence numbers alone do not suffice: a probe (Communicator::next_sender()) may have found the message. A
    // probe asks with the tag of a send of 0 int8, because it does not know the tag of the receive that will take the
    // message.
    if (front_tag_ == call) return Arrival::kMessage;
    mismatched_ = front_tag_;
    return Arrival::kMismatch;
  }
  if (unmapped_call_ == call.sequence) return Arrival::kUnmapped;
  while (true) {
    Descriptor& descriptor = inbox_.descriptors[received_ % shape_.slots];
    if (descriptor.number.load(std::memory_order_seq_cst) != received_ + 1) return Arrival::kNothing;
    const std::uint64_t sequence = descriptor.tag.sequence.load(std::memory_order_relaxed);
    if (sequence < call.sequence) {  // a message of an earlier call that failed
      release();
      continue;
    }
    // The peer already sends messages of a later call. If it should have sent one of `call` before, it has ended `call`
    // with an error. If `call` is a collective, the status board of the peer then normally contains the reason.
    if (sequence > call.sequence) return Arrival::kNothing;
    const CallTag tag = descriptor.tag.load();
    if (tag != call) {
      mismatched_ = tag;
      return Arrival::kMismatch;
    }
    const Arrival arrival = look(descriptor);
    if (arrival == Arrival::kMessage) front_tag_ = tag;
    if (arrival == Arrival::kUnmapped) unmapped_call_ = call.sequence;
    return arrival;
  }
}

void ShmReceiveConnection::release() {
  front_tag_ = CallTag();
  ++received_;
  // Returns the slot to the sender. The store is seq_cst and precedes ring(), so that no wake-up is lost: see
  // doorbell.h.
  inbox_.consumed->count.store(received_, std::memory_order_seq_cst);
  ringer_.ring();
}

}  // namespace tutti
