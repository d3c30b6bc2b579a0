// Helpers for tests of calls that access other ranks' memory. They make one rank's call of any collective, with
// buffers that show whether bytes beside them were changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "communicator/support.h"
#include "plan/collective.h"

namespace tutti::test {

// The arguments of one rank.
struct Part {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t count = 0;  // number of elements of one block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  bool in_place = false;
};

inline std::string to_string(const Part& part) {
  return std::string(to_string(part.kind)) + " of " + std::to_string(part.count) + " " +
         std::string(to_string(part.type)) + ", root " + std::to_string(part.root) +
         (part.in_place ? ", in place" : ", out of place");
}

// Options for the algorithm that needs no messages if memory can be accessed directly. Its result has the bits of
// the plan.
inline CallOptions directly(CollectiveKind kind, std::chrono::milliseconds timeout = {}) {
  CallOptions options = with(kind == CollectiveKind::kAllReduce ? Algorithm::kTwoShot : Algorithm::kDirect);
  options.timeout = timeout;
  return options;
}

inline std::vector<CollectiveKind> direct_kinds() {
  std::vector<CollectiveKind> kinds;
  for (const CollectiveKind kind : all_collectives()) {
    if (kind != CollectiveKind::kBarrier) kinds.push_back(kind);
  }
  return kinds;
}

// Offsets and lengths of one rank's input and output, in bytes from the start of its memory.
struct Layout {
  std::size_t input = 0, input_bytes = 0;
  std::size_t output = 0, output_bytes = 0;
  std::size_t end = 0;
};

inline Layout layout_of(const Part& part, std::int32_t rank, std::int32_t ranks, std::size_t gap) {
  const Collective collective{.kind = part.kind,
                              .ranks = static_cast<std::uint32_t>(ranks),
                              .root = has_root(part.kind) ? static_cast<std::uint32_t>(part.root) : 0};
  const std::size_t block = part.count * size_of(part.type);
  const std::size_t in = input_blocks(collective, static_cast<std::uint32_t>(rank)).count;
  const std::size_t out = output_blocks(collective, static_cast<std::uint32_t>(rank)).count;
  Layout layout{.input = gap, .input_bytes = in * block, .output = gap, .output_bytes = out * block};
  const std::size_t own = static_cast<std::size_t>(rank) * block;
  if (!part.in_place || in == 0 || out == 0) {
    layout.output += in * block + gap;
    layout.end = layout.output + out * block;
  } else {
    if (in < out) layout.input += own;
    if (out < in) layout.output += own;
    layout.end = gap + std::max(in, out) * block;
  }
  return layout;
}

// A rank's memory for one call, with a margin around each buffer.
class Buffers {
 public:
  Buffers(const Part& part, std::int32_t rank, std::int32_t ranks)
      : part_(part), layout_(layout_of(part, rank, ranks, kGap)), bytes_(layout_.end + kGap, kMargin) {}

  std::byte* input() { return bytes_.data() + layout_.input; }
  std::byte* output() { return bytes_.data() + layout_.output; }
  std::size_t input_bytes() const { return layout_.input_bytes; }
  std::size_t output_bytes() const { return layout_.output_bytes; }
  std::vector<std::byte>& bytes() { return bytes_; }

  // Fills the input with bits that depend on the seed.
  void draw(std::uint64_t seed) {
    for (std::size_t i = 0; i < layout_.input_bytes; i += 8) {
      std::uint64_t word = (seed * 1'000'003 + i + 1) * 0x9E3779B97F4A7C15ull;
      word ^= word >> 29;
      std::memcpy(input() + i, &word, std::min<std::size_t>(8, layout_.input_bytes - i));
    }
    drawn_.assign(input(), input() + layout_.input_bytes);
  }
  Status run(Communicator& rank, const CallOptions& options) {
    return rank.run({.kind = part_.kind,
                     .input = layout_.input_bytes == 0 ? nullptr : input(),
                     .output = layout_.output_bytes == 0 ? nullptr : output(),
                     .count = part_.count,
                     .type = part_.type,
                     .op = part_.op,
                     .root = part_.root},
                    options);
  }
  std::vector<std::byte> result() { return {output(), output() + layout_.output_bytes}; }
  // Returns whether the margins and, if the call was not in place, the input are unchanged.
  bool rest_is_as_before() {
    const auto is_margin = [&](std::size_t from, std::size_t to) {
      return std::all_of(bytes_.data() + from, bytes_.data() + to, [](std::byte byte) { return byte == kMargin; });
    };
    const std::size_t input_end = layout_.input + layout_.input_bytes;
    const bool apart = layout_.output >= input_end + kGap;
    if (!is_margin(0, kGap) || !is_margin(layout_.end, layout_.end + kGap)) return false;
    if (!apart) return true;
    return is_margin(input_end, layout_.output) && std::equal(drawn_.begin(), drawn_.end(), input());
  }

