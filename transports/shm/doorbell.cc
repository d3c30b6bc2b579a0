#include "transports/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

namespace tutti {
namespace {

// The futex system call; the C library has no function for it.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void Ringer::wake(std::uint32_t sleeper) const {
  if (sleeper == kSleepsOnDescriptors) {
    if (state_->sleepers.compare_exchange_strong(sleeper, kAwake, std::memory_order_seq_cst)) {
      exchange_->wake_peer(peer_, id_);
    }
    return;
  }
  state_->rings.fetch_add(1, std::memory_order_seq_cst);
  futex(state_->rings, FUTEX_WAKE, 1, nullptr);
}

void FutexDoorbell::arm() {
  SharedDoorbell& doorbell = segment_.doorbell();
  seen_ = doorbell.rings.load(std::memory_order_seq_cst);
  doorbell.sleepers.store(kSleepsOnFutex, std::memory_order_seq_cst);
  if (!armed_ && first_) first_->common_counters().sleepers.fetch_add(1, std::memory_order_seq_cst);
  armed_ = true;
}

void FutexDoorbell::disarm() {
  segment_.doorbell().sleepers.store(kAwake, std::memory_order_relaxed);
  if (armed_ && first_) first_->common_counters().sleepers.fetch_sub(1, std::memory_order_relaxed);
  armed_ = false;
}

void FutexDoorbell::sleep(std::int64_t timeout_ns) {
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  if (timeout_ns > 0) futex(segment_.doorbell().rings, FUTEX_WAIT, seen_, &timeout);
  disarm();
}

void DescriptorDoorbell::arm() {
  receiver_->drain();
  segment_.doorbell().sleepers.store(kSleepsOnDescriptors, std::memory_order_seq_cst);
}

}  // namespace tutti
