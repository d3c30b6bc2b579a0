// The device code of the library, in the form that the driver loads: one compressed fatbin, which contains the kernels
// of entry.cu for each architecture of the build. It is constant, and any thread may use it.
#pragma once

#include <cstddef>
#include <span>

namespace tutti::kernels {

// The image. Empty if the library was built without device code (TUTTI_CUDA=OFF, or no usable nvcc).
std::span<const std::byte> device_image();

// The architectures for which the image contains machine code, in ascending order; 90 means compute capability 9.0. For
// the last one the image also contains PTX, which the driver compiles for later GPUs. Empty if the image is empty.
std::span<const int> device_architectures();

}  // namespace tutti::kernels
