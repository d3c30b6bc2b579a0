// The kernels that the fake device runs (fake_device.h). A program has one of two tables: the device code as compiled
// by the host's compiler (host_kernels.cc), or PTX that was translated into C++ (tests/device/ptx).
#pragma once

#include <cstddef>

#include "kernels/device/call.h"
#include "kernels/device/plain_work.h"
#include "kernels/device/transfer_call.h"

namespace tutti::testing {

struct DeviceKernels {
  void (*evaluate_simple)(const device::Launch&);
  void (*evaluate_ll)(const device::Launch&);
  void (*evaluate_ll128)(const device::Launch&);
  void (*transfer)(const device::TransferLaunch&);
  void (*reduce)(const device::PlainWork&);
  void (*copy)(const device::CopyWork&);
  std::size_t stack_bytes;  // of each emulated thread
};

const DeviceKernels& device_kernels();

}  // namespace tutti::testing
