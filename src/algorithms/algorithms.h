// The algorithms, by name. Each is a pure function from (shape, rank) to that rank's plan; see the file of each for its
// story.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

// The generator of `algorithm` (not kAuto) for `collective`. kUnsupported where the algorithm cannot do it (with the
// reason, e.g. more ranks than a direct algorithm takes).
Result<Generator> find_generator(const Collective& collective, Algorithm algorithm);

// The algorithms that have a plan for this kind, in the order of the enumeration.
std::vector<Algorithm> algorithms_of(CollectiveKind kind);

}  // namespace tutti
