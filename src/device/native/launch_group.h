// LaunchGroup: the ranks of one communicator that share a GPU and a process. Their calls run in one kernel launch.
// Otherwise a kernel of one rank could wait for a kernel of another rank that gets no free blocks. The last rank
// that makes a call launches it for all. A rank that is alone is a group, too; it launches in its caller's stream
// and waits for no other rank.
//
//   stream of a rank    record "ready" ......... wait for "done"; or, if the rank called before the last one: wait for
//                                                a flag in host memory
//   launching stream    wait for all "ready" | kernel | record "done" | write the flags
//
// The launching stream is the ranks' own if they all passed the same one, and otherwise a stream of the group. All
// functions may be called from any thread. One mutex guards all data, and the driver is called while it is held.
//
// Limits: at most kMostWaiting calls of a rank may wait for the other ranks. If a call waits longer than its
// timeout, it fails, and the whole group with it. The host then writes the flags, so that the streams continue.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/call_tag.h"
#include "cuda/resources.h"
#include "device/native/copy_engines.h"
#include "device/native/stream_barrier.h"
#include "device/rank_device.h"
#include "engine/engine.h"
#include "executor/device_program.h"
#include "kernels/device/call.h"
#include "transports/transport.h"

namespace tutti::detail {

// Flags that a rank shares with its device, in pinned host memory.
struct RankFlags {
  device::RankStatus status;
  // Call n uses flag n % kWords. The flag becomes n when the stream of the call need not wait for the call any more.
  static constexpr std::uint32_t kWords = 2048;
  alignas(device::kLineBytes) std::uint32_t passed[kWords] = {};
};

// Launch parameters. Besides the call itself, they must be the same on all ranks for a common launch.
struct DeviceLaunch {
  // The evaluator of `protocol`; not compared, because ranks may have loaded the same code separately.
  cuda::CUfunction kernel = nullptr;
  device::Protocol protocol = device::Protocol::kSimple;
  std::uint32_t channels = 1;
  std::uint32_t slices = 1;
  std::uint32_t threads = 512;
  // 0: kernels may wait for each other. Otherwise the number of launches; their kernels do not wait, and each launch
  // has a barrier of all ranks in front of it.
  std::uint64_t rounds = 0;

  bool operator==(const DeviceLaunch& other) const {
    return protocol == other.protocol && channels == other.channels && slices == other.slices &&
           threads == other.threads && rounds == other.rounds;
  }
};

// One call of one rank. Made by the caller's thread; after submit() it belongs to the group.
class DeviceCall final : public StartCondition {
 public:
  device::Call call;
  DeviceGeometry tables;  // for v-variants; the launch sets their addresses in call.geometry
  DeviceLaunch launch;
  std::optional<CopyEngines::Copies> copies;  // replace the kernel if all calls of the launch have copies
  // The value that ranks write to each other's flags at the barriers of this call; never 0. A rank that writes
  // another value makes another call, and no barrier ends because of it.
  std::uint32_t barrier_value = 1;
  CallTag tag;
  cuda::CUstream stream = nullptr;
  std::int64_t timeout_ns = 0;

  bool open() const override { return true; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}
  // A captured call is finished at once.
  std::optional<Error> lost() override { return std::nullopt; }
  bool finished() override;
  Status outcome() override;
  // Makes the stream wait for the call, after it was submitted; see LaunchGroup::settle().
  Status settle();

 private:
  friend class LaunchGroup;
  std::shared_ptr<class LaunchGroup> launch_group_;  // shared with the ranks; null: the call was never submitted
  std::size_t member_index_ = 0;
  std::uint32_t number_ = 0;            // number of the call among those of the rank; the value of its flag
  std::uint64_t capture_ = 0;           // id of the capture that the stream is in; 0: none
  std::shared_ptr<cuda::Event> ready_;  // shared by the call and the pool to which it returns
  std::shared_ptr<cuda::Event> done_;   // shared by the calls of one launch
  cuda::CUstream launched_in_ = nullptr;
  bool launched_ = false;
  // The stream may wait for a flag, because no other stream of the caller implicitly waits for this one.
  bool non_blocking_ = false;
  bool waits_for_flag_ = false;  // its stream waits for a flag
  std::chrono::steady_clock::time_point deadline_{};
  std::optional<Status> outcome_;  // set when it is known
};

class LaunchGroup : public std::enable_shared_from_this<LaunchGroup> {
 public:
  // What a rank brings to the group when it joins.
  struct MemberOptions {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::function<PeerLife(std::uint32_t rank)> life{};  // state of a peer; called from any thread; empty: not known
    const StreamBarrier* barrier = nullptr;              // set if calls run in rounds, or by copies between barriers
    RankFlags* flags = nullptr;
    cuda::CUdeviceptr flags_on_device = 0;
  };
  // `whole`: these are all ranks of the communicator.
  LaunchGroup(std::shared_ptr<RankDevice> device, const std::vector<std::uint32_t>& ranks, bool whole);
  ~LaunchGroup();
  LaunchGroup(const LaunchGroup&) = delete;
  LaunchGroup& operator=(const LaunchGroup&) = delete;

