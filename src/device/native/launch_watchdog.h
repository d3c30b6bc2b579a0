// LaunchGroup::Watchdog: ends calls for which some rank is missing, and releases their streams. Used only by the parts
// of LaunchGroup. Owns a thread, which start() starts when the first call has to wait. Hold the group's mutex for every
// function except join(); the thread locks it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "cuda/resources.h"
#include "device/native/launch_members.h"

namespace tutti::detail {

class LaunchGroup::Watchdog {
 public:
  // All arguments must outlive this object.
  Watchdog(const RankDevice& device, std::mutex& mutex, Members& members)
      : device_(device), mutex_(mutex), members_(members) {}
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Starts the thread if it does not run, and wakes it otherwise. If that fails, the group fails.
  Status start();
  // A launch that waits for ranks outside of this group and, as far as is known, has not ended. The watchdog ends it
  // if a rank has gone.
  struct PendingLaunch {
    std::shared_ptr<DeviceCall> call;                              // one of its calls; shared with the operation
    std::shared_ptr<cuda::Event> done;                             // shared with the calls
    std::shared_ptr<cuda::Event> begun;                            // recorded before the kernel or the first barrier
    std::optional<std::chrono::steady_clock::time_point> since{};  // when the watchdog saw that it had begun
  };
  void add(PendingLaunch launch) { pending_launches_.push_back(std::move(launch)); }
  void remove_last() { pending_launches_.pop_back(); }
  // Notes that a graph contains barriers with this value, so replays may wait for peers at any time. Errors:
  // kUnsupported (too many values).
  Status add_captured(std::uint32_t barrier_value);
  bool watches_graphs() const { return !captured_barrier_values_.empty(); }
  // The thread ends. Afterwards call join(), without the mutex.
  void end();
  void join();

 private:
  void watch() noexcept;
  void check_all();
  void wait_for_next_check(std::unique_lock<std::mutex>& lock);
  void check_waiting_calls();
  void check_pending_launches();
  void check_round_timeout(const PendingLaunch& first);
  void check_peers(const DeviceCall& call);
  void check_replays();
  void release_streams() noexcept;
  void release_rounds();
  void give_up_barriers();
  bool releases_rounds() const;

  const RankDevice& device_;
  std::mutex& mutex_;
  Members& members_;
  std::deque<PendingLaunch> pending_launches_;
  std::set<std::uint32_t> captured_barrier_values_;  // the values of the barriers in graphs
  std::size_t release_turns_ = 0;                    // counts the calls of release_rounds()
  // When the watchdog saw that a peer has left or exited.
  std::optional<std::chrono::steady_clock::time_point> gone_since_;
  std::optional<cuda::Stream> release_stream_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tutti::detail
