// What translated PTX (translate.py) needs beyond the emulator's port: registers are C++ variables, and each
// instruction is a statement that uses these functions. Accesses of other threads' memory go through the port, so that
// the emulator can interleave them and order them weakly.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/device/call.h"
#include "kernels/device/plain_work.h"
#include "kernels/device/transfer_call.h"
#include "kernels/float8.h"
#include "tests/device/emulator/port_emu.h"

namespace tutti::ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;
using device::Word16;
namespace port = device::port;

// A parameter or a result of a function.
template <std::size_t kBytes>
struct alignas(16) Parameter {
  unsigned char bytes[kBytes];
};

// The same bits as another type. PTX registers have no sign and no format, instructions have.
template <class To, class From>
To bits(From from) {
  To to{};
  std::memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}

template <class T>
T load_bytes(const void* memory, std::ptrdiff_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(memory) + offset, sizeof(value));
  return value;
}
template <class T>
void store_bytes(void* memory, std::ptrdiff_t offset, T value) {
  std::memcpy(static_cast<char*>(memory) + offset, &value, sizeof(value));
}

inline void* pointer(u64 address) { return reinterpret_cast<void*>(address); }
inline u64 address_of(const void* memory) { return reinterpret_cast<u64>(memory); }

// Whether an address is in this thread's stack or in the shared memory of its block, which other GPUs do not see.
inline bool is_local(u64 address) {
  const emu::Fiber& self = port::self();
  const emu::Stack stack = self.context.stack();
  if (address - address_of(stack.memory) < stack.bytes) return true;
  for (const auto& [key, words] : self.block.shared) {
    if (address - address_of(words.data()) < words.size() * sizeof(u64)) return true;
  }
  return false;
}

// Ordinary accesses of global memory, and of an address whose kind is not known (generic).
template <class T>
T load_global(u64 address) {
  return port::load(static_cast<const T*>(pointer(address)));
}
template <class T>
void store_global(u64 address, T value) {
  port::store(static_cast<T*>(pointer(address)), value);
}
template <class T>
T load_generic(u64 address) {
  return is_local(address) ? load_bytes<T>(pointer(address), 0) : load_global<T>(address);
}
template <class T>
void store_generic(u64 address, T value) {
  if (is_local(address)) return store_bytes(pointer(address), 0, value);
  store_global(address, value);
}
inline Word16 load_generic16(u64 address) {
  return is_local(address) ? load_bytes<Word16>(pointer(address), 0) : port::load16(pointer(address));
}
inline void store_generic16(u64 address, Word16 word) {
  if (is_local(address)) return store_bytes(pointer(address), 0, word);
  port::store16(pointer(address), word);
}

// A mistake that tests plant, so that it is seen that they would notice it. It is chosen by PTX_MISTAKE:
// "relaxed_post" (store_release() does not release), "relaxed_look" (load_acquire() does not acquire), or the number of
// a barrier of a block, which is left out.
struct Mistake {
  bool relaxed_post = false;
  bool relaxed_look = false;
  int barrier = -1;
};
const Mistake& planted_mistake();

inline void block_barrier(int number) {
  if (planted_mistake().barrier != number) port::block_barrier();
}
inline void store_release(u64 address, u64 value) {
  auto* const word = static_cast<u64*>(pointer(address));
  if (planted_mistake().relaxed_post) return port::store_relaxed(word, value);
  port::store_release(word, value);
}

// Loads that a thread may repeat until a value changes. PTX has no instruction at which the emulator could see that a
// thread waits, so each of these loads lets another thread run.
inline u64 load_acquire(u64 address) {
  const auto* const word = static_cast<const u64*>(pointer(address));
  const u64 value = planted_mistake().relaxed_look ? port::load_relaxed(word) : port::load_acquire(word);
  port::pause();
  return value;
}
inline u64 load_relaxed(u64 address) {
  const u64 value = port::load_relaxed(static_cast<const u64*>(pointer(address)));
  port::pause();
  return value;
}
inline Word16 load_volatile(u64 address) {
  const Word16 word = port::load16_volatile(pointer(address));
  port::pause();
  return word;
}

// Selects four of the eight bytes of `a` (the lower ones) and `b`. Bit 3 of a selector repeats the sign of the byte.
inline u32 permute(u32 a, u32 b, u32 selectors) {
  const u64 both = u64{b} << 32 | a;
  u32 result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const u32 selector = selectors >> 4 * i & 15;
    const u32 byte = both >> 8 * (selector & 7) & 0xff;
    result |= ((selector & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xff : 0) << 8 * i;
  }
  return result;
}

// Replaces `length` bits of `into`, from bit `first`, by the lowest bits of `from`.
template <class Word>
Word insert_bits(Word from, Word into, u32 first, u32 length) {
  constexpr u32 kBits = 8 * sizeof(Word);
  first &= 0xff;
  length &= 0xff;
  if (first >= kBits) return into;
  const Word mask = (length >= kBits ? ~Word{0} : (Word{1} << length) - 1) << first;
  return (into & ~mask) | (from << first & mask);
}

template <class T>
T shift_left(T value, u32 by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<u64>(value) << by);
}
template <class T>
T shift_right(T value, u32 by) {
  constexpr u32 kWidth = 8 * sizeof(T);
  if constexpr (T(-1) < T(0)) return static_cast<T>(value >> (by >= kWidth ? kWidth - 1 : by));
  return by >= kWidth ? T{0} : static_cast<T>(value >> by);
}
__extension__ using u128 = unsigned __int128;
inline u64 multiply_high(u64 a, u64 b) { return static_cast<u64>(static_cast<u128>(a) * b >> 64); }

// Pairs of 8-bit floating-point numbers from and to pairs of 16-bit ones, by the functions of the host.
template <class Format>
u32 widen_pair(u16 pair) {
  float low = 0;
  float high = 0;
  port::Float8Conversion<Format>::widen(pair, low, high);
  return port::float_to_half(low) | static_cast<u32>(port::float_to_half(high)) << 16;
}
template <class Format>
u16 narrow_pair(float high, float low) {
  return port::Float8Conversion<Format>::narrow(low, high);
}

}  // namespace tutti::ptx
