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
// The group consists of its members with their waiting calls (launch_members.h), of the part that puts launches into
// streams (launcher.h), and of a thread that ends calls for which a rank is missing (launch_watchdog.h).
//
// Limits: at most kMostWaiting calls of a rank may wait for the other ranks. If a call waits longer than its
// timeout, it fails, and the whole group with it. The host then writes the flags, so that the streams continue.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/native/device_call.h"
#include "device/native/stream_barrier.h"
#include "device/rank_device.h"
#include "kernels/device/call.h"
#include "transports/transport.h"

namespace tutti::detail {

class LaunchGroup : public std::enable_shared_from_this<LaunchGroup> {
 public:
  // Flags that a rank shares with its device, in pinned host memory.
  struct RankFlags {
    device::RankStatus status;
    // Call n uses flag n % kWords. The flag becomes n when the stream of the call need not wait for the call any more.
    static constexpr std::uint32_t kWords = 2048;
    alignas(device::kLineBytes) std::uint32_t passed[kWords] = {};
  };
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
  using Calls = std::vector<std::shared_ptr<DeviceCall>>;  // one call of every rank; shared with the operations
  struct Member;
  class Members;
  class NotifyingLock;
  class Watchdog;
  class LaunchBuffers;
  class Launcher;

  Status take_call(Member& caller, const std::shared_ptr<DeviceCall>& call);
  Status look_at_stream(DeviceCall& call);
  Status launch_front(const Member& caller);
  bool wait_for_others(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  Status make_wait(std::unique_lock<std::mutex>& lock, DeviceCall& call);
  std::optional<Status> look(DeviceCall& call) noexcept;
  std::optional<Status> find_outcome(DeviceCall& call);

  const std::shared_ptr<RankDevice> device_;  // shared with the ranks
  std::mutex mutex_;
  const std::unique_ptr<Members> members_;
  const std::unique_ptr<Watchdog> watchdog_;
  const std::unique_ptr<Launcher> launcher_;
};

}  // namespace tutti::detail
