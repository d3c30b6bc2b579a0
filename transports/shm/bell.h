// Bells: how a sleeping rank is woken by the peers of one shared-memory communicator. The bell lies in the owner's
// segment. Its owner sleeps either on the bell's futex (BellDoorbell), or on descriptors, together with whatever else
// it waits for (PokeBell); peers see which when they ring.
//
// No ring is lost: the owner arms its bell and then polls once more, the peer stores something and then looks at the
// bell, all sequentially consistent, so that one of the two sees the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/wait.h"
#include "transports/shm/exchange.h"
#include "transports/shm/segment.h"

namespace tutti {

// Bell::sleepers
inline constexpr std::uint32_t kAwake = 0;
inline constexpr std::uint32_t kSleepsOnFutex = 1;
inline constexpr std::uint32_t kWantsPoke = 2;  // set back to kAwake by the peer that pokes: one poke a sleep is enough

// Rings the bell of one rank, from any thread. Copyable; keeps the bell alive.
class Ringer {
 public:
  // Of the rank that is `peer` for `exchange` (this rank itself is allowed), whose segment it offers as `id`.
  Ringer(Segment segment, std::uint32_t id, std::uint32_t peer, std::shared_ptr<SegmentExchange> exchange)
      : segment_(std::move(segment)), bell_(&segment_.bell()), id_(id), peer_(peer), exchange_(std::move(exchange)) {}
  // Wakes the owner if it sleeps. What it should see must have been stored with seq_cst before.
  void ring() const {
    const std::uint32_t sleeper = bell_->sleepers.load(std::memory_order_seq_cst);
    if (sleeper != kAwake) wake(sleeper);
  }
  // The same for a mailbox that `writer` has written, which others than its readers need not be woken by.
  void ring_for_mailbox(std::uint32_t writer) const {
    const std::uint32_t sleeper = bell_->sleepers.load(std::memory_order_seq_cst);
    if (sleeper == kAwake) return;
    const std::uint32_t awaited = bell_->awaited.load(std::memory_order_relaxed);  // stored before the owner armed
    if (awaited == 0 || awaited == writer + 1) wake(sleeper);
  }

 private:
  void wake(std::uint32_t sleeper) const;

  Segment segment_;
  Bell* bell_;
  std::uint32_t id_;
  std::uint32_t peer_;
  std::shared_ptr<SegmentExchange> exchange_;  // shared with all that use it
};

// The owner's side where it waits for shared memory only: a futex.
class BellDoorbell final : public Doorbell {
 public:
  explicit BellDoorbell(Segment segment, Ringer ringer) : segment_(std::move(segment)), ringer_(std::move(ringer)) {}
  // From now on the sleeper is counted in the commons of that segment, so that peers may spare themselves a look.
  void count_in(Segment first) { first_ = std::move(first); }
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

// The owner's side where it sleeps on descriptors. The order of use: arm, poll once more, sleep until one of the
// descriptors becomes readable, disarm. One thread uses it.
class PokeBell {
 public:
  PokeBell(Segment segment, std::shared_ptr<SegmentExchange> exchange, std::unique_ptr<PokeReceiver> pokes)
      : segment_(std::move(segment)), exchange_(std::move(exchange)), pokes_(std::move(pokes)) {}
  std::vector<int> descriptors() const { return pokes_->descriptors(); }
  // Takes what has come before, so that whatever comes from now on makes a descriptor readable anew.
  void arm();
  void disarm() { segment_.bell().sleepers.store(kAwake, std::memory_order_relaxed); }

 private:
  Segment segment_;
  std::shared_ptr<SegmentExchange> exchange_;  // shared; outlives `pokes_`
  std::unique_ptr<PokeReceiver> pokes_;
};

}  // namespace tutti
