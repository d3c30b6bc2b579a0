#include "base/crypto/key.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <vector>

#include "base/crypto/hmac.h"

namespace tutti {
namespace {

// KeyMemory grows by chunks of this size. A chunk has space for 2,048 keys.
constexpr std::size_t kChunkBytes = 64 * 1024;

// Allocates the memory of all keys. It is never destroyed, because destructors of static objects may still destroy keys
// while the process exits. It grows by chunks, and never returns memory to the system.
class KeyMemory {
 public:
  static KeyMemory& of_process() {
    static auto& memory = *new KeyMemory;
    return memory;
  }

  std::uint8_t* take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) grow();
    std::uint8_t* const slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void give_back(std::uint8_t* slot) {
    explicit_bzero(slot, Key::kBytes);
    const std::scoped_lock lock(mutex_);
    free_.push_back(slot);  // never allocates: grow() has reserved space for all slots
  }

 private:
  // A forked child may destroy its copies of the parent's keys. If another thread held the mutex during fork(), it
  // would stay locked in the child for ever. So fork() waits for the mutex.
  KeyMemory() {
    pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                   [] { of_process().mutex_.unlock(); });
  }

  void grow() {
    constexpr std::size_t kSlots = kChunkBytes / Key::kBytes;
    free_.reserve(slots_ + kSlots);
    void* const memory = mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    static_cast<void>(madvise(memory, kChunkBytes, MADV_DONTDUMP));  // may fail; then core dumps contain the keys
    slots_ += kSlots;
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      free_.push_back(static_cast<std::uint8_t*>(memory) + slot * Key::kBytes);
    }
  }

  std::mutex mutex_;
  std::vector<std::uint8_t*> free_;
  std::size_t slots_ = 0;
};

}  // namespace

Key::Key() : bytes_(KeyMemory::of_process().take()) {}  // free slots contain zeros

Key::Key(std::initializer_list<std::uint8_t> first) : Key() {
  std::copy_n(first.begin(), std::min(first.size(), kBytes), bytes_);
}

Key::Key(const Digest& bytes) : Key() { std::copy(bytes.begin(), bytes.end(), bytes_); }
Key::Key(const Key& other) : Key() { std::copy_n(other.bytes_, kBytes, bytes_); }

Key& Key::operator=(const Key& other) {
  if (this != &other) std::copy_n(other.bytes_, kBytes, bytes_);
  return *this;
}

Key::~Key() { KeyMemory::of_process().give_back(bytes_); }

bool Key::operator==(const Key& other) const { return equal_in_constant_time(bytes_of(*this), bytes_of(other)); }

}  // namespace tutti
