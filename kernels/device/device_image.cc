// device_image(): the fatbin that nvcc makes from entry.cu (see CMakeLists.txt). The .incbin directive below puts the
// file into the read-only data of the library.
#include "kernels/device/device_image.h"

#if defined(TUTTI_DEVICE_IMAGE)

// The driver requires an alignment of 8 bytes; 64 is the size of a cache line.
asm(R"(
  .pushsection .rodata
  .balign 64
  .globl tutti_device_image_begin
  .hidden tutti_device_image_begin
tutti_device_image_begin:
  .incbin ")" TUTTI_DEVICE_IMAGE R"("
  .globl tutti_device_image_end
  .hidden tutti_device_image_end
tutti_device_image_end:
  .byte 0
  .popsection
)");

extern "C" const std::byte tutti_device_image_begin[];
extern "C" const std::byte tutti_device_image_end[];

#endif

namespace tutti::kernels {

std::span<const std::byte> device_image() {
#if defined(TUTTI_DEVICE_IMAGE)
  return {tutti_device_image_begin, tutti_device_image_end};
#else
  return {};
#endif
}

std::span<const int> device_architectures() {
#if defined(TUTTI_DEVICE_IMAGE)
  static constexpr int kArchitectures[] = {TUTTI_DEVICE_ARCHITECTURES};
  return kArchitectures;
#else
  return {};
#endif
}

}  // namespace tutti::kernels
