// Reductions in device code: any number of sources into any number of destinations, in one pass, in registers. Run by a
// team of threads (a block of the evaluator, or a whole grid), each of which knows its number in the team. The contract
// and every bit of the results are those of kernels/cpu/reduce.h.
//
// The ladder, from plain to fast; all give the same bits:
//   kernels::reduce_reference   on the host
//   Rung::kSimple               one element a thread at a time; also what buffers take that are misaligned differently
//   Rung::kFast                 16 bytes at a time, several of them loaded before the first is used; elements before
//                               and after the aligned part like kSimple
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/elements.h"
#include "kernels/device/plain_work.h"
#include "kernels/device/port.h"

namespace tutti::device {

// 1 <= source_count; null destinations are left out. A destination may be a source, but must not overlap one otherwise.
struct Work {
  const std::byte* const* sources;
  std::byte* const* destinations;
  std::uint32_t source_count;
  std::uint32_t destination_count;
  std::uint64_t count;  // elements
  Arithmetic how;
  Rung rung;
};

struct Team {
  std::uint64_t thread;
  std::uint64_t threads;
};

inline constexpr std::uintptr_t kWordBytes = sizeof(Word16);

// What is moved whole and unchanged: 16 bytes, or one element.
template <class Word>
TUTTI_DEVICE Word load_word(const std::byte* from) {
  if constexpr (sizeof(Word) == sizeof(Word16))
    return port::load16(from);
  else
    return port::load(reinterpret_cast<const Word*>(from));
}
template <class Word>
TUTTI_DEVICE void store_word(std::byte* to, const Word& word) {
  if constexpr (sizeof(Word) == sizeof(Word16))
    port::store16(to, word);
  else
    port::store(reinterpret_cast<Word*>(to), word);
}

// Of a Work, for the loops: its own may lie in local memory.
struct Destinations {
  std::byte* const* to;
  std::uint32_t count;
};
struct Sources {
  const std::byte* const* from;
  std::uint32_t count;
};
TUTTI_DEVICE Destinations destinations_of(const Work& work) { return {work.destinations, work.destination_count}; }
TUTTI_DEVICE Sources sources_of(const Work& work) { return {work.sources, work.source_count}; }

// Unrolled loops go by warps: a warp's kUnroll words of each lane lie side by side, so a buffer's addresses differ by
// constants, and all of them take one register pair.
inline constexpr unsigned kLanes = 32;
inline constexpr std::uint64_t kRowBytes = kLanes * kWordBytes;  // one word of each lane

// Of a thread's first word.
TUTTI_DEVICE std::uint64_t first_offset(Team team, unsigned unroll) {
  return (team.thread / kLanes * unroll * kLanes + team.thread % kLanes) * kWordBytes;
}

TUTTI_DEVICE std::uint64_t whole_rows(std::uint64_t words, unsigned unroll) {
  return words / (kLanes * unroll) * (kLanes * unroll);
}

// Words of one thread, `offset` bytes into every destination and kRowBytes apart. An address is fetched once for all.
template <unsigned kUnroll, class Word>
TUTTI_DEVICE void store_to_all(Destinations all, std::uint64_t offset, const Word* words) {
  for (std::uint32_t d = 0; d < all.count; ++d) {
    std::byte* to = all.to[d];
    if (to == nullptr) continue;
    to += offset;
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u) store_word(to + u * kRowBytes, words[u]);
  }
}

// Sums of kSources floating sources, kUnroll words of each at a time and thread, all of them loaded before the first is
// used; so a destination may be a source. What a sum makes of a NaN stays one to its end, so it is canonicalized there.
// `words` is a multiple of kLanes * kUnroll.
template <class E, unsigned kSources, unsigned kUnroll>
TUTTI_DEVICE void sum_words(const Work& work, std::uint64_t begin, std::uint64_t words, Team team) {
  const Destinations destinations = destinations_of(work);
  const std::byte* from[kSources];
  TUTTI_UNROLL
  for (unsigned s = 0; s < kSources; ++s) from[s] = work.sources[s];
  const std::uint64_t end = begin + words * kWordBytes;
  const std::uint64_t stride = team.threads * kUnroll * kWordBytes;
  for (std::uint64_t offset = begin + first_offset(team, kUnroll); offset < end; offset += stride) {
    Word16 loaded[kSources][kUnroll];
    TUTTI_UNROLL
    for (unsigned s = 0; s < kSources; ++s) {
      TUTTI_UNROLL
      for (unsigned u = 0; u < kUnroll; ++u) loaded[s][u] = port::load16(from[s] + offset + u * kRowBytes);
    }
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u) {
      Sum<E> sum(loaded[0][u]);
      TUTTI_UNROLL
      for (unsigned s = 1; s < kSources; ++s) sum.add(loaded[s][u]);
      loaded[0][u] = sum.finished();
    }
    store_to_all<kUnroll>(destinations, offset, loaded[0]);
  }
}

