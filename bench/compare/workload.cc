#include "bench/compare/workload.h"

#include <algorithm>

#include "base/collective_table.h"

namespace tutti::compare {
namespace {

// Period of the values. It is a prime number, so that the check notices a displacement by 2^k elements within a block.
constexpr std::size_t kPeriod = 61;
constexpr float kNoResult = -1.0F;

// Never 0, so that the check notices a block of another rank also if blocks have one element.
float value_of(int rank, std::size_t i) { return static_cast<float>((rank + 1) * static_cast<int>(1 + i % kPeriod)); }

float sum_of(int ranks, std::size_t i) {
  const int rank_sum = ranks * (ranks + 1) / 2;
  return static_cast<float>(rank_sum * static_cast<int>(1 + i % kPeriod));
}

// The value of element i in the block from rank `from` to rank `to` of an all-to-all or a scatter. Two blocks
// from the same rank to different ranks differ in every element.
float value_for(int from, int to, std::size_t i) {
  // Greater than value_of() of up to 64 ranks, so that a value also shows who sends and who receives. All values are
  // whole numbers below 2^24, which float represents exactly.
  constexpr int kReceiver = 4096;
  return value_of(from, i) + static_cast<float>(kReceiver * to);
}

template <class Value>
void set(std::span<float> to, const Value& value) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = value(i);
}

template <class Value>
std::uint64_t differing(std::span<const float> from, const Value& value) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < from.size(); ++i) wrong += from[i] == value(i) ? 0 : 1;
  return wrong;
}

}  // namespace

Workload make_workload(CollectiveKind kind, std::uint64_t bytes, int ranks) {
  if (!has_data(kind)) return {.kind = kind, .bytes = 0, .ranks = ranks};
  const std::uint64_t unit = sizeof(float) * (has_blocks(kind) ? static_cast<std::uint64_t>(ranks) : 1);
  return {.kind = kind, .bytes = std::max<std::uint64_t>(1, bytes / unit) * unit, .ranks = ranks};
}

bool has_other(CollectiveKind kind) { return input_in_main(kind) != output_in_main(kind); }

// `main` is the larger one of the input and the output, or the input if both are equally long.
bool input_in_main(CollectiveKind kind) {
  return row_of(kind).input == BlockSet::kAll || row_of(kind).output != BlockSet::kAll;
}

bool output_in_main(CollectiveKind kind) {
  const CollectiveRow& row = row_of(kind);
  const bool in_place = row.root != RootHas::kTheOutput && row.input == BlockSet::kOne && row.output == BlockSet::kOne;
  return in_place || !input_in_main(kind);
}

void fill(const Workload& workload, int rank, const Buffers& buffers) {
  const CollectiveRow& row = row_of(workload.kind);
  const std::size_t block = workload.block_elements();
  std::ranges::fill(buffers.main, kNoResult);
  std::ranges::fill(buffers.other, kNoResult);
  if (!row.has_data || (row.root == RootHas::kTheInput && rank != 0)) return;
  if (!input_in_main(workload.kind)) {
    set(buffers.other.first(block), [&](std::size_t i) { return value_of(rank, i); });
  } else if (row.input == BlockSet::kAll && !row.reduces) {
    set(buffers.main, [&](std::size_t i) { return value_for(rank, static_cast<int>(i / block), i % block); });
  } else {
    set(buffers.main, [&](std::size_t i) { return value_of(rank, i); });
  }
}

std::uint64_t count_wrong(const Workload& workload, int rank, const Buffers& buffers) {
  const CollectiveRow& row = row_of(workload.kind);
  if (!row.has_data || (row.root == RootHas::kTheOutput && rank != 0)) return 0;
  const std::size_t block = workload.block_elements();
  std::span<const float> result = output_in_main(workload.kind) ? buffers.main : buffers.other;
  if (has_blocks(workload.kind) && row.output != BlockSet::kAll) result = result.first(block);
  const auto r = static_cast<std::uint32_t>(rank);
  if (row.reduces) {
    const std::size_t first = row.output == BlockSet::kOwn ? r * block : 0;
    return differing(result, [&](std::size_t i) { return sum_of(workload.ranks, first + i); });
  }
  const std::size_t length =
      row.output == BlockSet::kAll ? block : result.size();  // elements in one block of the result
  return differing(result, [&](std::size_t i) {
    const auto ranks = static_cast<std::uint32_t>(workload.ranks);
    const auto from = static_cast<int>(contributor_of(row.kind, ranks, 0, r, static_cast<std::uint32_t>(i / length)));
    return row.input == BlockSet::kAll ? value_for(from, rank, i % length) : value_of(from, i % length);
  });
}

}  // namespace tutti::compare
