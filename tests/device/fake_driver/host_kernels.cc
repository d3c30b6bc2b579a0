// The device code as compiled by the host's compiler.
#include "kernels/device/evaluate.h"
#include "kernels/device/plain.h"
#include "kernels/device/transfer.h"
#include "tests/device/emulator/port_emu.h"
#include "tests/device/fake_driver/device_kernels.h"

namespace tutti::testing {

const DeviceKernels& device_kernels() {
  using device::Protocol;
  static constexpr DeviceKernels kKernels = {.evaluate_simple = &device::evaluate<Protocol::kSimple>,
                                             .evaluate_ll = &device::evaluate<Protocol::kLl>,
                                             .evaluate_ll128 = &device::evaluate<Protocol::kLl128>,
                                             .transfer = &device::transfer<>,
                                             .reduce = &device::reduce_plain,
                                             .copy = &device::copy,
                                             .stack_bytes = std::size_t{128} << 10};
  return kKernels;
}

}  // namespace tutti::testing
