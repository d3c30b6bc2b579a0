// LaunchGroup::LaunchBuffers: pinned host memory that kernels read. It is needed for launches of many calls or
// transfers, and for calls with tables of blocks of different lengths: these do not fit into the parameters of a
// kernel. Only LaunchGroup::Launcher uses this class. It owns no thread. Hold the group's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/resources.h"
#include "device/native/launch_group.h"

namespace tutti::detail {

class LaunchGroup::LaunchBuffers {
 public:
  explicit LaunchBuffers(const cuda::Driver& driver) : driver_(driver) {}

  // Allocates kPreallocatedBuffers buffers in advance, each for a launch of `members` calls of a communicator with
  // `ranks` ranks, or for a launch with `transfer_queues` queues of one part each. A Group with more sends and receives
  // allocates in the call. Called for groups whose launches wait for ranks outside of the group. In such a group, an
  // allocation during a call could block, because the driver may wait for the whole device, and so for launches that
  // wait for other ranks. Has no effect if there are buffers already.
  Status preallocate(std::size_t members, std::uint32_t ranks, std::uint32_t transfer_queues);
  // Call it at the start of each launch, before fill().
  void begin_launch() { in_use_ = false; }
  // Copies the tables of the calls, and the calls themselves if there are too many for the kernel's parameters,
  // into a free buffer, and sets the tables' addresses in the calls. Returns the device address of the copied
  // calls, or null if the calls fit into the kernel's parameters. Reuses buffers of earlier launches that have
  // ended.
  Result<const device::Call*> fill(const Calls& calls);
  // Puts the queues and parts of the transfers into `launch`, or into a free buffer if they do not fit there.
  Status fill(const DeviceTransfers& transfers, device::TransferLaunch& launch);
  // If the current launch uses a buffer: the buffer may be reused when the event `done` has completed. Captured
  // launches do not call this function, so their buffers are never reused, because each replay reads them.
  void reuse_after(const std::shared_ptr<cuda::Event>& done);

 private:
  struct Buffer {
    cuda::PinnedMemory memory;
    // The event behind the last launch that uses the buffer. Null before the first launch, while a launch is being
    // made, and for ever after the buffer was used by a captured launch, or by one that failed before its event was
    // recorded.
    std::shared_ptr<cuda::Event> done;
    bool used = false;
  };
  Status add(std::size_t bytes);
  Result<const cuda::PinnedMemory*> take(std::size_t bytes);

  const cuda::Driver& driver_;
  std::vector<Buffer> buffers_;
  bool in_use_ = false;  // the current launch reads the last element of buffers_
};

}  // namespace tutti::detail
