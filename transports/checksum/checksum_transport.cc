#include "transports/checksum/checksum_transport.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"

namespace tutti {
namespace {

// What is summed behind the value.
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

// Counts the messages of each call; both ends alike, whatever was left behind by calls that failed.
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

class ChecksumSend final : public SendConnection {
 public:
  explicit ChecksumSend(std::unique_ptr<SendConnection> under) : under_(std::move(under)) {}

  bool ready() override { return under_->ready(); }
  std::byte* slot() override { return under_->slot(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override {
    seal(under_->slot(), bytes, tag);
    under_->send_slot(bytes + sizeof(ChecksumTrailer), tag);
  }
  void send_published(const WindowRef&, std::uint64_t, const CallTag&) override {
    TUTTI_ASSERT(false, "no memory is registered with a transport that sums");
  }
  void send_delivered(std::uint64_t, const CallTag&) override {
    TUTTI_ASSERT(false, "nobody can store into a peer's memory past a transport that sums");
  }
  bool can_reply() const override { return under_->can_reply(); }
  void send_reply(const Message& over, const CallTag& tag) override {
    seal(const_cast<std::byte*>(over.data), over.bytes, tag);  // a slot, which the caller has written
    Message whole = over;
    whole.bytes += sizeof(ChecksumTrailer);
    under_->send_reply(whole, tag);
  }
  bool drained() override { return under_->drained(); }
  bool handed_over() override { return under_->handed_over(); }
  bool lingers() const override { return under_->lingers(); }

 private:
  void seal(std::byte* value, std::uint64_t bytes, const CallTag& tag) {
    const std::uint32_t number = counter_.next(tag);
    const ChecksumTrailer trailer{.number = number, .check = check_of(value, bytes, tag, number)};
    std::memcpy(value + bytes, &trailer, sizeof(trailer));
    counter_.advance();
  }

  std::unique_ptr<SendConnection> under_;
  Counter counter_;
};

class ChecksumReceive final : public ReceiveConnection {
 public:
  ChecksumReceive(std::unique_ptr<ReceiveConnection> under, std::string hop)
      : under_(std::move(under)), hop_(std::move(hop)) {}

  // No place is given on: the trailer would be stored there, too.
  Arrival arrival(const CallTag& call, std::span<std::byte>) override {
    const Arrival arrival = under_->arrival(call);
    if (arrival != Arrival::kMessage || looked_at_ == call) return arrival;
    const Message message = under_->front();
    const bool in_slot = message.carrier == Carrier::kSlot || message.carrier == Carrier::kReplied;
    if (!in_slot || message.bytes < sizeof(ChecksumTrailer)) return Arrival::kCorrupt;
    if (!is_whole(message, call)) return Arrival::kDamaged;
    looked_at_ = call;
    return arrival;
  }
  bool may_bring_more() override { return under_->may_bring_more(); }
  CallTag mismatched_tag() const override { return under_->mismatched_tag(); }
  Message front() override {
    Message message = under_->front();
    message.bytes -= sizeof(ChecksumTrailer);
    return message;
  }
  void release() override {
    looked_at_.reset();
    counter_.advance();
    under_->release();
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
                  ? fmt::format("the checksum of {} is wrong: what came gives {:08x}, what came with it is {:08x}",
                                what, check, trailer.check)
                  : fmt::format("in place of {} came message {}", what, std::uint64_t{trailer.number} + 1);
    return false;
  }

  std::unique_ptr<ReceiveConnection> under_;
  const std::string hop_;             // "from rank 1 to rank 2 over tcp, 10.0.0.7:4711"
  std::optional<CallTag> looked_at_;  // the call as whose message the one in front was found whole
  Counter counter_;
  std::string damage_;
};

}  // namespace

ChecksumTransport::ChecksumTransport(std::unique_ptr<Transport> under, std::uint32_t rank,
                                     std::vector<std::string> ways)
    : under_(std::move(under)), rank_(rank), ways_(std::move(ways)) {
  TUTTI_ASSERT(under_->slot_bytes() > kChecksumRoom);
}

Result<std::unique_ptr<SendConnection>> ChecksumTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  auto under = under_->open_send(peer, lane);
  if (!under) return under.error();
  return std::unique_ptr<SendConnection>(std::make_unique<ChecksumSend>(std::move(*under)));
}

Result<std::unique_ptr<ReceiveConnection>> ChecksumTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  auto under = under_->open_receive(peer, lane);
  if (!under) return under.error();
  const std::string device = under_->peer_way(peer);
  std::string hop = fmt::format("from rank {} to rank {} over {}{}", peer, rank_, ways_.at(peer),
                                device.empty() ? "" : fmt::format(" ({})", device));
  return std::unique_ptr<ReceiveConnection>(std::make_unique<ChecksumReceive>(std::move(*under), std::move(hop)));
}

}  // namespace tutti
