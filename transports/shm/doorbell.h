// Doorbells in shared memory: how the peers of one shared-memory communicator wake a rank that sleeps.
//
// The state of a doorbell, SharedDoorbell, is in the segment of its owner. The owner sleeps in one of two ways: on
// the futex of the doorbell (FutexDoorbell), or on file descriptors together with descriptors of another transport
// (DescriptorDoorbell). The state shows the peers in which of the two ways they must wake the owner.
//
// A wake-up is normally not lost. The owner first arms its doorbell and then polls once more. A peer first stores its
// data and then reads the state of the doorbell. All four operations are sequentially consistent, so at least one of
// the two ranks sees the store of the other: either the poll finds the data, or the peer wakes the owner. (If the
// kernel has no memory for the packet that wakes a DescriptorDoorbell, the sleep ends only by its timeout.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/wait.h"
#include "transports/shm/exchange.h"
#include "transports/shm/segment.h"

namespace tutti {

// Values of SharedDoorbell::sleepers
inline constexpr std::uint32_t kAwake = 0;
inline constexpr std::uint32_t kSleepsOnFutex = 1;
// A peer that wakes the owner sets the value back to kAwake, so that only one peer sends a wake-up for each sleep.
inline constexpr std::uint32_t kSleepsOnDescriptors = 2;

// Rings the doorbell of one rank, from any thread. Copyable; keeps the memory of the doorbell alive.
class Ringer {
 public:
  // Rings the doorbell of the rank that has the number `peer` in `exchange`. `segment` is the segment of that rank,
  // and `id` is the number under which the rank shares it. The rank may be this rank itself.
  Ringer(Segment segment, std::uint32_t id, std::uint32_t peer, std::shared_ptr<SegmentExchange> exchange)
      : segment_(std::move(segment)),
        state_(&segment_.doorbell()),
        id_(id),
        peer_(peer),
        exchange_(std::move(exchange)) {}
  // Wakes the owner if its doorbell is armed. The data that the owner waits for must have been stored with seq_cst
  // before.
  void ring() const {
    const std::uint32_t sleeper = state_->sleepers.load(std::memory_order_seq_cst);
    if (sleeper != kAwake) wake(sleeper);
  }
  // Like ring(), after the mailbox of rank `writer` was written. The owner of the doorbell is only woken if it waits
  // for that mailbox or for all mailboxes.
  void ring_for_mailbox(std::uint32_t writer) const {
    const std::uint32_t sleeper = state_->sleepers.load(std::memory_order_seq_cst);
    if (sleeper == kAwake) return;
    // A relaxed load is enough, because the owner normally stores `awaited` before it arms its doorbell. If it changes
    // the value later, its sleep may end only by its timeout.
    const std::uint32_t awaited = state_->awaited.load(std::memory_order_relaxed);
    if (awaited == 0 || awaited == writer + 1) wake(sleeper);
  }

 private:
  void wake(std::uint32_t sleeper) const;

  Segment segment_;
  SharedDoorbell* state_;
  std::uint32_t id_;
  std::uint32_t peer_;
  std::shared_ptr<SegmentExchange> exchange_;  // shared with all other users of the exchange
};

// The doorbell of a rank that only waits for shared memory. The rank sleeps on a futex. Only ring() is thread-safe.
class FutexDoorbell final : public Doorbell {
 public:
  explicit FutexDoorbell(Segment segment, Ringer ringer) : segment_(std::move(segment)), ringer_(std::move(ringer)) {}
  // From now on, this rank is counted in the CommonCounters of `first`, the segment of rank 0, while its doorbell is
  // armed. If that count is 0, a rank that has written a mailbox need not look at the doorbell of each peer.
  void count_sleepers_in(Segment first) { first_ = std::move(first); }
  void arm() override;
  void disarm() override;
  void sleep(std::int64_t timeout_ns) override;
  void ring() override { ringer_.ring(); }

 private:
  Segment segment_;
  std::optional<Segment> first_;
  Ringer ringer_;
  std::uint32_t seen_ = 0;
  bool armed_ = false;
};

// The doorbell of a rank that sleeps on file descriptors, because it also waits for something other than shared
// memory. How to use it: arm it, poll once more, sleep until one of the descriptors becomes readable, and disarm it.
// Only one thread may use it.
class DescriptorDoorbell {
 public:
  DescriptorDoorbell(Segment segment, std::shared_ptr<SegmentExchange> exchange, std::unique_ptr<WakeReceiver> receiver)
      : segment_(std::move(segment)), exchange_(std::move(exchange)), receiver_(std::move(receiver)) {}
  std::vector<int> descriptors() const { return receiver_->descriptors(); }
  // Arms the doorbell. Consumes earlier wake-ups before that, so that the next one makes a descriptor readable again
  // (see WakeReceiver::drain()).
  void arm();
  void disarm() { segment_.doorbell().sleepers.store(kAwake, std::memory_order_relaxed); }

 private:
  Segment segment_;
  std::shared_ptr<SegmentExchange> exchange_;  // shared with other users; must outlive `receiver_`
  std::unique_ptr<WakeReceiver> receiver_;
};

}  // namespace tutti
