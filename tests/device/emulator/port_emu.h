// The primitives of kernels/device/port.h on emulated GPUs (world.h): what one instruction does, plus the chance that
// another thread runs before it. port.h includes this for every compiler but nvcc; only tests build device code so.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "kernels/cpu/float16.h"
#include "kernels/device/port.h"
#include "kernels/float8.h"
#include "tests/device/emulator/world.h"

#define TUTTI_DEVICE inline
#define TUTTI_DEVICE_APART inline
#define TUTTI_SHARED(Type, name) \
  Type& name = *static_cast<Type*>(::tutti::emu::World::current().shared_memory(__LINE__, sizeof(Type)))
#define TUTTI_UNROLL

namespace tutti::device::port {

using emu::Here;

inline emu::World& world() { return emu::World::current(); }
inline emu::Fiber& self() { return emu::World::self(); }

inline unsigned thread() { return self().thread; }
inline unsigned threads() { return self().block.threads; }
inline unsigned block() { return self().block.index; }
inline unsigned anew(unsigned value) { return value; }
inline unsigned blocks() { return self().block.count; }

inline void block_barrier(Here here = Here::current()) { world().arrive(self().block.whole, threads(), here, nullptr); }
inline void warp_barrier(Here here = Here::current()) {
  world().arrive(self().block.warps[thread() / 32], 32, here, nullptr);
}
inline bool warp_any(bool vote, Here here = Here::current()) {
  auto& lanes = self().block.lanes;
  const unsigned first = thread() / 32 * 32;
  lanes[thread()].vote = vote ? 1 : 0;
  warp_barrier(here);
  bool any = false;
  for (unsigned i = first; i < first + 32; ++i) any |= lanes[i].vote != 0;
  warp_barrier(here);
  return any;
}

inline std::atomic_ref<std::uint64_t> atomic(const std::uint64_t* word) {
  return std::atomic_ref<std::uint64_t>(*const_cast<std::uint64_t*>(word));
}

inline std::uint64_t load_acquire(const std::uint64_t* from, Here here = Here::current()) {
  world().access(here);
  const std::uint64_t value = atomic(from).load(std::memory_order_acquire);
  if (world().options().weak) self().block.memory.acquire();
  return value;
}
inline std::uint64_t load_relaxed(const std::uint64_t* from, Here here = Here::current()) {
  world().access(here);
  return atomic(from).load(std::memory_order_relaxed);
}
inline void store_release(std::uint64_t* to, std::uint64_t value, Here here = Here::current()) {
  world().access(here);
  if (world().options().weak) self().block.memory.release(self());
  atomic(to).store(value, std::memory_order_release);
  world().stored();
}
inline void store_relaxed(std::uint64_t* to, std::uint64_t value, Here here = Here::current()) {
  world().access(here);
  atomic(to).store(value, std::memory_order_relaxed);
  world().stored();
}
inline void store_together(std::uint32_t* to, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*to).store(value, std::memory_order_relaxed);
}
inline std::uint64_t compare_and_swap(std::uint64_t* at, std::uint64_t expected, std::uint64_t wanted,
                                      Here here = Here::current()) {
  world().access(here);
  atomic(at).compare_exchange_strong(expected, wanted, std::memory_order_relaxed);
  world().stored();
  return expected;  // what was there
}

