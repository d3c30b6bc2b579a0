// LaunchGroup::Members: the ranks of a launch group, their calls that wait for other ranks, and the error that
// broke the group. Only the parts of LaunchGroup use this class. It owns no thread. Hold the group's mutex for
// every function.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/native/block_budget.h"
#include "device/native/launch_group.h"

namespace tutti::detail {

struct LaunchGroup::Member {
  MemberOptions options;
  // null if none is registered; shared with notify(), which calls it without the mutex
  std::shared_ptr<const FailureCallback> on_failure{};
  bool failure_unreported = false;  // on_failure must still be called with the error of the group
  bool here = false;                // true between add_member() and forget()
  std::uint64_t failure = 0;        // the value of failure_word() at the time of forget()
  bool left = false;
  // calls that were submitted but not launched, because calls of other ranks are missing; oldest first
  std::deque<std::shared_ptr<DeviceCall>> waiting;

  // The device::FailureWord that a kernel of this rank has recorded; 0: no kernel has failed.
  std::uint64_t failure_word() const;
};

class LaunchGroup::Members {
 public:
  Members(const std::vector<std::uint32_t>& ranks, bool whole, const cuda::CUuuid& device);

  std::vector<Member>& all() { return all_; }
  const std::vector<Member>& all() const { return all_; }
  bool whole() const { return whole_; }  // the members are all ranks of the communicator
  Member& of_rank(std::uint32_t rank);
  Member& of(const DeviceCall& call) { return all_[call.member_index_]; }
  const Member& of(const DeviceCall& call) const { return all_[call.member_index_]; }
  std::condition_variable& launched() { return launched_; }
  std::condition_variable& changed() { return changed_; }

  // The error that broke the group; empty if the group can be used.
  const std::optional<Error>& broken() const { return broken_; }
  // Breaks the group, unless it is broken already, and ends all waiting calls with the error that broke it. Works
  // without free memory, because it also handles failed allocations. `only_here`: the peers may not notice the failure,
  // because it is one of sends and receives, in which they may have no part.
  void fail(const Error& error, bool only_here = false) noexcept;
  // Called in a catch block: breaks the group with the error of the exception, and returns the error that broke the
  // group. The group cannot go on, because a call may have been taken or launched in part. `rank`: the rank of the
  // call.
  Status fail_by_exception(std::uint32_t rank) noexcept;
  // Calls the functions that were registered with LaunchGroup::on_failure() and have not been called yet for the
  // group's error. Unlocks the mutex during each of these calls.
  void notify(std::unique_lock<std::mutex>& lock) noexcept;
  // The error of a call with a lost context. `error`: the driver's error.
  Error lost(const DeviceCall& call, const Error& error) const;
  // The error of a call that has waited too long for members without a waiting call; its message lists these
  // members.
  Error missing(const DeviceCall& call) const;

  bool all_wait() const;  // each member has a waiting call
  bool none_waits() const;
  // Checks that the first waiting calls of all members have the same arguments and launch parameters. If one
  // differs from the call of the first member, returns kMismatch with the first difference. Requires all_wait().
  Status check_front() const;
  // Removes the first waiting call of every member, and returns these calls. Requires all_wait().
  Calls take_front();

  // The blocks that the members keep. All of the members take part in every launch.
  std::uint32_t kept_blocks() const;
  // For a launch that can use `blocks` blocks: returns how many it may use, those that the members keep and those that
  // it borrows.
  std::uint32_t take_blocks(std::uint32_t blocks, bool captured);
  BlockLoan& loan() { return loan_; }

  // Makes the running kernels of all members end, by setting the abort flags that waiting kernels poll.
  void end_kernels() noexcept;

 private:
  std::vector<Member> all_;
  const bool whole_;
  const cuda::CUuuid device_;
  BlockLoan loan_;
  std::optional<Error> broken_;
  std::condition_variable launched_;  // notified when calls were launched or have failed; settle() waits for it
  std::condition_variable changed_;   // the watchdog's thread waits for it; notified when there is something to check
};

// Locks the group's mutex. The destructor calls Members::notify(), and unlocks the mutex. The functions of
// on_failure() are called without the mutex because they lock the mutex of an engine: a thread that uses that
// engine must not have to wait for the group's mutex, which is held during slow calls of the driver.
class LaunchGroup::NotifyingLock {
 public:
  NotifyingLock(std::mutex& mutex, Members& members) : lock(mutex), members_(members) {}
  ~NotifyingLock() { members_.notify(lock); }
  NotifyingLock(const NotifyingLock&) = delete;
  NotifyingLock& operator=(const NotifyingLock&) = delete;

  std::unique_lock<std::mutex> lock;

 private:
  Members& members_;
};

}  // namespace tutti::detail
