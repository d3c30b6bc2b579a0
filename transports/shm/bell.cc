#include "transports/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

namespace tutti {
namespace {

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Ringer::wake(std::uint32_t sleeper) const {
  if (sleeper == kWantsPoke) {
    if (bell_->sleepers.compare_exchange_strong(sleeper, kAwake, std::memory_order_seq_cst)) {
      exchange_->poke(peer_, id_);
    }
    return;
  }
  bell_->rings.fetch_add(1, std::memory_order_seq_cst);
  futex(bell_->rings, FUTEX_WAKE, 1, nullptr);
}

void BellDoorbell::arm() {
  Bell& bell = segment_.bell();
  seen_ = bell.rings.load(std::memory_order_seq_cst);
  bell.sleepers.store(kSleepsOnFutex, std::memory_order_seq_cst);
  if (!armed_ && first_) first_->commons().sleepers.fetch_add(1, std::memory_order_seq_cst);
  armed_ = true;
}

void BellDoorbell::disarm() {
  segment_.bell().sleepers.store(kAwake, std::memory_order_relaxed);
  if (armed_ && first_) first_->commons().sleepers.fetch_sub(1, std::memory_order_relaxed);
  armed_ = false;
}

void BellDoorbell::sleep(std::int64_t timeout_ns) {
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  if (timeout_ns > 0) futex(segment_.bell().rings, FUTEX_WAIT, seen_, &timeout);
  disarm();
}

void PokeBell::arm() {
  pokes_->drain();
  segment_.bell().sleepers.store(kWantsPoke, std::memory_order_seq_cst);
}

}  // namespace tutti