// Everything else: any operation, any number of sources, one word at a time and thread, kBatch sources of it loaded
// before the first is used. All loads of a word come before its stores.
template <class E, class Word, unsigned kBatch>
TUTTI_DEVICE Word combined_word(const Rules<E>& rules, Sources sources, std::uint64_t offset) {
  Accumulator<E, Word> values;
  for (std::uint32_t first = 0; first < sources.count; first += kBatch) {
    Word loaded[kBatch];
    TUTTI_UNROLL
    for (unsigned b = 0; b < kBatch; ++b) {
      if (first + b < sources.count) loaded[b] = load_word<Word>(sources.from[first + b] + offset);
    }
    TUTTI_UNROLL
    for (unsigned b = 0; b < kBatch; ++b) {
      const std::uint32_t s = first + b;
      if (s >= sources.count) break;
      const bool scaled = rules.scaled_source == static_cast<std::int32_t>(s);
      if (s == 0)
        values.begin(rules, loaded[b], scaled);
      else
        values.add(rules, loaded[b], scaled);
    }
  }
  return values.finished(rules);
}

template <class E>
TUTTI_DEVICE void combine_words(const Rules<E>& rules, const Work& work, std::uint64_t begin, std::uint64_t words,
                                Team team) {
  constexpr unsigned kBatch = sizeof(typename E::Bits) == 1 ? 2 : 4;
  const Sources sources = sources_of(work);
  const Destinations destinations = destinations_of(work);
  for (std::uint64_t at = team.thread; at < words; at += team.threads) {
    const std::uint64_t offset = begin + at * kWordBytes;
    const Word16 word = combined_word<E, Word16, kBatch>(rules, sources, offset);
    store_to_all<1>(destinations, offset, &word);
  }
}

// How the bytes of every buffer fall apart: elements up to the first 16-byte boundary, words, elements.
struct Split {
  std::uint64_t head;   // bytes
  std::uint64_t words;  // of 16 bytes
};

TUTTI_DEVICE Split split_of(const Work& work, std::uint64_t bytes) {
  const auto misalignment = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % kWordBytes; };
  const std::uintptr_t common = misalignment(work.sources[0]);
  bool alike = work.rung == Rung::kFast;
  for (std::uint32_t s = 1; s < work.source_count; ++s) alike = alike && misalignment(work.sources[s]) == common;
  for (std::uint32_t d = 0; d < work.destination_count; ++d) {
    if (work.destinations[d] != nullptr) alike = alike && misalignment(work.destinations[d]) == common;
  }
  if (!alike) return {bytes, 0};
  const std::uint64_t head = lesser(bytes, (kWordBytes - common) % kWordBytes);
  return {head, (bytes - head) / kWordBytes};
}

// Elements outside the words: those before them, then those behind.
struct Rest {
  std::uint64_t before;
  std::uint64_t begin_behind;
  std::uint64_t all;

  TUTTI_DEVICE Rest(const Split& split, std::uint64_t element_bytes, std::uint64_t count)
      : before(split.head / element_bytes),
        begin_behind((split.head + split.words * kWordBytes) / element_bytes),
        all(before + count - begin_behind) {}

  TUTTI_DEVICE std::uint64_t at(std::uint64_t i) const { return i < before ? i : i - before + begin_behind; }
};

// Loads of 16 bytes that a thread has under way in the unrolled loops: 128 KiB a block of 512 threads.
inline constexpr unsigned kLoadsAtOnce = 16;

template <unsigned kNumber>
struct Count {
  static constexpr unsigned kCount = kNumber;
};

// How many of the words it has summed: whole rows, where there is a loop for so many sources.
template <class E>
TUTTI_DEVICE std::uint64_t sum_rows(const Work& work, const Split& split, Team team) {
  const auto sum = [&](auto sources) {
    constexpr unsigned kSources = decltype(sources)::kCount;
    constexpr unsigned kUnroll = kLoadsAtOnce / kSources;
    const std::uint64_t words = whole_rows(split.words, kUnroll);
    sum_words<E, kSources, kUnroll>(work, split.head, words, team);
    return words;
  };
  // Where 8-bit floats are converted by many instructions, their unrolled loops would be most of the library.
  if constexpr (E::kFloating && (sizeof(typename E::Bits) > 1 || port::kConvertsFloat8)) {
    switch (work.source_count) {
      case 2: return sum(Count<2>{});
      case 4: return sum(Count<4>{});
      case 8: return sum(Count<8>{});
      default: return 0;
    }
  }
  return 0;
}

