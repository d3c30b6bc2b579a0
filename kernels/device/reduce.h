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

template <class Word>
TUTTI_DEVICE void store_to_all(const Work& work, std::uint64_t offset, const Word& word) {
  for (std::uint32_t d = 0; d < work.destination_count; ++d) {
    if (work.destinations[d] != nullptr) store_word(work.destinations[d] + offset, word);
  }
}

// Words of the rounds in which every thread of the team has `unroll` of them; the rest is done word by word.
TUTTI_DEVICE std::uint64_t whole_rounds(std::uint64_t words, unsigned unroll, Team team) {
  return unroll == 1 ? words : words / (unroll * team.threads) * (unroll * team.threads);
}

// Bytes [begin, begin + words * sizeof(Word)) of every buffer, kUnroll words of kSources sources (0: any number) at a
// time and thread. All loads of a word come before its stores, so a destination may be a source.
template <class E, class Word, unsigned kSources, unsigned kUnroll>
TUTTI_DEVICE void reduce_words(const Rules<E>& rules, const Work& work, std::uint64_t begin, std::uint64_t words,
                               Team team) {
  const std::uint32_t sources = kSources == 0 ? work.source_count : kSources;
  const std::uint64_t whole = whole_rounds(words, kUnroll, team);
  for (std::uint64_t at = team.thread; at < whole; at += kUnroll * team.threads) {
    Accumulator<E, Word> sums[kUnroll];
    Word loaded[kSources == 0 ? 1 : kSources][kUnroll];
    if constexpr (kSources != 0) {
      TUTTI_UNROLL
      for (unsigned s = 0; s < kSources; ++s) {
        TUTTI_UNROLL
        for (unsigned u = 0; u < kUnroll; ++u)
          loaded[s][u] = load_word<Word>(work.sources[s] + begin + (at + u * team.threads) * sizeof(Word));
      }
    }
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u) {
      const std::uint64_t offset = begin + (at + u * team.threads) * sizeof(Word);
      TUTTI_UNROLL
      for (std::uint32_t s = 0; s < sources; ++s) {
        const bool scaled = rules.scaled_source == static_cast<std::int32_t>(s);
        const Word word = kSources == 0 ? load_word<Word>(work.sources[s] + offset) : loaded[kSources == 0 ? 0 : s][u];
        if (s == 0)
          sums[u].begin(rules, word, scaled);
        else
          sums[u].add(rules, word, scaled);
      }
      store_to_all(work, offset, sums[u].finished(rules));
    }
  }
  if constexpr (kUnroll > 1)
    reduce_words<E, Word, kSources, 1>(rules, work, begin + whole * sizeof(Word), words - whole, team);
}

// The same of one source, unchanged.
template <class Word, unsigned kUnroll>
TUTTI_DEVICE void copy_words(const Work& work, std::uint64_t begin, std::uint64_t words, Team team) {
  const std::uint64_t whole = whole_rounds(words, kUnroll, team);
  for (std::uint64_t at = team.thread; at < whole; at += kUnroll * team.threads) {
    Word loaded[kUnroll];
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u)
      loaded[u] = load_word<Word>(work.sources[0] + begin + (at + u * team.threads) * sizeof(Word));
    TUTTI_UNROLL
    for (unsigned u = 0; u < kUnroll; ++u)
      store_to_all(work, begin + (at + u * team.threads) * sizeof(Word), loaded[u]);
  }
  if constexpr (kUnroll > 1) copy_words<Word, 1>(work, begin + whole * sizeof(Word), words - whole, team);
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

template <class E>
TUTTI_DEVICE void reduce_elements(const Work& work, Team team) {
  using Bits = typename E::Bits;
  const Rules<E> rules(work.how);
  const std::uint64_t bytes = work.count * sizeof(Bits);
  const Split split = split_of(work, bytes);
  // Loading several words ahead is for the types whose sums are common and whose words have few elements; what is
  // unrolled for all types would be most of the library.
  constexpr bool kUnrolls = sizeof(Bits) > 1;
  if (split.words > 0) {
    if (kUnrolls && work.source_count == 2)
      reduce_words<E, Word16, kUnrolls ? 2 : 0, kUnrolls ? 4 : 1>(rules, work, split.head, split.words, team);
    else if (kUnrolls && work.source_count == 4)
      reduce_words<E, Word16, kUnrolls ? 4 : 0, kUnrolls ? 2 : 1>(rules, work, split.head, split.words, team);
    else
      reduce_words<E, Word16, 0, 1>(rules, work, split.head, split.words, team);
  }
  const std::uint64_t tail = split.head + split.words * kWordBytes;
  reduce_words<E, Bits, 0, 1>(rules, work, 0, split.head / sizeof(Bits), team);
  reduce_words<E, Bits, 0, 1>(rules, work, tail, (bytes - tail) / sizeof(Bits), team);
}

template <class Bits>
TUTTI_DEVICE void copy_elements(const Work& work, Team team) {
  const std::uint64_t bytes = work.count * sizeof(Bits);
  const Split split = split_of(work, bytes);
  const std::uint64_t tail = split.head + split.words * kWordBytes;
  copy_words<Word16, 8>(work, split.head, split.words, team);
  copy_words<Bits, 1>(work, 0, split.head / sizeof(Bits), team);
  copy_words<Bits, 1>(work, tail, (bytes - tail) / sizeof(Bits), team);
}

TUTTI_DEVICE bool only_copies(const Work& work) {
  return work.source_count == 1 && work.how.scaled_source < 0 && work.how.divisor == 1;
}

TUTTI_DEVICE void reduce(const Work& work, Team team) {
  if (only_copies(work)) {
    with_bits(element_log2_of(work.how.type), [&](auto bits) { copy_elements<decltype(bits)>(work, team); });
  } else {
    with_element(work.how.type, [&](auto element) { reduce_elements<decltype(element)>(work, team); });
  }
}

}  // namespace tutti::device
