// DeviceReports: the asynchronous events in which a device has reported failures of itself, its ports, its queues,
// or its queue pairs. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transports/verbs/library.h"

namespace tutti {

class DeviceReports {
 public:
  explicit DeviceReports(std::string device) : device_(std::move(device)) {}

  // Records an event. `words`: the description of this type of event by libibverbs.
  void take(const ibv_async_event& event, const std::string& words);

  // The current problem of a port or its device, for example "rxe0 port 1 is down"; empty if none was reported.
  std::string trouble(std::uint8_t port);
  // The time at which this process read the report that the port is down, by steady_clock; empty if there is none, or
  // if the port is up again.
  std::optional<std::int64_t> down_since_ns(std::uint8_t port);
  // True if the device has reported that it has failed as a whole.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // Keeps the reports about this object from now on. Call unwatch() before the object is destroyed. Reports about
  // objects that are not watched are dropped, because the address of a destroyed object may be reused.
  void watch(ibv_qp* pair);
  void watch(const void* queue);  // an ibv_cq or ibv_srq
  void unwatch(const void* object);
  // Why the queue pair or queue has failed, in the words of libibverbs; empty as long as no failure was reported.
  std::string failure(const void* object);
  // True if a failure of any watched object was reported.
  bool any_failure() const { return failures_.load(std::memory_order_acquire) > 0; }
  std::vector<ibv_qp*> pairs();  // the watched queue pairs; for tests, which break them

 private:
  struct Watched {
    ibv_qp* pair = nullptr;  // null for a queue
    std::string failure;
  };
  void note_failure(const void* object, const std::string& words);

  const std::string device_;
  std::atomic<bool> dead_ = false;
  std::atomic<std::uint32_t> failures_ = 0;       // number of watched objects that have failed
  std::mutex mutex_;                              // guards all members below
  std::map<std::uint8_t, std::string> troubles_;  // indexed by port; 0: the device itself
  std::map<std::uint8_t, std::int64_t> down_;     // indexed by port
  std::map<const void*, Watched> watched_;
};

}  // namespace tutti
