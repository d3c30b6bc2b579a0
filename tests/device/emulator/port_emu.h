// The primitives of kernels/device/port.h for emulated GPUs (emulator.h). Each function does what one GPU instruction
// does, and may first let another emulated thread run. port.h includes this file if the compiler is not nvcc. Only
// tests compile device code in this way.
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
#include "tests/device/emulator/emulator.h"

#define TUTTI_DEVICE inline
#define TUTTI_DEVICE_APART inline
#define TUTTI_UNROLL

namespace tutti::device::port {

using emu::Site;

inline emu::Emulator& emulator() { return emu::Emulator::current(); }
inline emu::Fiber& self() { return emu::Emulator::self(); }

template <class T>
class BlockMemory {
 public:
  T& get() const { return object_; }

 private:
  static constexpr char kKey = 0;  // its address stands for the type: each type has a kKey of its own
  T& object_ = *static_cast<T*>(emulator().shared_memory(&kKey, sizeof(T)));
};

inline unsigned thread() { return self().thread; }
inline unsigned threads() { return self().block.threads; }
inline unsigned block() { return self().block.index; }
inline unsigned anew(unsigned value) { return value; }
inline unsigned blocks() { return self().block.count; }

inline void block_barrier(Site here = Site::current()) {
  emulator().arrive(self().block.whole, threads(), here, nullptr);
}
inline void warp_barrier(Site here = Site::current()) {
  emulator().arrive(self().block.warps[thread() / 32], 32, here, nullptr);
}
inline bool warp_any(bool vote, Site here = Site::current()) {
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

inline std::uint64_t load_acquire(const std::uint64_t* from, Site here = Site::current()) {
  emulator().access(here);
  const std::uint64_t value = atomic(from).load(std::memory_order_acquire);
  if (emulator().options().weak) self().block.memory.acquire();
  return value;
}
inline std::uint64_t load_relaxed(const std::uint64_t* from, Site here = Site::current()) {
  emulator().access(here);
  return atomic(from).load(std::memory_order_relaxed);
}
inline void store_release(std::uint64_t* to, std::uint64_t value, Site here = Site::current()) {
  emulator().access(here);
  if (emulator().options().weak) self().block.memory.release(self());
  atomic(to).store(value, std::memory_order_release);
  emulator().stored();
}
inline void store_relaxed(std::uint64_t* to, std::uint64_t value, Site here = Site::current()) {
  emulator().access(here);
  atomic(to).store(value, std::memory_order_relaxed);
  emulator().stored();
}
inline void store_together(std::uint32_t* to, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*to).store(value, std::memory_order_relaxed);
}
inline std::uint64_t compare_and_swap(std::uint64_t* at, std::uint64_t expected, std::uint64_t wanted,
                                      Site here = Site::current()) {
  emulator().access(here);
  atomic(at).compare_exchange_strong(expected, wanted, std::memory_order_relaxed);
  emulator().stored();
  return expected;  // the value before the operation
}

template <class T>
T load_value(const void* from, Site here) {
  emulator().access(here);
  T value;
  if (emulator().options().weak)
    self().block.memory.load(self(), from, &value, sizeof(T));
  else
    std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store_value(void* to, const T& value, Site here) {
  emulator().access(here);
  if (emulator().options().weak)
    self().block.memory.store(self(), to, &value, sizeof(T));
  else
    std::memcpy(to, &value, sizeof(T));
  emulator().stored();
}

inline Word16 load16(const void* from, Site here = Site::current()) { return load_value<Word16>(from, here); }
inline void store16(void* to, Word16 word, Site here = Site::current()) { store_value(to, word, here); }
template <class T>
T load(const T* from, Site here = Site::current()) {
  return load_value<T>(from, here);
}
template <class T>
void store(T* to, T value, Site here = Site::current()) {
  store_value(to, value, here);
}

// Moves the two 8-byte halves separately, and another thread may run in between. This is all that the LL protocol needs
// from a GPU: each half is atomic, but the 16 bytes together are not.
inline Word16 load16_volatile(const void* from, Site here = Site::current()) {
  const auto* halves = static_cast<const std::uint64_t*>(from);
  std::uint64_t values[2];
  for (int i = 0; i < 2; ++i) {
    emulator().access(here);
    values[i] = atomic(halves + i).load(std::memory_order_relaxed);
  }
  Word16 word;
  std::memcpy(&word, values, sizeof(word));
  return word;
}
inline void store16_volatile(void* to, Word16 word, Site here = Site::current()) {
  if (emulator().options().weak) self().block.memory.end_loads(self());
  auto* halves = static_cast<std::uint64_t*>(to);
  std::uint64_t values[2];
  std::memcpy(values, &word, sizeof(word));
  for (int i = 0; i < 2; ++i) {
    emulator().access(here);
    atomic(halves + i).store(values[i], std::memory_order_relaxed);
  }
  emulator().stored();
}

// Moves one line of 128 bytes, 16 bytes for each of 8 lanes. The last lane to arrive moves the whole line for all, so
// that the move is atomic within one emulator.
//
// If several emulators share memory (Clock::kReal), stores go through the line upwards and loads go downwards. A load
// that sees a new 64-bit word then also sees the new values of all lower words. A GPU guarantees more (the whole line
// is atomic), but this is enough for LL128, because the flag is the last word of a line.
enum class LineMove : std::uint8_t { kLoad, kStore };
inline void move_line(void* memory, Word16& word, LineMove direction, Site here) {
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
  emulator().access(here);
  emulator().arrive(block.groups[group], 8, here, move_all);
  if (direction == LineMove::kStore) emulator().stored();
}
inline Word16 load_line(const void* from, Site here = Site::current()) {
  Word16 word{};
  move_line(const_cast<void*>(from), word, LineMove::kLoad, here);
  return word;
}
inline void store_line(void* to, Word16 word, Site here = Site::current()) {
  if (emulator().options().weak) self().block.memory.end_loads(self());
  move_line(to, word, LineMove::kStore, here);
}

inline std::uint64_t now_ns() { return emulator().now_ns(); }
inline void pause(Site here = Site::current()) { emulator().pause(here); }

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