  // Adds a rank. Call it before the rank's first call. The flags must live until forget(). Errors: those of the
  // driver.
  Status add_member(const MemberOptions& options);
  // Registers a function that is called with the error if this rank cannot take part any more and its peers do not
  // detect that by themselves. It may be called by any thread until forget(), and never while the mutex is held.
  using FailureCallback = std::function<void(const Error&)>;
  void on_failure(std::uint32_t rank, FailureCallback on_failure);

  // Submits the rank's next call. Launches if all other ranks have already made theirs. Errors: those of the call
  // (for example kMismatch), those of the driver, the error that broke the group before.
  Status submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call);
  // Makes the call's stream wait for the call. Call it after submit(), and after everything else that the same
  // thread submits with this call. If the missing ranks are served by other threads, it first waits up to 20 ms for
  // them. Until a stream waits for a flag, those threads may call functions of the driver that wait for the whole
  // device (for example cuMemFree), and streams that share a hardware queue do not delay each other.
  Status settle(DeviceCall& call);

  // Ends all calls of the group that wait for other ranks with `error`, and refuses all later calls.
  void fail(const Error& error) noexcept;
  // Returns why this rank's calls failed, or nothing. If `asks_driver`, also detects a lost context and returns an
  // error that was not reported yet because its call had already returned.
  std::optional<Error> failure(std::uint32_t rank, bool asks_driver);
  // Waits until all launched calls have ended, at most for `limit`. Returns true if nothing runs any more.
  bool drain(std::uint32_t rank, std::chrono::milliseconds limit) noexcept;
  // The rank makes no more calls. Calls of other ranks that wait for it fail.
  void leave(std::uint32_t rank) noexcept;
  // The group does not use the rank's flags after this function has returned.
  void forget(std::uint32_t rank);

 private:
  friend class DeviceCall;
  struct Member {
    MemberOptions options;
    std::shared_ptr<const FailureCallback>
        on_failure{};                 // shared with notify_members(), which calls it without the mutex
    bool failure_unreported = false;  // broken_ has not been reported to it yet
    // Between add_member() and forget().
    bool here = false;
    std::uint64_t failure = 0;  // the device::FailureWord of the rank at the time of forget()
    std::uint32_t numbers = 0;
    bool left = false;
    std::optional<Error> late_error{};                // the error of a call that had already returned
    std::thread::id caller{};                         // the thread that made its last call
    std::deque<std::shared_ptr<DeviceCall>> waiting;  // calls that wait for other ranks; shared with the operation
  };
  // Locks the mutex. After unlocking, the destructor calls the functions of on_failure() for failures that happened
  // meanwhile. They are called without the mutex, because engines have mutexes of their own, and the driver may be
  // slow while the mutex is held.
  class NotifyingLock {
   public:
    explicit NotifyingLock(LaunchGroup& launch_group) : lock(launch_group.mutex_), launch_group_(launch_group) {}
    ~NotifyingLock() { launch_group_.notify_members(lock); }
    NotifyingLock(const NotifyingLock&) = delete;
    NotifyingLock& operator=(const NotifyingLock&) = delete;

    std::unique_lock<std::mutex> lock;

