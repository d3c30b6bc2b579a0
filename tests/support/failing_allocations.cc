#include "tests/support/failing_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace tutti::test::failing_allocations {
namespace {

std::atomic<std::int64_t> fails_at = 0;  // number of the allocation that fails; 0: no failure
std::atomic<std::int64_t> count = 0;
std::atomic<bool> all_later_fail = false;
std::atomic<bool> counts_every_thread = false;  // otherwise only threads with `counts_this_thread`
thread_local bool counts_this_thread = false;
thread_local int exemptions = 0;

bool fails_now() {
  if (exemptions != 0) return false;
  if (!counts_this_thread && !counts_every_thread.load(std::memory_order_relaxed)) return false;
  const std::int64_t number = count.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::int64_t limit = fails_at.load(std::memory_order_relaxed);
  return limit != 0 && (all_later_fail ? number >= limit : number == limit);
}

}  // namespace

void fail_after(std::int64_t n, bool every_thread) {
  counts_this_thread = n != 0;
  counts_every_thread = n != 0 && every_thread;
  fails_at = n;
}

void set_lasting(bool lasting) { all_later_fail = lasting; }

void exempt_this_thread(int by) { exemptions += by; }

std::int64_t counted() { return count; }

void set_counted(std::int64_t number) { count = number; }

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (fails_now()) throw std::bad_alloc();
  const std::size_t wanted = bytes == 0 ? 1 : bytes;
  void* memory = alignment == 0 ? std::malloc(wanted)
                                : std::aligned_alloc(alignment, (wanted + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace tutti::test::failing_allocations

using tutti::test::failing_allocations::allocate;

void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*nothrow*/) noexcept {
  try {
    return allocate(bytes, 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept { return operator new(bytes, nothrow); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