template <class T>
T load_value(const void* from, Here here) {
  world().access(here);
  T value;
  if (world().options().weak)
    self().block.memory.load(self(), from, &value, sizeof(T));
  else
    std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store_value(void* to, const T& value, Here here) {
  world().access(here);
  if (world().options().weak)
    self().block.memory.store(self(), to, &value, sizeof(T));
  else
    std::memcpy(to, &value, sizeof(T));
  world().stored();
}

inline Word16 load16(const void* from, Here here = Here::current()) { return load_value<Word16>(from, here); }
inline void store16(void* to, Word16 word, Here here = Here::current()) { store_value(to, word, here); }
template <class T>
T load(const T* from, Here here = Here::current()) {
  return load_value<T>(from, here);
}
template <class T>
void store(T* to, T value, Here here = Here::current()) {
  store_value(to, value, here);
}

// Two halves, each moved as one, and another thread between them: what a GPU promises for LL.
inline Word16 load16_volatile(const void* from, Here here = Here::current()) {
  const auto* halves = static_cast<const std::uint64_t*>(from);
  std::uint64_t values[2];
  for (int i = 0; i < 2; ++i) {
    world().access(here);
    values[i] = atomic(halves + i).load(std::memory_order_relaxed);
  }
  Word16 word;
  std::memcpy(&word, values, sizeof(word));
  return word;
}
inline void store16_volatile(void* to, Word16 word, Here here = Here::current()) {
  auto* halves = static_cast<std::uint64_t*>(to);
  std::uint64_t values[2];
  std::memcpy(values, &word, sizeof(word));
  for (int i = 0; i < 2; ++i) {
    world().access(here);
    atomic(halves + i).store(values[i], std::memory_order_relaxed);
  }
  world().stored();
}

// The last of 8 lanes to come moves the whole line for all. In one world nobody comes between; where several share
// memory (Clock::kReal), stores go upwards and loads downwards, so that whoever sees a word of a line sees all below
// it: less than a GPU promises, and enough where the flag is the line's last word.
enum class LineMove : std::uint8_t { kLoad, kStore };
inline void move_line(void* memory, Word16& word, LineMove direction, Here here) {
  emu::Block& block = self().block;
  const unsigned group = thread() / 8;
  block.lanes[thread()].memory = memory;
  block.lanes[thread()].value = &word;
  const std::function<void()> move_all = [&block, group, direction] {
    for (unsigned moved = 0; moved < 16; ++moved) {
      const unsigned half = direction == LineMove::kLoad ? 15 - moved : moved;
      const emu::Lane& lane = block.lanes[group * 8 + half / 2];
      auto* memory_half = static_cast<std::uint64_t*>(lane.memory) + half % 2;
      auto* value_half = static_cast<std::byte*>(lane.value) + half % 2 * sizeof(std::uint64_t);
      std::uint64_t copy = 0;
      if (direction == LineMove::kLoad) {
        copy = atomic(memory_half).load(std::memory_order_acquire);
        std::memcpy(value_half, &copy, sizeof(copy));
      } else {
        std::memcpy(&copy, value_half, sizeof(copy));
        atomic(memory_half).store(copy, std::memory_order_release);
      }
    }
  };
  world().access(here);
  world().arrive(block.groups[group], 8, here, move_all);
  if (direction == LineMove::kStore) world().stored();
}
inline Word16 load_line(const void* from, Here here = Here::current()) {
  Word16 word{};
  move_line(const_cast<void*>(from), word, LineMove::kLoad, here);
  return word;
}
inline void store_line(void* to, Word16 word, Here here = Here::current()) {
  move_line(to, word, LineMove::kStore, here);
}

inline std::uint64_t now_ns() { return world().now_ns(); }
inline void pause(Here here = Here::current()) { world().pause(here); }

inline float add(float a, float b) { return a + b; }
inline float multiply(float a, float b) { return a * b; }
inline float divide(float a, float b) { return a / b; }
inline double add(double a, double b) { return a + b; }
inline double multiply(double a, double b) { return a * b; }
inline double divide(double a, double b) { return a / b; }

inline float half_to_float(std::uint16_t bits) { return kernels::widen(kernels::Float16{bits}); }
inline std::uint16_t float_to_half(float value) { return kernels::narrow_to_float16(value).bits; }

inline constexpr bool kConvertsFloat8 = true;

template <class Format>
struct Float8Conversion {
  static void widen(std::uint16_t pair, float& first, float& second) {
    first = std::bit_cast<float>(kernels::widened_bits(Format{static_cast<std::uint8_t>(pair)}));
    second = std::bit_cast<float>(kernels::widened_bits(Format{static_cast<std::uint8_t>(pair >> 8)}));
  }
  static std::uint16_t narrow(float first, float second) {
    const unsigned low = kernels::narrowed_from_bits<Format>(std::bit_cast<std::uint32_t>(first)).bits;
    const unsigned high = kernels::narrowed_from_bits<Format>(std::bit_cast<std::uint32_t>(second)).bits;
    return static_cast<std::uint16_t>(low | high << 8);
  }
};

}  // namespace tutti::device::port
