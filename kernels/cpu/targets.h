// Detects the vector instructions of this machine.
#pragma once

#include <cstdint>

namespace tutti::kernels {

// Returns the targets that this machine supports, as Highway's bits. The result always includes the target for which
// the whole program is compiled. Of the others it includes only those that kernels/cpu/reduce.cc has code for. May
// be called by any thread.
std::int64_t supported_targets();

}  // namespace tutti::kernels
