// Reductions in device code: any number of sources into any number of destinations, in one pass, in registers. A team
// of threads (a block of the evaluator or of a transfer, or a whole grid) runs them together; each thread knows its
// index in the team. The rules and the bits of the results are those of kernels/cpu/reduce.h.
//
// There are three implementations, from simple to fast, which all give the same bits:
//
//   kernels::reduce_reference   on the host
//   ReduceMode::kSimple         one element per thread at a time; also used for buffers with different misalignment
//   ReduceMode::kFast           16 bytes at a time; if it can, a thread loads several such words before it uses the
//                               first one. Elements before and after the aligned part are reduced as with kSimple
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/elements.h"
#include "kernels/device/plain_work.h"
#include "kernels/device/port.h"

namespace tutti::device {

// source_count must be at least 1; null destinations are skipped. A destination may be identical to a source, but
// must not overlap a source in any other way.
struct Work {
  const std::byte* const* sources;
  std::byte* const* destinations;
  std::uint32_t source_count;
  std::uint32_t destination_count;
  std::uint64_t count;  // length of each source and of each destination, in elements
  Arithmetic how;
  ReduceMode mode;
};

struct Team {
  std::uint64_t thread;
  std::uint64_t threads;
};

inline constexpr std::uintptr_t kWordBytes = sizeof(Word16);

// load_word() and store_word() access one Word, which is 16 bytes or one element.
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

// Copies of members of a Work. Loops use these copies, because they stay in registers, while the Work itself may be in
// local memory.
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

// In the unrolled loops, a warp handles a contiguous range of memory: kUnroll rows, each with one word for each of
// its 32 threads (lanes). So the addresses of a lane's words in a buffer differ by constants, and one pair of
// registers is enough for all of them.
inline constexpr unsigned kLanes = 32;
inline constexpr std::uint64_t kRowBytes = kLanes * kWordBytes;  // a row: one word for each lane of a warp

// Offset of the first word of a thread from the start of the words, in bytes, if each thread handles `unroll` words
// at a time.
TUTTI_DEVICE std::uint64_t first_offset(Team team, unsigned unroll) {
  return (team.thread / kLanes * unroll * kLanes + team.thread % kLanes) * kWordBytes;
}

// The largest multiple of kLanes * unroll that is not greater than `words`.
TUTTI_DEVICE std::uint64_t whole_rows(std::uint64_t words, unsigned unroll) {
  return words / (kLanes * unroll) * (kLanes * unroll);
}

// Stores the words of one thread, which begin `offset` bytes into every destination and are kRowBytes apart. The
// address of a destination is loaded once for all words.
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

// Sums kSources floating-point sources. Each thread loads kUnroll words of each source before it uses the first, so
// a destination may also be a source. A NaN in a sum remains a NaN, so it is enough to make it canonical at the end.
// `words` must be a multiple of kLanes * kUnroll.
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

// Combines the word at `offset` of all sources, with any operation and any number of sources. Loads the word from
// kBatch sources before it uses the first of them. The caller stores the result after all loads, so a destination may
// also be a source.
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

// How the bytes of every buffer are divided: single elements up to the first 16-byte boundary (`head`), then words of
// 16 bytes, then the remaining single elements. If the buffers differ in their alignment to 16 bytes, or with
// ReduceMode::kSimple, all bytes are `head`.
struct Split {
  std::uint64_t head;   // length of the first part, in bytes
  std::uint64_t words;  // number of words of 16 bytes
};

TUTTI_DEVICE Split split_of(const Work& work, std::uint64_t bytes) {
  const auto misalignment = [](const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % kWordBytes; };
  const std::uintptr_t common = misalignment(work.sources[0]);
  bool alike = work.mode == ReduceMode::kFast;
  for (std::uint32_t s = 1; s < work.source_count; ++s) alike = alike && misalignment(work.sources[s]) == common;
  for (std::uint32_t d = 0; d < work.destination_count; ++d) {
    if (work.destinations[d] != nullptr) alike = alike && misalignment(work.destinations[d]) == common;
  }
  if (!alike) return {bytes, 0};
  const std::uint64_t head = lesser(bytes, (kWordBytes - common) % kWordBytes);
  return {head, (bytes - head) / kWordBytes};
}

// Enumerates the elements outside the words of a Split: at(i) is the index of the i-th of them in the buffer. First
// come the elements before the words, then those behind the words.
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

// Number of 16-byte loads that a thread has in flight in the unrolled loops of sums: 128 KiB in a block of 512 threads.
// Copies have half as many.
inline constexpr unsigned kLoadsAtOnce = 16;

template <unsigned kNumber>
struct Count {
  static constexpr unsigned kCount = kNumber;
};

// Sums whole rows of words, if there is an unrolled loop for the type E (a floating-point type) and for this number of
// sources (2, 4 or 8). Returns the number of words that it has summed, from the start of the words; 0 if there is no
// such loop.
template <class E>
TUTTI_DEVICE std::uint64_t sum_rows(const Work& work, const Split& split, Team team) {
  const auto sum = [&](auto sources) {
    constexpr unsigned kSources = decltype(sources)::kCount;
    constexpr unsigned kUnroll = kLoadsAtOnce / kSources;
    const std::uint64_t words = whole_rows(split.words, kUnroll);
    sum_words<E, kSources, kUnroll>(work, split.head, words, team);
    return words;
  };
  // 8-bit floats have no unrolled loops if their conversion takes many instructions, because these loops would then
  // make up most of the library.
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

// Reduces all elements except the first `done` words, which sum_rows() has reduced already.
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

// Each thread copies kUnroll words at a time. `words` must be a multiple of kLanes * kUnroll, unless kUnroll is 1.
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

// Sums and copies; requires only_sums(work.how). It calls no function that is not inlined. If a loop contains the
// unrolled loops and also a call of a function that uses many registers, such as combine_all(), then the unrolled
// loops lose these registers: with CUDA 13.0 only a third remains, and they spill.
TUTTI_DEVICE void reduce_sums(const Work& work, Team team) {
  const Split split = split_of(work, work.count << element_log2_of(work.how.type));
  if (only_copies(work)) return copy_all(work, split, team);
  with_element(work.how.type, [&](auto element) {
    using E = decltype(element);
    const std::uint64_t done = sum_rows<E>(work, split, team);
    // Constants instead of the values in `work`, so that the compiler removes the tests of them from the loops.
    const Arithmetic sum{.type = DataType::kUint8, .op = ReduceOp::kSum};
    combine_rest(Rules<E>(sum), work, split, done, team);
  });
}

// Runs a Work with any operation.
TUTTI_DEVICE_APART void reduce_any(const Work& work, Team team) {
  const Split split = split_of(work, work.count << element_log2_of(work.how.type));
  if (only_copies(work)) return copy_all(work, split, team);
  with_element(work.how.type, [&](auto element) { combine_all<decltype(element)>(work, split, team); });
}

}  // namespace tutti::device
