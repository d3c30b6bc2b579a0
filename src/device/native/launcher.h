// LaunchGroup::Launcher: puts launches into streams: a kernel, a call in rounds, or copies. It orders each launch
// behind the streams of all ranks and behind the launch before. Used only by LaunchGroup. Owns no thread. Hold the
// group's mutex, with a current context of the device.
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

  // Allocates what later launches must not allocate.
  Status preallocate(std::uint32_t ranks);
  // Returns an event, which returns to the pool of free events after its last use.
  Result<std::shared_ptr<cuda::Event>> take_event();
  // Launches one call of every rank.
  Status launch(const Calls& calls);
  // Whether the last launch that was not captured has ended; true if there was none.
  Result<bool> finished() const;

 private:
  // Free events for reuse. The pool outlives the group if calls still hold events. `free` has capacity for all
  // events that were made, so that returning one allocates nothing.
  struct Pool {
    std::mutex mutex;
    std::size_t made = 0;
    std::vector<std::unique_ptr<cuda::Event>> free;
  };
  Result<cuda::CUstream> choose_stream(const Calls& calls);
  Status order_behind(const Calls& calls, cuda::CUstream stream) const;
  Status watch(const std::shared_ptr<DeviceCall>& call, const std::shared_ptr<cuda::Event>& done,
               cuda::CUstream stream);
  Status put_call(const Calls& calls, cuda::CUstream stream);
  Status put_kernel(const Calls& calls, const device::Call* filled, cuda::CUstream stream);
  Status put_rounds(const DeviceCall& call, cuda::CUstream stream);
  Error not_launched(cuda::CUresult result, const device::Launch& launch, std::uint32_t threads) const;
  Status mark_launched(const Calls& calls, const std::shared_ptr<cuda::Event>& done, cuda::CUstream stream);

  const RankDevice& device_;
  Members& members_;
  Watchdog& watchdog_;
  LaunchBuffers buffers_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // shared with events that are in use
  std::optional<cuda::Stream> stream_;                     // for launches of ranks that have different streams
  std::optional<cuda::Stream> capture_stream_;             // the same for captured launches
  std::shared_ptr<cuda::Event> last_plain_done_;           // "done" of the last launch that was not captured
  std::shared_ptr<cuda::Event> last_captured_done_;        // "done" of the last captured launch
  std::uint64_t last_capture_ = 0;                         // the capture of that launch
};

}  // namespace tutti::detail
