// LaunchGroup::LaunchBuffers: host memory that launches read, because many calls, and tables of blocks with different
// lengths, do not fit into the parameters of a kernel. Used only by LaunchGroup::Launcher. Owns no thread. Hold the
// group's mutex.
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

  // Allocates some buffers in advance, for launches of `members` calls of a communicator with `ranks` ranks. For groups
  // whose launches wait for ranks outside of the group: to allocate more, the driver may wait for the whole device, and
  // so for those launches. No effect if there are buffers already.
  Status preallocate(std::size_t members, std::uint32_t ranks);
  // Call it before the next launch.
  void begin_launch() { in_use_ = false; }
  // Puts the calls and their tables into a buffer if they need one. Returns the address of the calls on the device, or
  // null if the parameters of the kernel hold all calls. Memory of earlier launches that have ended is reused.
  Result<const device::Call*> fill(const Calls& calls);
  // The buffer of the current launch, if it uses one, may be reused after `done`. Without this call it is never reused;
  // that is the case for captured launches.
  void reuse_after(const std::shared_ptr<cuda::Event>& done);

 private:
  struct Buffer {
    cuda::PinnedMemory memory;
    std::shared_ptr<cuda::Event> done;  // null although used: the memory of a captured launch
    bool used = false;
  };
  Status add(std::size_t bytes);

  const cuda::Driver& driver_;
  std::vector<Buffer> buffers_;
  bool in_use_ = false;  // the current launch reads the last element of buffers_
};

}  // namespace tutti::detail