// All but the first `done` words.
template <class E>
TUTTI_DEVICE void combine_rest(const Rules<E>& rules, const Work& work, const Split& split, std::uint64_t done,
                               Team team) {
  using Bits = typename E::Bits;
  combine_words<E>(rules, work, split.head + done * kWordBytes, split.words - done, team);
  const Rest rest(split, sizeof(Bits), work.count);
  const Destinations destinations = destinations_of(work);
  for (std::uint64_t i = team.thread; i < rest.all; i += team.threads) {
    const std::uint64_t offset = rest.at(i) * sizeof(Bits);
    const Bits bits = combined_word<E, Bits, 1>(rules, sources_of(work), offset);
    store_to_all<1>(destinations, offset, &bits);
  }
}

template <class E>
TUTTI_DEVICE_APART void combine_all(const Work& work, const Split& split, Team team) {
  combine_rest(Rules<E>(work.how), work, split, 0, team);
}

template <class Bits>
TUTTI_DEVICE void copy_rest(const Work& work, const Split& split, Team team) {
  const Rest rest(split, sizeof(Bits), work.count);
  const Destinations destinations = destinations_of(work);
  for (std::uint64_t i = team.thread; i < rest.all; i += team.threads) {
    const std::uint64_t offset = rest.at(i) * sizeof(Bits);
    const Bits bits = load_word<Bits>(work.sources[0] + offset);
    store_to_all<1>(destinations, offset, &bits);
  }
}

// kUnroll words at a time and thread; `words` is a multiple of kLanes * kUnroll, or kUnroll is 1.
template <unsigned kUnroll>
TUTTI_DEVICE void copy_words(const Work& work, std::uint64_t begin, std::uint64_t words, Team team) {
  const Destinations destinations = destinations_of(work);
  const std::byte* from = work.sources[0];
  const std::uint64_t end = begin + words * kWordBytes;
  const std::uint64_t stride = team.threads * kUnroll * kWordBytes;
  for (std::uint64_t offset = begin + first_offset(team, kUnroll); offset < end; offset += stride) {
    Word16 loaded[kUnroll];
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u) loaded[u] = port::load16(from + offset + u * kRowBytes);
    store_to_all<kUnroll>(destinations, offset, loaded);
  }
}

TUTTI_DEVICE void copy_all(const Work& work, const Split& split, Team team) {
  constexpr unsigned kUnroll = kLoadsAtOnce / 2;
  const std::uint64_t rows = whole_rows(split.words, kUnroll);
  copy_words<kUnroll>(work, split.head, rows, team);
  copy_words<1>(work, split.head + rows * kWordBytes, split.words - rows, team);
  with_bits(element_log2_of(work.how.type), [&](auto bits) { copy_rest<decltype(bits)>(work, split, team); });
}

TUTTI_DEVICE bool only_copies(const Work& work) {
  return work.source_count == 1 && work.how.scaled_source < 0 && work.how.divisor == 1;
}
TUTTI_DEVICE bool only_sums(const Arithmetic& how) {
  return how.op == ReduceOp::kSum && how.scaled_source < 0 && how.divisor == 1;
}

// Sums and copies, `only_sums(work.how)`; nothing is called. A loop around the unrolled ones that also calls what takes
// many registers (combine_all() does) costs them theirs: with CUDA 13.0 a third is left, and they spill.
TUTTI_DEVICE void reduce_sums(const Work& work, Team team) {
  const Split split = split_of(work, work.count << element_log2_of(work.how.type));
  if (only_copies(work)) return copy_all(work, split, team);
  with_element(work.how.type, [&](auto element) {
    using E = decltype(element);
    const std::uint64_t done = sum_rows<E>(work, split, team);
    const Arithmetic sum{.type = DataType::kUint8, .op = ReduceOp::kSum};  // what is known here is not asked in loops
    combine_rest(Rules<E>(sum), work, split, done, team);
  });
}

// Every operation.
TUTTI_DEVICE_APART void reduce_any(const Work& work, Team team) {
  const Split split = split_of(work, work.count << element_log2_of(work.how.type));
  if (only_copies(work)) return copy_all(work, split, team);
  with_element(work.how.type, [&](auto element) { combine_all<decltype(element)>(work, split, team); });
}

}  // namespace tutti::device
