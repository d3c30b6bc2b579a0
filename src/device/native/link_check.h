// check_links(): whether data arrives that GPUs write into each other's memory. On some machines it is lost without an
// error, although the driver says that the GPUs can access each other: with PCIe access control (ACS) or an IOMMU that
// redirects writes between devices. Each rank sends a message to every other rank, with the kernel of sends and
// receives, and compares what it has received. Only DeviceResourcesMaker uses it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "cuda/driver.h"
#include "device/native/device_offer.h"
#include "kernels/device/transfer_call.h"
#include "tutti/result.h"

namespace tutti::detail {

// What check_links() uses. The context of the GPU must be current.
struct LinkCheck {
  const cuda::Driver& driver;
  cuda::CUfunction kernel;         // that of sends and receives
  device::Link* links;             // the connections of sends and receives, in the memory of the GPU
  std::uint32_t connections;       // their number for each pair of ranks and direction
  device::RankStatus* status;      // as the GPU sees it
  const device::RankStatus& here;  // the same status, as the host sees it
  std::uint32_t blocks;            // most blocks and threads of a launch
  std::uint32_t threads;
  std::uint32_t rank;
  std::uint32_t ranks;
};

// All ranks call it at the same time, when each of them has opened the memory of the others. Waits at most `limit` for
// the messages of the others. Errors: kDevice with the rank whose message has not arrived or was changed on its way;
// those of the driver.
Status check_links(const LinkCheck& check, std::chrono::milliseconds limit);

// Whether a line of 128 bytes that one of these GPUs writes is never seen in part by another, as the protocol LL128
// needs it. NVLink and the memory of a single GPU have this property; PCIe may divide a line. False if NVML does not
// confirm that NVLinks join all of the GPUs. `offers`: at least one.
bool lines_arrive_whole(std::span<const DeviceOffer> offers);

}  // namespace tutti::detail
