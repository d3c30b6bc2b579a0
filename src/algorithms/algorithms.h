// The list of algorithms. The generator of each algorithm is a pure function that returns the plan of one rank. The
// comments at the top of the .cc files in this folder explain the algorithms.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

// Returns the generator of `algorithm` for `collective`. Errors, with the reason in the message: kInvalidArgument
// if a field of `collective` is not valid or if `algorithm` has no plan for this collective (for example kAuto or
// kUser); kUnsupported if there are more ranks than the algorithm supports, or if the collective has no plans at
// all.
Result<Generator> find_generator(const Collective& collective, Algorithm algorithm);

// Returns the algorithms that have a plan for this collective, in the order of the enumeration Algorithm. The list is
// empty if no algorithm has a plan for this collective.
std::vector<Algorithm> algorithms_of(CollectiveKind kind);

}  // namespace tutti
