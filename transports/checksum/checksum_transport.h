// ChecksumTransport: another transport whose every message carries a checksum. The sender adds a trailer behind the
// value in its slot, the receiver looks at it before it shows the message: a bit that was flipped between the two, in a
// slot, a kernel's buffer, a card or a cable, is Arrival::kDamaged, and ReceiveConnection::damage() names the hop.
//
// All values go through slots: memory is not registered with it, there are no mailboxes, and nobody uses another's
// memory, since what goes there passes no message. Boards, datagrams and set-up are not summed. Thread-safety as in
// transport.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transports/transport.h"

namespace tutti {

// Behind a message's value. Covers the value, its length, the call's tag and the number.
struct ChecksumTrailer {
  std::uint32_t number = 0;  // of the messages of this call on this connection, from 0 on
  std::uint32_t check = 0;   // CRC-32C
};
static_assert(sizeof(ChecksumTrailer) == 8);

// By so much the slots of the other transport are longer; slots are whole pages.
inline constexpr std::uint32_t kChecksumRoom = 4096;

class ChecksumTransport final : public Transport {
 public:
  // `under` has slots that are kChecksumRoom longer than this transport's. `ways`: by rank, how messages travel between
  // it and this rank, for people: "shared memory", "tcp, 10.0.0.7:4711". `rank` is this one.
  ChecksumTransport(std::unique_ptr<Transport> under, std::uint32_t rank, std::vector<std::string> ways);

  std::string_view name() const override { return under_->name(); }
  bool shares_memory() const override { return under_->shares_memory(); }
  std::uint32_t slots() const override { return under_->slots(); }
  std::uint64_t slot_bytes() const override { return under_->slot_bytes() - kChecksumRoom; }
  std::uint32_t lanes() const override { return under_->lanes(); }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  Doorbell& doorbell() override { return under_->doorbell(); }
  void enter_call(const CallTag& tag, const WindowRef&) override { under_->enter_call(tag, {}); }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    under_->leave_call(tag, failure);
  }
  PeerStatus peer_status(std::uint32_t peer) override { return under_->peer_status(peer); }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    return under_->peer_call(peer, sequence);
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    return under_->peer_failure(peer, sequence);
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override {
    return under_->peer_has_left(peer, sequence);
  }
  std::optional<std::byte*> peer_output(std::uint32_t, std::uint64_t, std::uint64_t) override { return nullptr; }
  WindowRef find_window(const void*, std::size_t) override { return {}; }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override { return under_->allocate_window(bytes); }
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override {
    return under_->adopt_window(data, bytes);
  }
  MemoryForgetter memory_forgetter() override { return under_->memory_forgetter(); }
  void pump() override { under_->pump(); }
  bool flush() override { return under_->flush(); }
  std::string troubles() override { return under_->troubles(); }
  std::string peer_way(std::uint32_t peer) override { return under_->peer_way(peer); }
  std::string peer_trouble(std::uint32_t peer) override { return under_->peer_trouble(peer); }
  std::string peer_loss(std::uint32_t peer) override { return under_->peer_loss(peer); }
  void announce_leave() override { under_->announce_leave(); }
  void announce_abort() override { under_->announce_abort(); }

 private:
  std::unique_ptr<Transport> under_;
  const std::uint32_t rank_;
  const std::vector<std::string> ways_;
};

}  // namespace tutti