   private:
    LaunchGroup& launch_group_;
  };
  // Free events for reuse. The pool outlives the group if calls still hold events. `free` has capacity for all
  // events that were made, so that returning one allocates nothing.
  struct Pool {
    std::mutex mutex;
    std::size_t made = 0;
    std::vector<std::unique_ptr<cuda::Event>> free;
  };
  // A launch that waits for ranks outside of this group and, as far as is known, has not ended. The watchdog ends it
  // if a rank has gone.
  struct PendingLaunch {
    std::shared_ptr<DeviceCall> call;                              // one of its calls; shared with the operation
    std::shared_ptr<cuda::Event> done;                             // shared with the calls
    std::shared_ptr<cuda::Event> begun;                            // recorded before the kernel or the first barrier
    std::optional<std::chrono::steady_clock::time_point> since{};  // when the watchdog saw that it had begun
  };
  Result<std::shared_ptr<cuda::Event>> take_event();
  Status take_call(Member& caller, const std::shared_ptr<DeviceCall>& call);
  Status make_wait(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  void notify_members(std::unique_lock<std::mutex>& lock) noexcept;
  Error lost(const DeviceCall& call, const Error& error) const;
  void check_waiting_calls();
  void end_kernels() noexcept;
  Member& member(std::uint32_t rank);
  Status look_at_stream(DeviceCall& call);
  Status check_flag_waits(const Member& caller, const DeviceCall& call);
  void release_stream(const DeviceCall& call);
  cuda::CUdeviceptr flag_address(const DeviceCall& call) const;
  bool wait_for_others(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  Status launch_front(const Member& caller);
  Status check_front() const;
  Status launch(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  Result<cuda::CUstream> choose_stream(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  bool missing_served_by_others() const;
  Status put_rounds(const DeviceCall& call, cuda::CUstream stream);
  void write_given_up();
  void check_pending_launches();
  void check_round_timeout(PendingLaunch& first);
  void check_peers(const DeviceCall& call);
  void release_streams() noexcept;
  void release_rounds();
  void check_replays();
  const DeviceCall* first_to_expire() const;
  Status start_watchdog();
  Status put_kernel(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream);
  Error not_launched(cuda::CUresult result, const device::Launch& launch, std::uint32_t threads) const;
  Status preallocate_launch_buffers(std::uint32_t ranks);
  Status add_launch_buffer(std::size_t bytes);
  Result<const device::Call*> fill_launch_buffer(const std::vector<std::shared_ptr<DeviceCall>>& calls);
  void fail_locked(const Error& error) noexcept;
  Status fail_by_exception(std::uint32_t rank) noexcept;
  std::optional<Status> look(DeviceCall& call) noexcept;
  std::optional<Status> find_outcome(DeviceCall& call);
  static std::uint64_t failure_word(const Member& its);
  void watch() noexcept;
  void check_all();
  void wait_for_next_check(std::unique_lock<std::mutex>& lock);
  Error missing(const DeviceCall& call) const;
  static Error call_error(ErrorCode code, std::string message, std::int32_t rank = -1) {
    return {code, ErrorScope::kCall, rank, std::move(message)};
  }

  const std::shared_ptr<RankDevice> device_;  // shared with the ranks
  const bool whole_;
  std::mutex mutex_;
  std::vector<Member> members_;
  std::optional<Error> broken_;
  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // shared with events that are in use
  std::optional<cuda::Stream> stream_;                     // for launches of ranks that have different streams
  std::optional<cuda::Stream> capture_stream_;             // the same for captured launches
  std::shared_ptr<cuda::Event> last_plain_done_;           // "done" of the last launch that was not captured
  std::shared_ptr<cuda::Event> last_captured_done_;        // "done" of the last captured launch
  std::uint64_t last_capture_ = 0;                         // the capture of that launch
  bool captured_rounds_ = false;  // graphs contain barriers, so replays may wait for peers at any time
  std::set<std::uint32_t> captured_barrier_values_;  // the values of the barriers in graphs
  // Counts the calls of release_rounds().
  std::size_t release_turns_ = 0;
  // Host memory that launches read, see fill_launch_buffer(). Memory of captured launches is never reused.
  struct LaunchBuffer {
    cuda::PinnedMemory memory;
    std::shared_ptr<cuda::Event> done;  // null although used: the memory of a captured launch
    bool used = false;
  };
  std::vector<LaunchBuffer> launch_buffers_;
  bool uses_launch_buffer_ = false;  // the current launch reads the last element of launch_buffers_
  std::deque<PendingLaunch> pending_launches_;
  // When the watchdog saw that a peer has left or exited.
  std::optional<std::chrono::steady_clock::time_point> gone_since_;
  std::optional<cuda::Stream> release_stream_;
  std::condition_variable launched_;  // notified when calls were launched or have failed
  // Wakes the watchdog.
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread watchdog_;
};

}  // namespace tutti::detail
