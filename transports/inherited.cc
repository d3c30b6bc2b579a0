#include "transports/inherited.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace tutti {
namespace {

constexpr int kDescriptors = 1 << 20;
constexpr int kBits = 64;

// One bit for each descriptor number below kDescriptors; 1: registered. The array is global because the handlers of
// pthread_atfork() have no argument. It is not protected by a lock because another thread could hold that lock at the
// moment of the fork, and the child could then never take it. The kernel allocates no memory for pages of the array
// that were never written.
constinit std::array<std::atomic<std::uint64_t>, kDescriptors / kBits> registered{};
constinit std::atomic<int> highest = -1;

// Returns a descriptor of /dev/null, or -1. The child replaces its copies of registered descriptors by duplicates of
// it.
int open_nothing() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Runs in the child, where only async-signal-safe functions may be called.
void replace_registered() {
  const int error = errno;
  int nothing = open_nothing();
  // True if `nothing` must be closed at the end. False if open_nothing() has failed, or if it has returned the number
  // of a replaced descriptor, which must stay in use.
  bool own = nothing >= 0;
  for (int word = 0; word <= highest.load(std::memory_order_relaxed) / kBits; ++word) {
    std::uint64_t left = registered[static_cast<std::size_t>(word)].exchange(0, std::memory_order_relaxed);
    for (; left != 0; left &= left - 1) {
      const int fd = word * kBits + std::countr_zero(left);
      if (nothing < 0) {  // If open_nothing() failed because all numbers are in use, this frees one.
        close(fd);
        nothing = open_nothing();
        own = nothing >= 0 && nothing != fd;
      }
      if (nothing >= 0 && nothing != fd) dup3(nothing, fd, O_CLOEXEC);
    }
  }
  if (own) close(nothing);
  highest.store(-1, std::memory_order_relaxed);
  errno = error;
}

}  // namespace

void close_in_children(int fd) {
  if (fd < 0 || fd >= kDescriptors) return;
  static const int handler = pthread_atfork(nullptr, nullptr, &replace_registered);
  static_cast<void>(handler);
  int known = highest.load(std::memory_order_relaxed);
  while (known < fd && !highest.compare_exchange_weak(known, fd, std::memory_order_relaxed)) {
  }
  registered[static_cast<std::size_t>(fd / kBits)].fetch_or(std::uint64_t{1} << fd % kBits, std::memory_order_relaxed);
}

void forget_in_children(int fd) {
  if (fd < 0 || fd >= kDescriptors) return;
  registered[static_cast<std::size_t>(fd / kBits)].fetch_and(~(std::uint64_t{1} << fd % kBits),
                                                             std::memory_order_relaxed);
}

}  // namespace tutti
