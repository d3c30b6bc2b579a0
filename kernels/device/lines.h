// The protocols LL and LL128. Their messages announce their own arrival: flags are stored among the data, and the
// receiver polls the data itself. No counter announces the message, and the sender needs no fence between the data and
// such a counter, so a short message takes a single trip.
//
// A slot begins with a header line (digest of the call's tag, length), which one thread writes before it writes data.
// The data follows:
//
//   LL     Lines of 16 bytes: 4 bytes of data, the flag, 4 bytes of data, the flag. Each 8 bytes are written as one.
//   LL128  Lines of 128 bytes: 120 bytes of data and 8 bytes of flag, written as one by 8 neighbouring threads of a
//          warp.
//
// The flag is 1 + the number of the message. The flag of LL has only 32 bits, so its values repeat after 2^32 messages.
// When a value is used again, no line may still contain it from its previous use. Therefore the sender writes every
// line of a slot, also those that the message does not need, at the first use of the slot and then once in
// 2^kRenewLog2 uses.
#pragma once

#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/elements.h"
#include "kernels/device/port.h"
#include "kernels/device/wait.h"

namespace tutti::device {

// A slot is rewritten after 2^20 uses. With at most 2^11 slots per connection, that is after at most 2^31 messages,
// which is half of the number of flag values.
inline constexpr int kRenewLog2 = 20;

// A source or a destination of the value, as the threads of a block access it.
struct Stream {
  const std::byte* memory = nullptr;  // elements, aligned to their size; or the start of a slot
  std::uint32_t is_slot = 0;
  // For a slot of LL that is written. 1: every line of the slot must be written, also behind the end of the message, so
  // that no line keeps its flag for so long that flags repeat (kRenewLog2).
  std::uint32_t renews = 0;
  std::uint64_t flag = 0;  // for a slot: the flag of the message
};

TUTTI_DEVICE Word16 flagged(std::uint64_t data, std::uint32_t flag) {
  return {static_cast<std::uint32_t>(data), flag, static_cast<std::uint32_t>(data >> 32), flag};
}

TUTTI_DEVICE std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

template <class Faults>
TUTTI_DEVICE bool has_flag(const Word16& line, std::uint32_t flag) {
  return line.y == flag && (!Faults::kChecksBothFlags || line.w == flag);
}

// --- headers ---------------------------------------------------------------

TUTTI_DEVICE void write_header(std::byte* slot, std::uint32_t digest, std::uint32_t bytes, std::uint64_t flag) {
  port::store16_volatile(slot, flagged(join(bytes, digest), static_cast<std::uint32_t>(flag)));
}

// Returns true and sets `bytes` and `digest` if the header of the message with this flag has arrived in the slot.
// Otherwise returns false.
template <class Faults>
TUTTI_DEVICE bool read_header(const std::byte* slot, std::uint64_t flag, std::uint64_t& bytes, std::uint32_t& digest) {
  const Word16 line = port::load16_volatile(slot);
  if (!has_flag<Faults>(line, static_cast<std::uint32_t>(flag))) return false;
  bytes = line.x;
  digest = line.z;
  return true;
}

// --- elements in memory, 8 bytes at a time -----------------------------------

// load8() loads the smaller of 8 and `bytes` bytes from an address that is aligned to the element size, and store8()
// stores as many. `bytes` is the rest of the buffer, so nothing behind it is accessed.
template <class Bits>
TUTTI_DEVICE std::uint64_t load8(const std::byte* from, std::uint64_t bytes) {
  if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0)
    return port::load(reinterpret_cast<const std::uint64_t*>(from));
  std::uint64_t word = 0;
  for (unsigned i = 0; i < 8 / sizeof(Bits) && i * sizeof(Bits) < bytes; ++i)
    word |= static_cast<std::uint64_t>(port::load(reinterpret_cast<const Bits*>(from) + i)) << (8 * sizeof(Bits) * i);
  return word;
}

