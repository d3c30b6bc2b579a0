// LaunchGroup::Watchdog: ends launches for which some rank is missing, releases their streams, and logs a warning if a
// launch waits long for other ranks. Only the parts of LaunchGroup use this class. It owns a thread, which start()
// starts when there is something to check for the first time: a launch that waits for ranks outside of the group, or a
// graph with barriers. A call that is not launched yet is checked by the thread that waits for it
// (LaunchGroup::settle()). Hold the group's mutex for every function except join(); the thread locks the mutex by
// itself.
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

  // Starts the thread, or wakes it if it already runs. If the thread cannot be started, the group fails with the
  // returned error (kSystem).
  Status start();
  // A launch that waits for ranks outside of this group and has not ended, as far as the watchdog has seen. The
  // watchdog ends it if one of these ranks is gone (see check_peers()), or if it waits at barriers for longer than its
  // timeout.
  struct PendingLaunch {
    std::shared_ptr<DeviceCall> call;    // the first call of the launch
    std::shared_ptr<cuda::Event> done;   // recorded in the stream behind the last kernel, copy or barrier of the launch
    std::shared_ptr<cuda::Event> begun;  // recorded in the stream before everything else of the launch
    std::uint32_t borrowed = 0;          // how many blocks of the loan it uses
    // when the watchdog first saw that `begun` had completed; empty before
    std::optional<std::chrono::steady_clock::time_point> since{};
    // when a warning that the launch takes long is due; empty before `begun` has completed, and after the warning
    std::optional<std::chrono::steady_clock::time_point> warns_at{};
  };
  void add(PendingLaunch launch) { pending_launches_.push_back(std::move(launch)); }
  void remove_last();
  // Records that a graph contains barriers with this value. From then on, replays may wait for peers at any time, so
  // the watchdog checks the peers all the time. Errors: kUnsupported (more than kMostCapturedBarriers values).
  Status add_captured(std::uint32_t barrier_value);
  bool watches_graphs() const { return !captured_barrier_values_.empty(); }
  // Makes the thread end. Afterwards call join(), without the mutex, because the thread needs the mutex to end.
  void end();
  void join();

 private:
  void watch() noexcept;
  void check_all();
  void wait_for_next_check(std::unique_lock<std::mutex>& lock);
  void check_pending_launches();
  void return_blocks() noexcept;
  void check_round_timeout(const PendingLaunch& first);
  void warn_if_late(PendingLaunch& first);
  void check_peers(const DeviceCall& call);
  void check_replays();
  void release_streams() noexcept;
  void release_rounds() noexcept;
  void give_up_barriers() noexcept;
  bool releases_rounds() const;

  const RankDevice& device_;
  std::mutex& mutex_;
  Members& members_;
  std::deque<PendingLaunch> pending_launches_;
  std::chrono::steady_clock::time_point last_check_;  // when check_pending_launches() last ran
  std::set<std::uint32_t> captured_barrier_values_;   // the values of the barriers in captured calls
  std::size_t release_turns_ = 0;  // counts the calls of release_rounds(), which releases one barrier value at a time
  // When the watchdog first saw that a peer had left or exited; empty if it has seen no such peer, or if no launch is
  // pending.
  std::optional<std::chrono::steady_clock::time_point> gone_since_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace tutti::detail
