// LinkCheck checks that writes between GPUs arrive. On some machines they are lost without an error, although the
// driver says that the GPUs can access each other: with PCIe access control (ACS) or an IOMMU that redirects writes
// between devices (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html). Each rank sends a
// message to every other rank, with the kernel of sends and receives, and compares what it has received.
// DeviceResourcesMaker runs it, and DeviceResources keeps it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>

#include "cuda/driver.h"
#include "cuda/resources.h"
#include "device/native/device_offer.h"
#include "kernels/device/transfer_call.h"
#include "tutti/result.h"

namespace tutti::detail {

// The check of one rank. The context of the GPU must be current for every function. Keep the object until the
// communicator ends: memory of a GPU is freed only when the GPU has no other work, and that work may wait for a rank
// that is in this set-up.
class LinkCheck {
 public:
  // `ranks`: number of ranks of the communicator. `connections`: number of connections for sends and receives of each
  // pair of ranks, in each direction. Errors: those of the driver.
  static Result<LinkCheck> make(const cuda::Driver& driver, std::uint32_t ranks, std::uint32_t connections);

  struct Options {
    cuda::CUfunction kernel = nullptr;         // that of sends and receives
    device::Link* links = nullptr;             // the connections, in the memory of the GPU
    device::RankStatus* status = nullptr;      // as the GPU sees it
    const device::RankStatus* here = nullptr;  // the same status, as the host sees it
    std::uint32_t blocks = 1;                  // the most thread blocks that the launch may have
    std::uint32_t threads = 1;                 // threads of each block
    std::uint32_t rank = 0;
    std::chrono::milliseconds limit{};  // how long the kernel waits for the messages of the others
  };
  // All ranks call it once, at the same time, when each of them has opened the memory of the others. Errors: kDevice
  // with the rank whose message has not arrived, was changed on its way, or could not be checked; those of the driver.
  Status run(const Options& options);
  std::uint64_t bytes() const { return memory_.bytes(); }  // length of the GPU memory of this object

 private:
  LinkCheck(const cuda::Driver& driver, std::uint32_t ranks, std::uint32_t connections, cuda::DeviceMemory memory,
            cuda::PinnedMemory pinned)
      : driver_(driver),
        ranks_(ranks),
        connections_(connections),
        memory_(std::move(memory)),
        pinned_(std::move(pinned)) {}

  const cuda::Driver& driver_;
  const std::uint32_t ranks_;
  const std::uint32_t connections_;
  cuda::DeviceMemory memory_;  // messages to all ranks, one after the other, and then those from all ranks
  cuda::PinnedMemory pinned_;  // a copy of `memory_`, and then the queues and the parts of the launch
};

// Whether a line of 128 bytes that one of these GPUs writes is never seen in part by another, as the protocol LL128
// needs it. NVLink and the memory of a single GPU have this property; PCIe may divide a line. False if there are
// several GPUs and NVML does not confirm that NVLinks join all of them. `offers`: at least one.
bool lines_arrive_whole(std::span<const DeviceOffer> offers);

}  // namespace tutti::detail