template <class Bits>
TUTTI_DEVICE void store8(std::byte* to, std::uint64_t word, std::uint64_t bytes) {
  if (bytes >= 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0)
    return port::store(reinterpret_cast<std::uint64_t*>(to), word);
  for (unsigned i = 0; i < 8 / sizeof(Bits) && i * sizeof(Bits) < bytes; ++i)
    port::store(reinterpret_cast<Bits*>(to) + i, static_cast<Bits>(word >> (8 * sizeof(Bits) * i)));
}

// --- one step ------------------------------------------------------------

// The work that the threads of a block do together in one step: they combine `bytes` bytes of sources[0], sources[1]
// ... and store the result to all destinations. If run_ll() or run_ll128() does not return kReady, only part of the
// data may have been written.
struct LineWork {
  const Stream* sources;
  const Stream* destinations;  // a destination is skipped if its `memory` is null
  std::uint32_t source_count;
  std::uint32_t destination_count;
  std::uint64_t bytes;
  std::uint64_t slot_bytes;
  Arithmetic how;
  bool copies;  // true: there is one source, which is neither scaled nor divided, so its bits are copied
};

// The number of LL lines that a message of `bytes` bytes needs.
TUTTI_DEVICE std::uint64_t divide_words(std::uint64_t bytes) { return (bytes + kLlLineData - 1) / kLlLineData; }

// For each destination slot that must be renewed: writes all lines behind the `words` lines of the message.
TUTTI_DEVICE void renew_ll(const LineWork& work, std::uint64_t words) {
  for (std::uint32_t d = 0; d < work.destination_count; ++d) {
    const Stream& to = work.destinations[d];
    if (to.memory == nullptr || to.is_slot == 0 || to.renews == 0) continue;
    std::byte* lines = const_cast<std::byte*>(to.memory) + kHeaderBytes;
    const std::uint64_t all = (work.slot_bytes - kHeaderBytes) / kLlLineBytes;
    for (std::uint64_t i = words + port::thread(); i < all; i += port::threads())
      port::store16_volatile(lines + i * kLlLineBytes, flagged(0, static_cast<std::uint32_t>(to.flag)));
  }
}

// The most sources from which a thread loads lines before it checks the first of these lines, so that the latencies
// overlap.
inline constexpr unsigned kLinesAtOnce = 4;

TUTTI_DEVICE const std::byte* ll_line(const Stream& from, std::uint64_t index) {
  return from.memory + kHeaderBytes + index * kLlLineBytes;
}

// `line` is the result of one load of line `index` of the slot. Repeats the load until the line has the flag of the
// message, or a bound is reached.
template <class Faults>
TUTTI_DEVICE Outcome finish_ll(const Stream& from, std::uint64_t index, const Bounds& bounds, Word16& line) {
  const auto flag = static_cast<std::uint32_t>(from.flag);
  if (has_flag<Faults>(line, flag)) return Outcome::kReady;
  const std::byte* at = ll_line(from, index);
  return wait_until(bounds, [&] {
    line = port::load16_volatile(at);
    return has_flag<Faults>(line, flag);
  });
}

