// LaunchGroup: the outcome of calls, reporting failures, and the end of the group.
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "device/native/device_failure.h"
#include "device/native/launch_group.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPoll{50};

}  // namespace

void LaunchGroup::on_failure(std::uint32_t rank, FailureCallback on_failure) {
  auto shared = std::make_shared<const FailureCallback>(std::move(on_failure));  // shared with a thread that calls it
  const std::scoped_lock lock(mutex_);
  member(rank).on_failure = std::move(shared);
}

void LaunchGroup::notify_members(std::unique_lock<std::mutex>& lock) noexcept {
  for (Member& each : members_) {
    if (!std::exchange(each.failure_unreported, false) || each.on_failure == nullptr) continue;
    const std::shared_ptr<const FailureCallback> on_failure = each.on_failure;
    const Error error = copy_of(*broken_);
    lock.unlock();
    (*on_failure)(error);
    lock.lock();
  }
}

void LaunchGroup::fail(const Error& error) noexcept {
  const NotifyingLock hold(*this);
  fail_locked(error);
}

// Allocates nothing, because it also handles failed allocations.
void LaunchGroup::fail_locked(const Error& error) noexcept {
  if (!broken_) {
    broken_ = copy_of(error);
    for (Member& each : members_) each.failure_unreported = !peers_see(error.code);
  }
  for (Member& each : members_) {
    for (const auto& call : each.waiting) {
      call->outcome_ = copy_of(*broken_);
      if (each.here) release_stream(*call);
    }
    each.waiting.clear();
  }
  launched_.notify_all();
  changed_.notify_all();  // wakes the watchdog, which releases the streams
}

std::uint64_t LaunchGroup::failure_word(const Member& its) {
  if (!its.here) return its.failure;
  return std::atomic_ref<const std::uint64_t>(its.options.flags->status.failure).load(std::memory_order_acquire);
}

std::optional<Status> LaunchGroup::look(DeviceCall& call) noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const NotifyingLock hold(*this);
  try {
    return find_outcome(call);
  } catch (...) {
    if (!call.outcome_) call.outcome_ = fail_by_exception(members_[call.member_index_].options.rank);
    return call.outcome_->ok() ? Status() : Status(copy_of(call.outcome_->error()));
  }
}

// Returns nothing while the call has not ended.
std::optional<Status> LaunchGroup::find_outcome(DeviceCall& call) {
  if (call.outcome_) return call.outcome_;
  if (!call.launched_) return std::nullopt;
  if (call.capture_ != 0) return Status();  // it runs when the graph is launched
  const Result<bool> finished = call.done_->finished();
  if (finished.ok() && !*finished) return std::nullopt;
  Status outcome = finished.ok() ? Status() : Status(lost(call, finished.error()));
  const Member& its = members_[call.member_index_];
  const std::uint64_t failure = failure_word(its);
  if (finished.ok() && failure != 0) {
    const auto found = device::FailureWord::of(failure);
    const bool ended_here = found.cause == device::Failure::kAborted && broken_;
    outcome = ended_here ? *broken_ : device_failure(found, its.options.rank, &call.tag, call.timeout_ns);
  }
  if (broken_ && call.launch.rounds > 0) outcome = *broken_;  // its barriers were released, so the result is invalid
  call.outcome_ = std::move(outcome);
  if (!call.outcome_->ok()) fail_locked(call.outcome_->error());
  return call.outcome_;
}

std::optional<Error> LaunchGroup::failure(std::uint32_t rank, bool asks_driver) {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const NotifyingLock hold(*this);
  if (broken_) return broken_;
  if (asks_driver && member(rank).late_error) return std::exchange(member(rank).late_error, std::nullopt);
  std::optional<Error> failed;
  if (const std::uint64_t word = failure_word(member(rank)); word != 0) {
    failed = device_failure(device::FailureWord::of(word), rank, nullptr, 0);
  }
  if (!failed && asks_driver && last_plain_done_ != nullptr) {
    const Result<bool> finished = last_plain_done_->finished();
    if (!finished.ok()) failed = lost_error(finished.error(), rank, nullptr);
  }
  if (failed) fail_locked(*failed);
  return failed;
}

bool LaunchGroup::drain(std::uint32_t rank, std::chrono::milliseconds limit) noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const auto deadline = Clock::now() + limit;
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      bool ended = true;
      // If there is no memory for the error of the driver, the launch counts as ended: nothing runs in a lost
      // context.
      runs_through([&] {
        const auto finished = last_plain_done_ == nullptr ? Result<bool>(true) : last_plain_done_->finished();
        ended = !finished.ok() || *finished;
      });
      if (ended && member(rank).waiting.empty()) return true;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

void LaunchGroup::leave(std::uint32_t rank) noexcept {
  const NotifyingLock hold(*this);
  member(rank).left = true;
  if (std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.waiting.empty(); })) return;
  const auto text = [&] { return fmt::format("rank {}, of this process and GPU, has left the communicator", rank); };
  fail_locked(error_with(text, ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank)));
}

void LaunchGroup::forget(std::uint32_t rank) {
  {
    const std::scoped_lock lock(mutex_);
    Member& its = member(rank);
    its.failure = failure_word(its);
    its.here = false;
    its.on_failure = nullptr;
    if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.here; })) return;
    ending_ = true;
    pending_launches_.clear();  // their calls keep the group alive
    changed_.notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

}  // namespace tutti::detail
