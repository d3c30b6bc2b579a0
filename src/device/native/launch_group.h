// LaunchGroup: the ranks of one communicator that share a GPU and a process. Their calls run in one kernel launch.
// If each rank launched a kernel of its own, one kernel could wait for another that gets no free thread blocks. The
// rank that makes a call last launches it for all ranks of the group. A rank that shares its GPU with no other rank
// of its process is a group of its own, and waits for no other rank before the launch. If calls run in rounds, every
// rank is a group of its own.
//
//   stream of a rank    record "ready" ......... wait for "done"
//   launching stream    wait for all "ready" | kernel | record "done"
//
// A rank that calls before the last one waits on the host until the launch. Its stream could not wait for the launch
// (wait_for_launch()).
//
// The launching stream is the stream that all ranks passed. It is a stream of the group instead if the ranks passed
// different streams, or if several ranks passed the per-thread default stream. All functions may be called from any
// thread. One mutex guards all data. It is held while launches are put into streams. It is not held while a call's
// stream is examined and the program of a captured call is copied, because that may wait for other streams.
//
// The group consists of its members with their waiting calls (launch_members.h), of the part that puts launches into
// streams (launcher.h), and of a thread that ends calls for which a rank is missing (launch_watchdog.h).
//
// Limits: at most kMostWaiting calls of a rank may wait for the other ranks of the group. If a call waits longer than
// its timeout, the whole group fails.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/native/device_call.h"
#include "device/native/stream_barrier.h"
#include "device/rank_device.h"
#include "kernels/device/call.h"
#include "transports/transport.h"

namespace tutti::detail {

class LaunchGroup : public std::enable_shared_from_this<LaunchGroup> {
 public:
  // Values that a rank passes when it joins the group.
  struct MemberOptions {
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::uint32_t kept_blocks = 0;      // how many blocks the communicator keeps for this rank (BlockBudget)
    std::uint32_t blocks_at_once = 0;   // how many blocks of the library's kernels can be resident on the GPU at once
    std::uint32_t transfer_queues = 0;  // the most queues that a launch of sends and receives has
    // returns the state of a peer; any thread may call it; empty: peers' states are not known
    std::function<PeerStatus(std::uint32_t rank)> peer_status{};
    // logs a warning; any thread may call it
    std::function<void(const std::string& text)> warn{};
    const StreamBarrier* barrier = nullptr;  // null unless calls run in rounds, or by copies between barriers
    // words through which the host and the GPU inform each other about this rank's calls; in pinned host memory
    device::RankStatus* status = nullptr;
  };
  // `ranks`: the members. `whole`: they are all ranks of the communicator.
  LaunchGroup(std::shared_ptr<RankDevice> device, const std::vector<std::uint32_t>& ranks, bool whole);
  ~LaunchGroup();
  LaunchGroup(const LaunchGroup&) = delete;
  LaunchGroup& operator=(const LaunchGroup&) = delete;

  // Adds a rank, which must be one of the `ranks` of the constructor. Call it before the rank's first call. The
  // status and the barrier must exist until forget(). Errors: those of the driver.
  Status add_member(const MemberOptions& options);
  // Registers a function that is called with the error that breaks the group, if the peers may not detect this failure
  // by themselves (!peers_see(), or a failure of sends and receives). Any thread may call the function, and it is never
  // called while the group's mutex is held. A thread that was about to call it at the time of forget() may still do so.
  using FailureCallback = std::function<void(const Error&)>;
  void on_failure(std::uint32_t rank, FailureCallback on_failure);

  // Submits the rank's next call. If all other ranks of the group have already submitted theirs, launches the calls of
  // all ranks together. Otherwise the call is queued, and this function returns without waiting: the rank that submits
  // last launches the calls. Errors: those of the call (for example kMismatch), kUnsupported (too many calls of this
  // rank are queued already), kPeerLost (a rank of the group has left, or a send is to a rank that has left or ended),
  // kSystem (the watchdog's thread cannot be started), those of the driver, the error that broke the group before.
  Status submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call);
  // Waits on the host until the other ranks of the group have made their calls too, at most for the call's timeout.
  // Then makes the call's stream wait for the launch. Call it after submit(), and after all other calls that the same
  // thread submits together with this one (a Group). Errors: the outcome of the call, kUnsupported (the stream is
  // capturing, and not all ranks have made the call), those of the driver.
  Status settle(DeviceCall& call);

  // Ends all calls that wait for other ranks of the group with `error`, and refuses all later calls. If the group
  // is already broken, the first error stays.
  void fail(const Error& error) noexcept;
  // Returns the error that broke the group, or a failure that a kernel of this rank has recorded, which then breaks
  // the group. Returns nothing if there is none. If `asks_driver`, also detects a lost context.
  std::optional<Error> failure(std::uint32_t rank, bool asks_driver);
  // Waits, at most for `limit`, until all launches of the group have ended (except for those in graphs) and no call
  // of `rank` waits. Returns false if that takes longer.
  bool drain(std::uint32_t rank, std::chrono::milliseconds limit) noexcept;
  // Call it when the rank makes no more calls. If calls of the group wait, they wait for this rank in vain, so the
  // group fails.
  void leave(std::uint32_t rank) noexcept;
  // Ends the membership: the group does not use the rank's status and barrier any more, and does not begin to call its
  // on_failure() function. (A thread that was about to call that function may still do so.) The last rank also ends the
  // watchdog's thread. `idle`: no launch of the group runs any more, so the last rank also returns the blocks that the
  // group has borrowed.
  void forget(std::uint32_t rank, bool idle);

 private:
  friend class DeviceCall;
  using Calls = std::vector<std::shared_ptr<DeviceCall>>;  // one call of every member, in the order of the members
  struct Member;
  class Members;
  class NotifyingLock;
  class Watchdog;
  class LaunchBuffers;
  class Launcher;

  Status take_call(Member& caller, const std::shared_ptr<DeviceCall>& call);
  static Status check_receivers(const MemberOptions& options, const TransferCall& transfers);
  Status find_capture(DeviceCall& call) const;
  Status upload_captured(const DeviceCall& call) const;
  Status launch_front(const Member& caller);
  void wait_for_launch(std::unique_lock<std::mutex>& lock, DeviceCall& call);
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
