// The device code of programs that use the fake driver: a text that the fake driver accepts as a module. The linker
// uses these definitions instead of those in the library tutti_kernels, because it finds them first.
#include <array>
#include <span>
#include <string_view>

#include "kernels/device/device_image.h"

namespace tutti::kernels {

std::span<const std::byte> device_image() {
  static constexpr std::string_view kText = "fake device code";
  return std::as_bytes(std::span(kText));
}

// The compute capability of the fake driver's devices, 9.0.
std::span<const int> device_architectures() {
  static constexpr std::array kArchitectures = {90};
  return kArchitectures;
}

}  // namespace tutti::kernels
