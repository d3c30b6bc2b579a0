// The device code of the library, in the form that the driver loads: one compressed fatbin with the kernels of
// entry.cu for each architecture that was built. It is constant. May be used by any thread.
#pragma once

#include <cstddef>
#include <span>

namespace tutti::kernels {

// Empty in a build without nvcc.
std::span<const std::byte> device_image();

// The architectures that the image contains; 90 means compute capability 9.0. In ascending order; the last one is
// also present as PTX. Empty if the image is empty.
std::span<const int> device_architectures();

}  // namespace tutti::kernels
