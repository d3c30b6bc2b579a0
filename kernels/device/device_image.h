// The library's device code, as the driver loads it: one compressed fatbin with the kernels of entry.cu for every
// architecture that was built. A constant; any thread.
#pragma once

#include <cstddef>
#include <span>

namespace tutti::kernels {

// Empty in a build without nvcc.
std::span<const std::byte> device_image();

// What it was built for: 90 is compute capability 9.0. Ascending; the last one is there as PTX too. Empty with it.
std::span<const int> device_architectures();

}  // namespace tutti::kernels
