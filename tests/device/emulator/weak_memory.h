// A model of one block's weakly ordered memory accesses: stores that others see late and in any order, and loads that
// an old copy answers. Written from the PTX memory model as we read it; a model, not the machine.
//
// Ordinary stores wait in the block's store buffer, ordinary loads may be answered by its first-level cache. A release
// writes out the thread's own stores and those that it has been told of by a barrier; an acquire empties the cache; a
// barrier makes stores known inside the block only.
//
// A load that no release has covered may still be under way, however early its place: what another block writes there
// meanwhile is a value that it may see. The model answers loads at once, so it counts such stores instead:
// `overtaking`.
//
// Belongs to the thread that runs the world. ThreadSanitizer sees
// nothing of what is done here, neither to the model's own state nor to the program's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tutti::emu {

class Fiber;
class WeakMemory;

// The memories of all blocks that run in a world.
struct Neighbours {
  std::vector<WeakMemory*> all;
  std::uint64_t overtaking = 0;  // stores of one block where another's loads may be under way
};

class WeakMemory {
 public:
  WeakMemory() = default;
  ~WeakMemory();
  WeakMemory(const WeakMemory&) = delete;
  WeakMemory& operator=(const WeakMemory&) = delete;

  void join(Neighbours& neighbours);  // before the first access

  static constexpr std::size_t kWidest = 16;        // bytes of one access, which lies in one line of as many
  static constexpr std::size_t kMostPending = 256;  // stores of a block; then the oldest is written out

  void store(const Fiber& owner, void* to, const void* value, std::size_t bytes);
  void load(const Fiber& owner, const void* from, void* value, std::size_t bytes);
  void barrier();
  void release(const Fiber& owner);
  void acquire();
  // Now and then something happens by itself; `random` decides.
  void drift(std::uint64_t random);
  void write_all();

 private:
  struct Pending {
    std::uintptr_t at;
    std::size_t bytes;
    std::array<unsigned char, kWidest> value;
    const Fiber* owner;
    bool known_to_block;
  };
  using Line = std::array<unsigned char, kWidest>;

  struct Loaded {
    std::size_t bytes;
    const Fiber* owner;
    bool known_to_block;
  };

  void write_out(const Pending& store);
  bool may_be_loading(std::uintptr_t at, std::size_t bytes) const;

  std::vector<Pending> pending_;  // no two overlap
  std::map<std::uintptr_t, Line> cache_;
  std::map<std::uintptr_t, Loaded> loaded_;  // and covered by no release
  Neighbours* neighbours_ = nullptr;
};

}  // namespace tutti::emu
