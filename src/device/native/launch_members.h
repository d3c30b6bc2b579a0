// LaunchGroup::Members: the ranks of a launch group, their calls that wait for other ranks, and the error that broke
// the group. Used only by the parts of LaunchGroup. Owns no thread. Hold the group's mutex for every function.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "device/native/launch_group.h"

namespace tutti::detail {

struct LaunchGroup::Member {
  MemberOptions options;
  std::shared_ptr<const FailureCallback> on_failure{};  // shared with notify(), which calls it without the mutex
  bool failure_unreported = false;                      // the error of the group has not been reported to it yet
  bool here = false;                                    // between add_member() and forget()
  std::uint64_t failure = 0;                            // the device::FailureWord of the rank at the time of forget()
  std::uint32_t numbers = 0;
  bool left = false;
  std::optional<Error> late_error{};                // the error of a call that had already returned
  std::thread::id caller{};                         // the thread that made its last call
  std::deque<std::shared_ptr<DeviceCall>> waiting;  // calls that wait for other ranks; shared with the operation

  // The device::FailureWord that the rank's device has recorded; 0: none.
  std::uint64_t failure_word() const;
};

class LaunchGroup::Members {
 public:
  Members(const std::vector<std::uint32_t>& ranks, bool whole);

  std::vector<Member>& all() { return all_; }
  const std::vector<Member>& all() const { return all_; }
  bool whole() const { return whole_; }  // these are all ranks of the communicator
  Member& of_rank(std::uint32_t rank);
  Member& of(const DeviceCall& call) { return all_[call.member_index_]; }
  const Member& of(const DeviceCall& call) const { return all_[call.member_index_]; }
  std::condition_variable& launched() { return launched_; }
  std::condition_variable& changed() { return changed_; }

  // The error that broke the group, or nothing.
  const std::optional<Error>& broken() const { return broken_; }
  // Breaks the group, and ends all waiting calls. Allocates nothing, because it also handles failed allocations.
  void fail(const Error& error) noexcept;
  // Called in a catch block. A call may have been partly taken or launched, so the group cannot continue.
  Status fail_by_exception(std::uint32_t rank) noexcept;
  // Calls the functions of on_failure() for failures that happened meanwhile. They are called without the mutex.
  void notify(std::unique_lock<std::mutex>& lock) noexcept;
  // The error of a call whose context is lost.
  Error lost(const DeviceCall& call, const Error& error) const;
  // The error of a call that has waited too long for ranks of this process and GPU.
  Error missing(const DeviceCall& call) const;

  bool all_wait() const;  // each rank has a waiting call
  bool none_waits() const;
  // Whether other threads make the calls of all missing ranks.
  bool missing_served_by_others() const;
  // Returns the waiting call with the earliest deadline, or null if no call waits.
  const DeviceCall* first_to_expire() const;
  // Fails the group if a call of another rank already waits for a flag in the same stream, because the two calls would
  // wait for each other. (Later calls of the same rank may wait behind its earlier ones.)
  Status check_flag_waits(const Member& caller, const DeviceCall& call);
  // Checks that the first waiting calls of all ranks agree. Returns the first difference to the call of the first rank
  // as an error.
  Status check_front() const;
  // Removes the first waiting call of every rank, and returns them.
  Calls take_front();

  cuda::CUdeviceptr flag_address(const DeviceCall& call) const;
  // Sets the flag of a call from the host, so that its stream continues.
  void release_stream(const DeviceCall& call);
  // Sets the abort flags that running kernels poll.
  void end_kernels() noexcept;

 private:
  std::vector<Member> all_;
  const bool whole_;
  std::optional<Error> broken_;
  std::condition_variable launched_;  // notified when calls were launched or have failed
  std::condition_variable changed_;   // wakes the watchdog
};

// Locks the mutex. After unlocking, the destructor calls the functions of on_failure() for failures that happened
// meanwhile. They are called without the mutex, because engines have mutexes of their own, and the driver may be
// slow while the mutex is held.
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
