#include "bench/compare/workload.h"

#include <algorithm>

namespace tutti::compare {
namespace {

constexpr std::size_t kPeriod = 61;  // period of the values; prime, so that data shifted by a block or page is noticed
constexpr float kNoResult = -1.0F;

float value_of(int rank, std::size_t i) { return static_cast<float>((rank + 1) * static_cast<int>(i % kPeriod)); }

float sum_of(int ranks, std::size_t i) {
  const int rank_sum = ranks * (ranks + 1) / 2;
  return static_cast<float>(rank_sum * static_cast<int>(i % kPeriod));
}

// The value of element i in the block from rank `from` to rank `to` of an all-to-all. Blocks for different ranks
// differ.
float value_for(int from, int to, std::size_t i) { return value_of(from, i) + static_cast<float>(to); }

bool has_blocks(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter: return true;
    default: return false;
  }
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
  if (kind == CollectiveKind::kBarrier) return {.kind = kind, .bytes = 0, .ranks = ranks};
  const std::uint64_t unit = sizeof(float) * (has_blocks(kind) ? static_cast<std::uint64_t>(ranks) : 1);
  return {.kind = kind, .bytes = std::max<std::uint64_t>(1, bytes / unit) * unit, .ranks = ranks};
}

bool has_other(CollectiveKind kind) { return has_blocks(kind) || kind == CollectiveKind::kReduce; }

void fill(const Workload& workload, int rank, const Buffers& buffers) {
  const std::size_t block = workload.block_elements();
  std::ranges::fill(buffers.main, kNoResult);
  std::ranges::fill(buffers.other, kNoResult);
  switch (workload.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReduceScatter: return set(buffers.main, [&](std::size_t i) { return value_of(rank, i); });
    case CollectiveKind::kBroadcast:
      if (rank == 0) set(buffers.main, [&](std::size_t i) { return value_of(0, i); });
      return;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return set(buffers.other.first(block), [&](std::size_t i) { return value_of(rank, i); });
    case CollectiveKind::kAllToAll:
      return set(buffers.main, [&](std::size_t i) { return value_for(rank, static_cast<int>(i / block), i % block); });
    case CollectiveKind::kScatter:
      if (rank == 0) {
        set(buffers.main, [&](std::size_t i) { return value_for(0, static_cast<int>(i / block), i % block); });
      }
      return;
    default: return;
  }
}

std::uint64_t count_wrong(const Workload& workload, int rank, const Buffers& buffers) {
  const std::size_t block = workload.block_elements();
  const auto sum = [&](std::size_t i) { return sum_of(workload.ranks, i); };
  const auto gathered = [&](std::size_t i) { return value_of(static_cast<int>(i / block), i % block); };
  switch (workload.kind) {
    case CollectiveKind::kAllReduce: return differing(buffers.main, sum);
    case CollectiveKind::kReduce: return rank == 0 ? differing(buffers.other, sum) : 0;
    case CollectiveKind::kReduceScatter:
      return differing(buffers.other.first(block),
                       [&](std::size_t i) { return sum(static_cast<std::size_t>(rank) * block + i); });
    case CollectiveKind::kBroadcast: return differing(buffers.main, [](std::size_t i) { return value_of(0, i); });
    case CollectiveKind::kAllGather: return differing(buffers.main, gathered);
    case CollectiveKind::kGather: return rank == 0 ? differing(buffers.main, gathered) : 0;
    case CollectiveKind::kAllToAll:
      return differing(buffers.other,
                       [&](std::size_t i) { return value_for(static_cast<int>(i / block), rank, i % block); });
    case CollectiveKind::kScatter:
      return differing(buffers.other.first(block), [&](std::size_t i) { return value_for(0, rank, i); });
    default: return 0;
  }
}

}  // namespace tutti::compare