// Combines the 8 bytes of line `i` of all sources into `word`. Waits for the lines of slots.
template <class E, class Faults>
TUTTI_DEVICE Outcome combine_ll(const Rules<E>& rules, const LineWork& work, std::uint64_t i, const Bounds& bounds,
                                std::uint64_t& word) {
  const std::uint64_t left = work.bytes - i * kLlLineData;
  Accumulator<E, std::uint64_t> sum;
  for (std::uint32_t first = 0; first < work.source_count; first += kLinesAtOnce) {
    Word16 lines[kLinesAtOnce];
    TUTTI_UNROLL
    for (unsigned b = 0; b < kLinesAtOnce; ++b) {
      if (first + b >= work.source_count) break;
      const Stream& from = work.sources[first + b];
      if (from.is_slot != 0) {
        lines[b] = port::load16_volatile(ll_line(from, i));
      } else {
        word = load8<typename E::Bits>(from.memory + i * kLlLineData, left);
        lines[b] = flagged(word, 0);
      }
    }
    TUTTI_UNROLL
    for (unsigned b = 0; b < kLinesAtOnce; ++b) {
      const std::uint32_t s = first + b;
      if (s >= work.source_count) break;
      const Stream& from = work.sources[s];
      if (from.is_slot != 0) {
        const Outcome outcome = finish_ll<Faults>(from, i, bounds, lines[b]);
        if (outcome != Outcome::kReady) return outcome;
      }
      word = join(lines[b].x, lines[b].z);
      if (work.copies) continue;
      const bool scaled = rules.scaled_source == static_cast<std::int32_t>(s);
      if (s == 0)
        sum.begin(rules, word, scaled);
      else
        sum.add(rules, word, scaled);
    }
  }
  if (!work.copies) word = sum.finished(rules);
  return Outcome::kReady;
}

// run_ll() is inlined if that needs no more registers than a thread has. For sm_100 and sm_120, nvcc 13.0 would spill
// about 6 KB of them. So from sm_100 on it is a separate function for each element type, which spills a few hundred
// bytes at most (tests/device/ptx/budgets.py).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define TUTTI_DEVICE_LL TUTTI_DEVICE_APART
#else
#define TUTTI_DEVICE_LL TUTTI_DEVICE
#endif
template <class E, class Faults>
TUTTI_DEVICE_LL Outcome run_ll(const LineWork& work, const Bounds& bounds) {
  using Bits = typename E::Bits;
  const Rules<E> rules(work.how);
  const std::uint64_t words = divide_words(work.bytes);
  for (std::uint64_t i = port::thread(); i < words; i += port::threads()) {
    std::uint64_t word = 0;
    const Outcome outcome = combine_ll<E, Faults>(rules, work, i, bounds, word);
    if (outcome != Outcome::kReady) return outcome;
    const std::uint64_t left = work.bytes - i * kLlLineData;
    for (std::uint32_t d = 0; d < work.destination_count; ++d) {
      const Stream& to = work.destinations[d];
      if (to.memory == nullptr) continue;
      std::byte* memory = const_cast<std::byte*>(to.memory);
      if (to.is_slot != 0) {
        port::store16_volatile(memory + kHeaderBytes + i * kLlLineBytes,
                               flagged(word, static_cast<std::uint32_t>(to.flag)));
      } else {
        store8<Bits>(memory + i * kLlLineData, word, left);
      }
    }
  }
  renew_ll(work, words);
  return Outcome::kReady;
}

// The position of one thread in an LL128 line. 8 neighbouring threads of a warp, called lanes, handle one line. Each of
// the lanes 0 to 6 handles two 8-byte words of data, and lane 7 handles one word of data and the flag.
struct LanePosition {
  std::uint64_t line;
  unsigned lane;         // 0 to 7, within the line
  std::uint64_t offset;  // position of this lane's data in the message, in bytes
  bool in_message;       // false: the message has fewer lines, so this lane must not access memory
};

template <class Bits>
TUTTI_DEVICE Word16 load_lane(const std::byte* from, const LanePosition& position, std::uint64_t bytes) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  if (position.in_message && position.offset < bytes)
    low = load8<Bits>(from + position.offset, bytes - position.offset);
  if (position.in_message && position.lane != 7 && position.offset + 8 < bytes)
    high = load8<Bits>(from + position.offset + 8, bytes - position.offset - 8);
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
          static_cast<std::uint32_t>(high >> 32)};
}

