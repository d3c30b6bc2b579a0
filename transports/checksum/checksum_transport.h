// ChecksumTransport: adds a checksum to every message of another transport. The sender writes a trailer behind the
// value in the slot, and the receiver checks the trailer before it returns the message. If a bit of the value or of the
// trailer was flipped between these two moments, for example in a slot, a kernel buffer, a network card or a cable,
// arrival() returns Arrival::kDamaged, and ReceiveConnection::damage() names the two ranks and the path between them.
//
// All values go through slots: peers cannot read windows, there are no mailboxes, and ranks do not access each
// other's memory, because such accesses would bypass the messages and their checksums. Status boards, datagrams and
// set-up have no checksums. Thread-safety: see transport.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transports/transport.h"

namespace tutti {

// The trailer behind the value of a message. The checksum covers the value, its length, the tag of the call, and
// `number`.
struct ChecksumTrailer {
  std::uint32_t number = 0;  // number of the message in this call on this connection, starting from 0
  std::uint32_t check = 0;   // CRC-32C
};
static_assert(sizeof(ChecksumTrailer) == 8);

// The slots of the inner transport are longer than the slots of the ChecksumTransport by this number of bytes. The
// trailer needs only 8 of them, but the length of a slot in shared memory must be a multiple of 4096.
inline constexpr std::uint32_t kChecksumSlotBytes = 4096;

class ChecksumTransport final : public Transport {
 public:
  // The slots of `inner` must be kChecksumSlotBytes longer than those of this transport. `paths`: for each rank, a
  // text that describes how messages travel between it and this rank, used in error messages, for example "shared
  // memory" or "tcp, 10.0.0.7:4711". `rank`: this rank.
  ChecksumTransport(std::unique_ptr<Transport> inner, std::uint32_t rank, std::vector<std::string> paths);

  std::string_view name() const override { return inner_->name(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  std::uint32_t slots() const override { return inner_->slots(); }
  std::uint64_t slot_bytes() const override { return inner_->slot_bytes() - kChecksumSlotBytes; }
  std::uint32_t lanes() const override { return inner_->lanes(); }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  Doorbell& doorbell() override { return inner_->doorbell(); }
  void enter_call(const CallTag& tag, const WindowRef&) override { inner_->enter_call(tag, {}); }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    inner_->leave_call(tag, failure);
  }
  void publish_device_calls(std::uint64_t calls) override { inner_->publish_device_calls(calls); }
  PeerStatus peer_status(std::uint32_t peer) override { return inner_->peer_status(peer); }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    return inner_->peer_call(peer, sequence);
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    return inner_->peer_failure(peer, sequence);
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override {
    return inner_->peer_has_left(peer, sequence);
  }
  std::optional<std::byte*> peer_output(std::uint32_t, std::uint64_t, std::uint64_t) override { return nullptr; }
  WindowRef find_window(const void*, std::size_t) override { return {}; }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override { return inner_->allocate_window(bytes); }
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override {
    return inner_->adopt_window(data, bytes);
  }
  MemoryReleaseCallback memory_release_callback() override { return inner_->memory_release_callback(); }
  void pump() override { inner_->pump(); }
  bool flush() override { return inner_->flush(); }
  std::string troubles() override { return inner_->troubles(); }
  std::string peer_path(std::uint32_t peer) override { return inner_->peer_path(peer); }
  std::string peer_trouble(std::uint32_t peer) override { return inner_->peer_trouble(peer); }
  std::string peer_loss(std::uint32_t peer) override { return inner_->peer_loss(peer); }
  std::span<const std::optional<std::uint64_t>> count_retransmissions() override {
    return inner_->count_retransmissions();
  }
  void announce_leave() override { inner_->announce_leave(); }
  void announce_abort() override { inner_->announce_abort(); }

 private:
  std::unique_ptr<Transport> inner_;
  const std::uint32_t rank_;
  const std::vector<std::string> paths_;
};

}  // namespace tutti
