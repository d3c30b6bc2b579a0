// LaunchGroup::Members: failures of the group, and checks of the waiting calls.
#include "device/native/launch_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"

namespace tutti::detail {

std::uint64_t LaunchGroup::Member::failure_word() const {
  if (!here) return failure;
  return std::atomic_ref<const std::uint64_t>(options.status->failure).load(std::memory_order_acquire);
}

LaunchGroup::Members::Members(const std::vector<std::uint32_t>& ranks, bool whole, const cuda::CUuuid& device)
    : whole_(whole), device_(device) {
  for (const std::uint32_t rank : ranks) {
    all_.emplace_back();
    all_.back().options.rank = rank;
  }
}

LaunchGroup::Member& LaunchGroup::Members::of_rank(std::uint32_t rank) {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const Member& m) { return m.options.rank == rank; });
  TUTTI_ASSERT(found != all_.end(), "rank {} is not a member of this group", rank);
  return *found;
}

void LaunchGroup::Members::fail(const Error& error, bool only_here) noexcept {
  if (!broken_) {
    broken_ = copy_of(error);
    for (Member& each : all_) each.failure_unreported = only_here || !peers_see(error.code);
  }
  for (Member& each : all_) {
    for (const auto& call : each.waiting) call->outcome_ = copy_of(*broken_);
    each.waiting.clear();
  }
  launched_.notify_all();
  changed_.notify_all();  // wakes the watchdog, which releases the streams of launched calls
}

Status LaunchGroup::Members::fail_by_exception(std::uint32_t rank) noexcept {
  const auto culprit = static_cast<std::int32_t>(rank);
  fail(error_of_exception(ErrorScope::kCommunicator, culprit, "a call on device memory"));
  return copy_of(*broken_);
}

void LaunchGroup::Members::notify(std::unique_lock<std::mutex>& lock) noexcept {
  for (Member& each : all_) {
    if (!std::exchange(each.failure_unreported, false) || each.on_failure == nullptr) continue;
    const std::shared_ptr<const FailureCallback> on_failure = each.on_failure;
    const Error error = copy_of(*broken_);
    lock.unlock();
    (*on_failure)(error);
    lock.lock();
  }
}

Error LaunchGroup::Members::lost(const DeviceCall& call, const Error& error) const {
  return lost_error(error, of(call).options.rank, &call.tag);
}

Error LaunchGroup::Members::missing(const DeviceCall& call) const {
  std::string absent;
  std::int32_t first = -1;
  for (const Member& other : all_) {
    if (!other.waiting.empty()) continue;
    absent += fmt::format("{}{}", absent.empty() ? "" : ", ", other.options.rank);
    if (first < 0) first = static_cast<std::int32_t>(other.options.rank);
  }
  return broken_error(call_error(
      ErrorCode::kTimeout,
      fmt::format(
          "{}: waited {} ms for ranks {} of this process and GPU, which have not made the call, or have made it on "
          "host memory: {}; if one thread serves several ranks, make their calls in a Group",
          describe(call.tag), call.timeout_ns / 1'000'000, absent, kOneKindOfMemory),
      first));
}

bool LaunchGroup::Members::all_wait() const {
  return std::all_of(all_.begin(), all_.end(), [](const Member& m) { return !m.waiting.empty(); });
}

bool LaunchGroup::Members::none_waits() const {
  return std::all_of(all_.begin(), all_.end(), [](const Member& m) { return m.waiting.empty(); });
}

Status LaunchGroup::Members::check_front() const {
  const DeviceCall& first = *all_.front().waiting.front();
  for (const Member& other : all_) {
    const DeviceCall& call = *other.waiting.front();
    const CallArgument what = first_difference(first.tag, call.tag);
    if (what == CallArgument::kNone && call.launch == first.launch) continue;
    const std::string differs = what == CallArgument::kNone
                                    ? "other settings"
                                    : fmt::format("{}, rank {} has {}", describe(call.tag, what),
                                                  all_.front().options.rank, describe(first.tag, what));
    return call_error(ErrorCode::kMismatch,
                      fmt::format("{}: rank {} has {}", describe(first.tag), other.options.rank, differs),
                      static_cast<std::int32_t>(other.options.rank));
  }
  return {};
}

LaunchGroup::Calls LaunchGroup::Members::take_front() {
  Calls calls;
  calls.reserve(all_.size());
  for (Member& each : all_) {
    calls.push_back(std::move(each.waiting.front()));
    each.waiting.pop_front();
  }
  return calls;
}

std::uint32_t LaunchGroup::Members::kept_blocks() const {
  std::uint32_t kept = 0;
  for (const Member& each : all_) kept += each.options.kept_blocks;
  return kept;
}

std::uint32_t LaunchGroup::Members::take_blocks(std::uint32_t blocks, bool captured) {
  const std::uint32_t kept = kept_blocks();
  if (whole_ || blocks <= kept) return std::min(blocks, kept);  // a group of all ranks borrows nothing
  return kept + loan_.raise(device_, all_.front().options.blocks_at_once, blocks - kept, captured);
}

void LaunchGroup::Members::end_kernels() noexcept {
  for (Member& each : all_) {
    if (each.here) std::atomic_ref<std::uint64_t>(each.options.status->abort).store(1, std::memory_order_release);
  }
}

}  // namespace tutti::detail