template <class Bits>
TUTTI_DEVICE void store_lane(std::byte* to, const LanePosition& position, const Word16& word, std::uint64_t bytes) {
  if (!position.in_message || position.offset >= bytes) return;
  store8<Bits>(to + position.offset, join(word.x, word.y), bytes - position.offset);
  if (position.lane != 7 && position.offset + 8 < bytes)
    store8<Bits>(to + position.offset + 8, join(word.z, word.w), bytes - position.offset - 8);
}

// Called by all 32 threads of a warp together; they wait for four lines (or for those of them that the message has).
// Either all these lines arrive and all threads return kReady, or no thread returns kReady.
template <class Faults>
TUTTI_DEVICE Outcome poll_ll128(const Stream& from, const LanePosition& position, const Bounds& bounds, Word16& word) {
  WaitTimer timer(bounds);
  const port::Site site = port::Site::current();
  const std::byte* at = from.memory + kHeaderBytes + position.line * kLl128LineBytes + position.lane * sizeof(Word16);
  Outcome outcome = Outcome::kReady;
  for (;;) {
    if (position.in_message) word = port::load_line(at, site);
    const bool looks =
        position.in_message && position.lane == 7 && (Faults::kChecksEveryLine || position.line % 4 != 3);
    const bool missing = looks && join(word.z, word.w) != from.flag;
    if (!port::warp_any(missing, site)) return Outcome::kReady;
    if (outcome == Outcome::kReady) outcome = timer.check(site);
    if (port::warp_any(outcome != Outcome::kReady, site))
      return outcome == Outcome::kReady ? Outcome::kGivenUp : outcome;
  }
}

// Not inlined, so that there is a separate function for each element type. Inlined into the kernel, the code for all
// types would spill registers.
template <class E, class Faults>
TUTTI_DEVICE_APART Outcome run_ll128(const LineWork& work, const Bounds& bounds) {
  using Bits = typename E::Bits;
  const Rules<E> rules(work.how);
  const std::uint64_t lines = (work.bytes + kLl128LineData - 1) / kLl128LineData;
  const unsigned first = port::thread() / 32 * 4;  // a warp handles four lines at a time
  for (std::uint64_t base = first; base < lines; base += port::threads() / 32 * 4) {
    LanePosition position{};
    position.line = base + port::thread() % 32 / 8;
    position.lane = port::thread() % 8;
    position.offset = position.line * kLl128LineData + position.lane * sizeof(Word16);
    position.in_message = position.line < lines;
    Accumulator<E, Word16> sum;
    Word16 word{};
    for (std::uint32_t s = 0; s < work.source_count; ++s) {
      const Stream& from = work.sources[s];
      if (from.is_slot != 0) {
        const Outcome outcome = poll_ll128<Faults>(from, position, bounds, word);
        if (outcome != Outcome::kReady) return outcome;
      } else {
        word = load_lane<Bits>(from.memory, position, work.bytes);
      }
      const bool scaled = rules.scaled_source == static_cast<std::int32_t>(s);
      if (work.copies) continue;
      if (s == 0)
        sum.begin(rules, word, scaled);
      else
        sum.add(rules, word, scaled);
    }
    if (!work.copies) word = sum.finished(rules);
    for (std::uint32_t d = 0; d < work.destination_count; ++d) {
      const Stream& to = work.destinations[d];
      if (to.memory == nullptr) continue;
      std::byte* memory = const_cast<std::byte*>(to.memory);
      if (to.is_slot == 0) {
        store_lane<Bits>(memory, position, word, work.bytes);
        continue;
      }
      Word16 out = word;
      if (position.lane == 7) {
        out.z = static_cast<std::uint32_t>(to.flag);
        out.w = static_cast<std::uint32_t>(to.flag >> 32);
      }
      port::warp_barrier();  // so that the lanes of a line store it together
      if (position.in_message) {
        port::store_line(memory + kHeaderBytes + position.line * kLl128LineBytes + position.lane * sizeof(Word16), out);
      }
    }
  }
  return Outcome::kReady;
}

}  // namespace tutti::device
