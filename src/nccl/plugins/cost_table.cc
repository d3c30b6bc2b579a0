#include "nccl/plugins/cost_table.h"

#include <algorithm>
#include <limits>

#include "nccl/environment/counterparts.h"
#include "nccl/environment/parse.h"

namespace tutti::nccl {
namespace {

bool has_only_rings(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
}

// Calls `use` with NCCL's number and Tutti's algorithm for each algorithm of NCCL that has a counterpart.
template <class Use>
void for_each_algorithm(CollectiveKind kind, const Use& use) {
  if (has_only_rings(kind)) use(kRingNumber, Algorithm::kAuto);
  for (const Counterpart& one : kCounterparts) {
    if (one.kind == kind) use(one.number, one.algorithm);
  }
}

}  // namespace

std::optional<std::size_t> tuned_function(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kBroadcast: return 0;
    case CollectiveKind::kReduce: return 1;
    case CollectiveKind::kAllGather: return 2;
    case CollectiveKind::kReduceScatter: return 3;
    case CollectiveKind::kAllReduce: return 4;
    default: return std::nullopt;
  }
}

CostTable predicted_costs(CollectiveKind kind, std::uint32_t algorithms, std::uint32_t protocols,
                          const PredictUs& predict) {
  CostTable costs;
  for (auto& row : costs) row.fill(kNotAvailable);
  for_each_algorithm(kind, [&](std::size_t number, Algorithm algorithm) {
    if ((algorithms >> number & 1u) == 0) return;
    const auto time_us = static_cast<float>(std::max(0.0, predict(algorithm)));
    for (std::size_t protocol = 0; protocol < kProtocolWords.size(); ++protocol) {
      if ((protocols >> protocol & 1u) != 0) costs[number][protocol] = time_us;
    }
  });
  return costs;
}

std::optional<Algorithm> cheapest(CollectiveKind kind, const CostTable& offered, const CostTable& changed) {
  std::optional<Algorithm> best;
  float best_us = std::numeric_limits<float>::max();
  for_each_algorithm(kind, [&](std::size_t number, Algorithm algorithm) {
    for (std::size_t protocol = 0; protocol < kProtocolWords.size(); ++protocol) {
      const float cost = changed[number][protocol];
      // The comparisons are also false for NaN.
      if (offered[number][protocol] != kNotAvailable && cost >= 0 && cost < best_us) {
        best = algorithm;
        best_us = cost;
      }
    }
  });
  return best;
}

}  // namespace tutti::nccl
