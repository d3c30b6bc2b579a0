// calls_on_device(): the number of calls that were submitted to a rank's GPU, for benchmarks and tests. If
// Communicator::runs_on_devices() is true, the host may still carry out single calls, which only this number shows. Any
// thread may call it.
#pragma once

#include <cstdint>

#include "tutti/communicator.h"

namespace tutti::detail {

// Returns the number of submitted calls of this rank on this communicator that its GPU carries out, as a whole or in
// parts. A captured call counts once, however often it is replayed.
std::uint64_t calls_on_device(const Communicator& communicator);

}  // namespace tutti::detail
