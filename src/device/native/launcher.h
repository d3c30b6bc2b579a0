// LaunchGroup::Launcher: puts launches into streams: a kernel, a call in rounds, copies, or sends and receives. It
// orders each launch behind the streams of all members and behind the previous launch (a captured one only within its
// capture). Only LaunchGroup uses this class. It owns no thread. Hold the group's mutex, and make the device's context
// current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/resources.h"
#include "device/native/launch_buffers.h"
#include "device/native/launch_members.h"
#include "device/native/launch_watchdog.h"

namespace tutti::detail {

class LaunchGroup::Launcher {
 public:
  // All arguments must outlive this object.
  Launcher(const RankDevice& device, Members& members, Watchdog& watchdog)
      : device_(device), members_(members), watchdog_(watchdog), buffers_(device.driver()) {}

  // If launches wait for ranks outside of the group, allocates memory that launches must not allocate later; see
  // LaunchBuffers::preallocate(). `ranks`: number of ranks of the communicator. `transfer_queues`: see MemberOptions.
  Status preallocate(std::uint32_t ranks, std::uint32_t transfer_queues);
  // Returns an event that is free or new. When the last reference to it is dropped, it returns to the pool of free
  // events.
  Result<std::shared_ptr<cuda::Event>> take_event();
  // Launches `calls`, one of every member. Their arguments have been checked to agree.
  Status launch(const Calls& calls);
  // Whether the last launch that was not captured has ended; true if there was none. Errors: those of the driver, for
  // example because the context is lost.
  Result<bool> finished() const;

 private:
  // The free events. Each event in use keeps the pool alive, even if the group no longer exists. `free` has
  // capacity for all `made` events, so that returning one allocates nothing.
  struct Pool {
    std::mutex mutex;
    std::size_t made = 0;
    std::vector<std::unique_ptr<cuda::Event>> free;
  };
  Result<cuda::CUstream> choose_stream(const Calls& calls);
  Status order_behind(const Calls& calls, cuda::CUstream stream) const;
  static std::uint32_t wanted_blocks(const Calls& calls);
  Status watch(const std::shared_ptr<DeviceCall>& call, const std::shared_ptr<cuda::Event>& done, std::uint32_t blocks,
               cuda::CUstream stream);
  Status put_call(const Calls& calls, std::uint32_t blocks, cuda::CUstream stream);
  Status put_kernel(const Calls& calls, const device::Call* filled, std::uint32_t blocks, cuda::CUstream stream);
  Status put_rounds(const DeviceCall& call, cuda::CUstream stream);
  Status put_transfers(const DeviceCall& call, std::uint32_t blocks, cuda::CUstream stream);
  Error not_launched(cuda::CUresult result, std::uint32_t blocks, std::uint32_t threads) const;
  static void mark_launched(const Calls& calls, const std::shared_ptr<cuda::Event>& done, cuda::CUstream stream);

  const RankDevice& device_;
  Members& members_;
  Watchdog& watchdog_;
  LaunchBuffers buffers_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // shared with the events in use
  std::optional<cuda::Stream> stream_;                     // the group's stream for launches; empty until it is needed
  std::optional<cuda::Stream> capture_stream_;  // the group's stream for captured launches; empty until it is needed
  // the event behind the last launch that was not captured; null if there was none
  std::shared_ptr<cuda::Event> last_plain_done_;
  // the event behind the last captured launch; null if there was none
  std::shared_ptr<cuda::Event> last_captured_done_;
  std::uint64_t last_capture_ = 0;  // the id of the capture of the last captured launch; 0: there was none
};

}  // namespace tutti::detail
