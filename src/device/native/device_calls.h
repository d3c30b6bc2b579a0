// Which calls a rank's GPU has carried out, for those who measure or test: a call may be the host's although
// Communicator::runs_on_devices(), and nothing in its result shows it. Any thread.
#pragma once

#include <cstdint>

#include "tutti/communicator.h"

namespace tutti::detail {

// How many calls of this rank have been given to its GPU so far; a captured one counts once, whatever its replays.
std::uint64_t calls_on_device(const Communicator& communicator);

}  // namespace tutti::detail
