// WeakMemory: a model of the weakly ordered memory accesses of one block. Other blocks can see its stores late and in
// any order, and its loads can return old values. The model follows our reading of the PTX memory model; it does not
// imitate a particular GPU.
//
// - Ordinary stores wait in the store buffer of the block.
// - Ordinary loads can be answered by the first-level cache of the block.
// - A release writes out the thread's own stores, and all stores that the block made before its last barrier.
// - An acquire empties the cache.
// - A barrier makes stores visible inside the block only.
//
// On a GPU, a load can still be in progress long after its place in the program, until a release covers it. If another
// block stores to the same address before that release, the load may return the new value. The model executes every
// load at once, so it cannot show that error. Instead it counts such stores: see `overtaking`. When a thread stores a
// line of LL or LL128, the model assumes that all its earlier loads have returned, because their values are in the
// line, and PTX has no values out of thin air (PTX ISA, memory consistency model). For loads whose values are not in
// the line this is too generous.
//
// An object belongs to the thread that runs the emulator. ThreadSanitizer ignores all accesses made by this class, both
// to the model's state and to the program's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tutti::emu {

class Fiber;
class WeakMemory;

// The memory models of all blocks that run in an emulator.
struct BlockMemories {
  std::vector<WeakMemory*> all;
  // Number of stores of one block to addresses that a load of another block may still be reading.
  std::uint64_t overtaking = 0;
};

class WeakMemory {
 public:
  WeakMemory() = default;
  ~WeakMemory();
  WeakMemory(const WeakMemory&) = delete;
  WeakMemory& operator=(const WeakMemory&) = delete;

  void join(BlockMemories& block_memories);  // call this before the first access

  // The largest access in bytes, and the size of a cache line. An access must not cross the boundary of a line.
  static constexpr std::size_t kWidest = 16;
  // Capacity of a block's store buffer. If it is full, the oldest store is written to memory.
  static constexpr std::size_t kMostPending = 256;

  void store(const Fiber& owner, void* to, const void* value, std::size_t bytes);
  void load(const Fiber& owner, const void* from, void* value, std::size_t bytes);
  void barrier();
  void end_loads(const Fiber& owner);  // all loads of this thread have returned their values
  void release(const Fiber& owner);
  void acquire();
  // Does what a GPU may do at any time: sometimes writes one store to memory, or drops one line of the cache. The value
  // of `random` decides.
  void step_at_random(std::uint64_t random);
  void write_all();  // writes all stores to memory, when the block has finished

 private:
  // A store that is not yet written to memory.
  struct PendingStore {
    std::uintptr_t at;
    std::size_t bytes;
    std::array<unsigned char, kWidest> value;
    const Fiber* owner;
    bool known_to_block;
  };
  using CacheLine = std::array<unsigned char, kWidest>;

  // A load that no release has covered yet.
  struct OutstandingLoad {
    std::size_t bytes;
    const Fiber* owner;
    bool known_to_block;
  };

  void write_out(const PendingStore& store);
  bool may_be_loading(std::uintptr_t at, std::size_t bytes) const;

  std::vector<PendingStore> pending_;                 // the store buffer, oldest first; the stores do not overlap
  std::map<std::uintptr_t, CacheLine> cache_;         // the key is the address of the line
  std::map<std::uintptr_t, OutstandingLoad> loaded_;  // the key is the address that was loaded
  BlockMemories* block_memories_ = nullptr;
};

}  // namespace tutti::emu
