// The table of costs that a tuner plugin changes, and the choice of an algorithm from it. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "nccl/plugins/tuner_interface.h"
#include "tutti/types.h"

namespace tutti::nccl {

// NCCL's number of the collective. Nothing for collectives that NCCL does not tune: all_to_all, gather, scatter.
std::optional<std::size_t> tuned_function(CollectiveKind kind);

// Returns the predicted time in microseconds if the call uses this algorithm.
using PredictUs = std::function<double(Algorithm algorithm)>;

// The table for a collective of tuned_function(). An entry is available if kCounterparts has Tutti's algorithm for it,
// and NCCL_ALGO and NCCL_PROTO allow it (`algorithms` and `protocols`: the bits for this collective). For broadcast and
// reduce the ring is available, as in NCCL, and stands for Algorithm::kAuto. The protocols of an algorithm have the
// same cost, because Tutti's model does not distinguish them. An entry that is not available is kNotAvailable.
CostTable predicted_costs(CollectiveKind kind, std::uint32_t algorithms, std::uint32_t protocols,
                          const PredictUs& predict);

// The algorithm with the cheapest entry of `changed` among those that are available in `offered`; the first of several
// equal ones. Entries that are negative, not a number or infinite are left out, as are those that the plugin has set
// although they are not available. Nothing: there is no entry left.
std::optional<Algorithm> cheapest(CollectiveKind kind, const CostTable& offered, const CostTable& changed);

}  // namespace tutti::nccl