 private:
  static constexpr std::size_t kGap = 72;  // in bytes; not a multiple of a cache line, but of every element
  static constexpr std::byte kMargin{0xa5};
  Part part_;
  Layout layout_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> drawn_;
};

// Sanitizer builds are ten times as slow, so they skip the longest calls.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kLongestPart = 300'000;
#else
inline constexpr std::size_t kLongestPart = 5'000'000;
#endif

enum class InPlace : std::uint8_t { kNone, kSome, kAll };

// Returns one rank's calls: all types of collectives, lengths around those of pages and segments, all roots, and
// several combinations of in-place calls. The order is the same on all ranks.
inline std::vector<Part> parts_of(std::int32_t rank, std::int32_t ranks) {
  struct Length {
    std::size_t bytes;
    DataType type;
  };
  constexpr Length kLengths[] = {{1, DataType::kInt8},
                                 {4095, DataType::kUint8},
                                 {4096, DataType::kFloat64},
                                 {4097, DataType::kInt8},
                                 {256 * 1024 - 4, DataType::kFloat32},
                                 {256 * 1024 + 4, DataType::kFloat16},
                                 {(1 << 20) + 12, DataType::kInt32},
                                 {5'000'000, DataType::kFloat32}};
  std::vector<Part> parts;
  for (const CollectiveKind kind : direct_kinds()) {
    for (const InPlace in_place : {InPlace::kNone, InPlace::kSome, InPlace::kAll}) {
      std::int32_t root = 0;
      for (const Length& length : kLengths) {
        if (length.bytes > kLongestPart) continue;
        if (length.bytes == 5'000'000 && in_place != InPlace::kSome) continue;
        const bool every_root = has_root(kind) && length.bytes == 256 * 1024 + 4;
        for (std::int32_t i = 0; i < (every_root ? ranks : 1); ++i) {
          parts.push_back({.kind = kind,
                           .count = length.bytes / size_of(length.type),
                           .type = length.type,
                           .op = parts.size() % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum,
                           .root = root++ % ranks,
                           .in_place = in_place == InPlace::kAll || (in_place == InPlace::kSome && rank % 2 == 1)});
        }
      }
    }
  }
  return parts;
}

// Makes every call on each of the communicators, which have the same ranks. Returns a description of the first
// problem: an error, a result that differs from that of the first communicator, or a changed byte outside the
// output. Empty if all is well.
inline std::string differences(std::span<Communicator* const> ways, const std::vector<Part>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<std::byte> expected;
    for (std::size_t way = 0; way < ways.size(); ++way) {
      Communicator& rank = *ways[way];
      const std::string where = "rank " + std::to_string(rank.rank()) + " of " + std::to_string(rank.size()) +
                                ", way " + std::to_string(way) + ", " + to_string(parts[i]);
      Buffers buffers(parts[i], rank.rank(), rank.size());
      buffers.draw(i * 64 + static_cast<std::uint64_t>(rank.rank()));
      const Status status = buffers.run(rank, directly(parts[i].kind));
      if (!status.ok()) return where + ": " + to_string(status.error());
      if (!buffers.rest_is_as_before()) return where + ": something beside the output has changed";
      if (way == 0) expected = buffers.result();
      if (buffers.result() != expected) return where + ": not the bits of the plan";
    }
  }
  return "";
}

}  // namespace tutti::test
