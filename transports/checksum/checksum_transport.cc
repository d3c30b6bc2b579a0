#include "transports/checksum/checksum_transport.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"

namespace tutti {
namespace {

// The fields that the checksum covers in addition to the value.
struct Summed {
  CallTag tag;
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;
};
static_assert(sizeof(Summed) == 48);

std::uint32_t check_of(const std::byte* value, std::uint64_t bytes, const CallTag& tag, std::uint32_t number) {
  const Summed summed{.tag = tag, .bytes = bytes, .number = number};
  return crc32c(&summed, sizeof(summed), crc32c(value, bytes));
}

// Numbers the messages of each call, from 0. The sender and the receiver count in the same way, even if calls that
// failed have left messages behind, because the counter restarts with each call.
class Counter {
 public:
  std::uint32_t next(const CallTag& tag) {
    if (tag.sequence != sequence_) count_ = 0;
    sequence_ = tag.sequence;
    return count_;
  }
  void advance() { ++count_; }

 private:
  std::uint64_t sequence_ = 0;
  std::uint32_t count_ = 0;
};

// Adds the trailer to each message.
class ChecksumSend final : public SendConnection {
 public:
  explicit ChecksumSend(std::unique_ptr<SendConnection> inner) : inner_(std::move(inner)) {}

  bool ready() override { return inner_->ready(); }
  std::byte* slot() override { return inner_->slot(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override {
    seal(inner_->slot(), bytes, tag);
    inner_->send_slot(bytes + sizeof(ChecksumTrailer), tag);
  }
  void send_published(const WindowRef&, std::uint64_t, const CallTag&) override {
    TUTTI_ASSERT(false, "memory cannot be registered with a ChecksumTransport");
  }
  void send_delivered(std::uint64_t, const CallTag&) override {
    TUTTI_ASSERT(false, "ranks cannot store into each other's memory with a ChecksumTransport");
  }
  bool can_reply() const override { return inner_->can_reply(); }
  void send_reply(const Message& over, const CallTag& tag) override {
    seal(const_cast<std::byte*>(over.data), over.bytes, tag);  // `over.data` is a slot that the caller has written
    Message whole = over;
    whole.bytes += sizeof(ChecksumTrailer);
    inner_->send_reply(whole, tag);
  }
  bool drained() override { return inner_->drained(); }
  bool handed_over() override { return inner_->handed_over(); }
  bool lingers() const override { return inner_->lingers(); }

 private:
  void seal(std::byte* value, std::uint64_t bytes, const CallTag& tag) {
    const std::uint32_t number = counter_.next(tag);
    const ChecksumTrailer trailer{.number = number, .check = check_of(value, bytes, tag, number)};
    std::memcpy(value + bytes, &trailer, sizeof(trailer));
    counter_.advance();
  }

  std::unique_ptr<SendConnection> inner_;
  Counter counter_;
};

// Checks and removes the trailer of each message.
class ChecksumReceive final : public ReceiveConnection {
 public:
  ChecksumReceive(std::unique_ptr<ReceiveConnection> inner, std::string hop)
      : inner_(std::move(inner)), hop_(std::move(hop)) {}

  // `place` is not passed to the inner connection, because a message with its trailer is longer than `place`.
  Arrival arrival(const CallTag& call, std::span<std::byte>) override {
    const Arrival arrival = inner_->arrival(call);
    if (arrival != Arrival::kMessage || checked_call_ == call) return arrival;
    const Message message = inner_->front();
    const bool in_slot = message.carrier == Carrier::kSlot || message.carrier == Carrier::kReplied;
    if (!in_slot || message.bytes < sizeof(ChecksumTrailer)) return Arrival::kCorrupt;
    if (!is_whole(message, call)) return Arrival::kDamaged;
    checked_call_ = call;
    return arrival;
  }
  bool may_bring_more() override { return inner_->may_bring_more(); }
  CallTag mismatched_tag() const override { return inner_->mismatched_tag(); }
  Message front() override {
    Message message = inner_->front();
    message.bytes -= sizeof(ChecksumTrailer);
    return message;
  }
  void release() override {
    checked_call_.reset();
    counter_.advance();
    inner_->release();
  }
  std::string damage() const override { return damage_; }

 private:
  bool is_whole(const Message& message, const CallTag& call) {
    ChecksumTrailer trailer;
    const std::uint64_t bytes = message.bytes - sizeof(trailer);
    std::memcpy(&trailer, message.data + bytes, sizeof(trailer));
    const std::uint32_t expected = counter_.next(call);
    const std::uint32_t check = check_of(message.data, bytes, call, trailer.number);
    if (check == trailer.check && trailer.number == expected) return true;
    const std::string what = fmt::format("message {} ({} bytes) {}", std::uint64_t{expected} + 1, bytes, hop_);
    damage_ = check != trailer.check
                  ? fmt::format("the checksum of {} is wrong: the received data has {:08x}, its trailer has {:08x}",
                                what, check, trailer.check)
                  : fmt::format("message {1} arrived in place of {0}", what, std::uint64_t{trailer.number} + 1);
    return false;
  }

  std::unique_ptr<ReceiveConnection> inner_;
  const std::string hop_;  // for example "from rank 1 to rank 2 over tcp, 10.0.0.7:4711"
  // The call for which the message at the front was found intact; empty: it was not found intact yet.
  std::optional<CallTag> checked_call_;
  Counter counter_;
  std::string damage_;
};

}  // namespace

ChecksumTransport::ChecksumTransport(std::unique_ptr<Transport> inner, std::uint32_t rank,
                                     std::vector<std::string> paths)
    : inner_(std::move(inner)), rank_(rank), paths_(std::move(paths)) {
  TUTTI_ASSERT(inner_->slot_bytes() > kChecksumSlotBytes);
}

Result<std::unique_ptr<SendConnection>> ChecksumTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  auto inner = inner_->open_send(peer, lane);
  if (!inner) return inner.error();
  return std::unique_ptr<SendConnection>(std::make_unique<ChecksumSend>(std::move(*inner)));
}

Result<std::unique_ptr<ReceiveConnection>> ChecksumTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  auto inner = inner_->open_receive(peer, lane);
  if (!inner) return inner.error();
  const std::string device = inner_->peer_path(peer);
  std::string hop = fmt::format("from rank {} to rank {} over {}{}", peer, rank_, paths_.at(peer),
                                device.empty() ? "" : fmt::format(" ({})", device));
  return std::unique_ptr<ReceiveConnection>(std::make_unique<ChecksumReceive>(std::move(*inner), std::move(hop)));
}

}  // namespace tutti
