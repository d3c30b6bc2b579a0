// calls_on_device(): counts the calls that a rank's GPU has carried out, for benchmarks and tests. Even if
// Communicator::runs_on_devices() is true, the host may carry out a single call, and the result does not show that.
// May be called by any thread.
#pragma once

#include <cstdint>

#include "tutti/communicator.h"

namespace tutti::detail {

// Returns how many calls of this rank were submitted to its GPU so far. A captured call counts once, however often
// it is replayed.
std::uint64_t calls_on_device(const Communicator& communicator);

}  // namespace tutti::detail
