// DeviceReports: what a device has told of itself unasked (asynchronous events): of its ports, queues and queue pairs.
// Thread-safe.
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

  // `words`: the library's, of this type of event.
  void take(const ibv_async_event& event, const std::string& words);

  // What is wrong with a port now: "rxe0 port 1 is down"; empty: nothing that was reported.
  std::string trouble(std::uint8_t port);
  // Since when a port has been down, by steady_clock; nothing while it is up.
  std::optional<std::int64_t> down_since_ns(std::uint8_t port);
  // Nothing works on the device any more.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // From now on, until unwatch(), which comes before its end, what is reported of it is kept. Of others it is dropped:
  // their numbers and addresses may be another's by then.
  void watch(ibv_qp* pair);
  void watch(const void* queue);  // an ibv_cq or ibv_srq
  void unwatch(const void* object);
  // Why a queue pair or queue does not work any more, in the device's words; empty: it does, for all that is known.
  std::string failure(const void* object);
  // Whether of any.
  bool any_failure() const { return failures_.load(std::memory_order_acquire) > 0; }
  std::vector<ibv_qp*> pairs();  // that are watched; for tests, which break them

 private:
  struct Watched {
    ibv_qp* pair = nullptr;  // null: a queue
    std::string failure;
  };
  void note_failure(const void* object, const std::string& words);

  const std::string device_;
  std::atomic<bool> dead_ = false;
  std::atomic<std::uint32_t> failures_ = 0;       // among those that are watched
  std::mutex mutex_;                              // guards all below
  std::map<std::uint8_t, std::string> troubles_;  // by port; 0: of the device
  std::map<std::uint8_t, std::int64_t> down_;     // by port
  std::map<const void*, Watched> watched_;
};

}  // namespace tutti
