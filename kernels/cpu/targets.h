// The vector instructions of this machine.
#pragma once

#include <cstdint>

namespace tutti::kernels {

// In Highway's bits, at least the one that the whole program is compiled for; of the others only those that
// kernels/cpu/reduce.cc has code for. Any thread.
std::int64_t supported_targets();

}  // namespace tutti::kernels
