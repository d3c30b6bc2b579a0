// The list of algorithms. Each algorithm is a pure function from (shape, rank) to that rank's plan. The comment at
// the top of each .cc file explains its algorithm.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

// Returns the generator of `algorithm` (not kAuto) for `collective`. Errors: kInvalidArgument or kUnsupported,
// with the reason in the message, for example if there are more ranks than a direct algorithm can serve.
Result<Generator> find_generator(const Collective& collective, Algorithm algorithm);

// Returns the algorithms that have a plan for this collective, in the order of the enumeration.
std::vector<Algorithm> algorithms_of(CollectiveKind kind);

}  // namespace tutti
