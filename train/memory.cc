#include "train/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace tutti::train {
namespace {

constexpr std::size_t kAlignment = 64;
// Up to this number of bytes, and as far as malloc permits, freed memory stays with the process, because mapping fresh
// pages in every step can cost half of the step's time.
constexpr int kMostKeptBytes = 1 << 30;

std::atomic<std::int64_t> current{0};
std::atomic<std::int64_t> peak{0};

// The length of a block is stored in the kAlignment bytes before it.
void release(void* data) {
  if (data == nullptr) return;
  char* const start = static_cast<char*>(data) - kAlignment;
  count_bytes(-*reinterpret_cast<std::int64_t*>(start));
  std::free(start);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    const std::size_t rounded = (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    char* const start = static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
    if (start == nullptr) throw std::bad_alloc();
    *reinterpret_cast<std::int64_t*>(start) = static_cast<std::int64_t>(bytes);
    count_bytes(static_cast<std::int64_t>(bytes));
    void* const data = start + kAlignment;
    return {data, data, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
};

}  // namespace

void count_allocations() {
  static CountingAllocator allocator;  // libtorch keeps a pointer to it until the process exits
  ::mallopt(M_MMAP_THRESHOLD, kMostKeptBytes);
  ::mallopt(M_TRIM_THRESHOLD, kMostKeptBytes);
  c10::SetCPUAllocator(&allocator, 1);
}

void count_bytes(std::int64_t bytes) {
  const std::int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

std::int64_t peak_bytes() { return peak.load(std::memory_order_relaxed); }
void reset_peak() { peak.store(current.load(std::memory_order_relaxed), std::memory_order_relaxed); }

}  // namespace tutti::train
