// The model of weakly ordered memory: see weak_memory.h.
#include "tests/device/emulator/weak_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/device/emulator/fiber.h"

namespace tutti::emu {
namespace {

// Reads a cache line from memory. The line may extend beyond the object that the program loads from. That is no error
// of the program, because a real cache does the same, so the sanitizers must not check this function.
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((noinline, no_sanitize_address, no_sanitize_thread))
#endif
void read_line(std::uintptr_t start, unsigned char* line) {
  const auto* from = reinterpret_cast<const volatile unsigned char*>(start);
  for (std::size_t i = 0; i < WeakMemory::kWidest; ++i) line[i] = from[i];
}

}  // namespace

WeakMemory::~WeakMemory() {
  if (block_memories_ != nullptr) std::erase(block_memories_->all, this);
}

void WeakMemory::join(BlockMemories& block_memories) {
  block_memories_ = &block_memories;
  block_memories.all.push_back(this);
}

// Whether a load from an address in [at, at + bytes) may still be in progress.
bool WeakMemory::may_be_loading(std::uintptr_t at, std::size_t bytes) const {
  for (auto it = loaded_.lower_bound(at - std::min<std::uintptr_t>(at, kWidest)); it != loaded_.end(); ++it) {
    if (it->first >= at + bytes) return false;
    if (at < it->first + it->second.bytes) return true;
  }
  return false;
}

// Writes a store to memory and drops the line from this block's cache, so that the block's later loads see the new
// value. (The first-level cache of a GPU writes through.)
void WeakMemory::write_out(const PendingStore& store) {
  if (block_memories_ != nullptr) {
    block_memories_->overtaking +=
        static_cast<std::uint64_t>(std::ranges::count_if(block_memories_->all, [&](const WeakMemory* other) {
          return other != this && other->may_be_loading(store.at, store.bytes);
        }));
  }
  std::memcpy(reinterpret_cast<void*>(store.at), store.value.data(), store.bytes);
  cache_.erase(store.at / kWidest * kWidest);
}

void WeakMemory::store(const Fiber& owner, void* to, const void* value, std::size_t bytes) {
  const TsanIgnoreScope ignore_scope;
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  // Older stores that overlap this one must reach memory before it.
  std::erase_if(pending_, [&](const PendingStore& other) {
    const bool overlaps = other.at < at + bytes && at < other.at + other.bytes;
    if (overlaps) write_out(other);
    return overlaps;
  });
  if (pending_.size() == kMostPending) {
    write_out(pending_.front());
    pending_.erase(pending_.begin());
  }
  PendingStore& store = pending_.emplace_back();
  store.at = at;
  store.bytes = bytes;
  std::memcpy(store.value.data(), value, bytes);
  store.owner = &owner;
  store.known_to_block = false;
  cache_.erase(at / kWidest * kWidest);
}

void WeakMemory::load(const Fiber& owner, const void* from, void* value, std::size_t bytes) {
  const TsanIgnoreScope ignore_scope;
  const auto at = reinterpret_cast<std::uintptr_t>(from);
  const std::uintptr_t start = at / kWidest * kWidest;
  auto line = cache_.find(start);
  if (line == cache_.end()) {
    line = cache_.emplace(start, CacheLine{}).first;
    read_line(start, line->second.data());
  }
  CacheLine seen = line->second;
  for (const PendingStore& store : pending_) {
    if (store.at < start || store.at >= start + kWidest) continue;
    if (store.known_to_block || store.owner == &owner)
      std::memcpy(seen.data() + (store.at - start), store.value.data(), store.bytes);
  }
  std::memcpy(value, seen.data() + (at - start), bytes);
  loaded_.insert_or_assign(at, OutstandingLoad{.bytes = bytes, .owner = &owner, .known_to_block = false});
}

void WeakMemory::barrier() {
  const TsanIgnoreScope ignore_scope;
  for (PendingStore& store : pending_) store.known_to_block = true;
  for (auto& [at, load] : loaded_) load.known_to_block = true;
}

void WeakMemory::end_loads(const Fiber& owner) {
  const TsanIgnoreScope ignore_scope;
  std::erase_if(loaded_, [&](const auto& load) { return load.second.owner == &owner; });
}

void WeakMemory::acquire() {
  const TsanIgnoreScope ignore_scope;
  cache_.clear();
}

void WeakMemory::release(const Fiber& owner) {
  const TsanIgnoreScope ignore_scope;
  std::erase_if(pending_, [&](const PendingStore& store) {
    const bool covered = store.known_to_block || store.owner == &owner;
    if (covered) write_out(store);
    return covered;
  });
  std::erase_if(loaded_, [&](const auto& load) { return load.second.known_to_block || load.second.owner == &owner; });
}

void WeakMemory::step_at_random(std::uint64_t random) {
  const TsanIgnoreScope ignore_scope;
  if (!pending_.empty() && random % 8 == 0) {
    const std::size_t index = random / 8 % pending_.size();
    write_out(pending_[index]);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  if (!cache_.empty() && random / 64 % 64 == 0) cache_.erase(cache_.begin());
}

void WeakMemory::write_all() {
  const TsanIgnoreScope ignore_scope;
  for (const PendingStore& store : pending_) write_out(store);
  pending_.clear();
  loaded_.clear();
}

}  // namespace tutti::emu
