// LaunchGroup: joining, submitting calls, and making their streams wait.
#include "device/native/launch_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaiting = 1024;
constexpr std::chrono::milliseconds kWaitForOthers{20};
bool is_default_stream(cuda::CUstream stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  return number == 0 || number == cuda::kLegacyStream || number == cuda::kPerThreadStream;
}

}  // namespace

bool DeviceCall::finished() { return launch_group_ == nullptr || launch_group_->look(*this).has_value(); }

Status DeviceCall::outcome() {
  if (launch_group_ == nullptr) return {};
  return launch_group_->look(*this).value_or(Status());
}

Status DeviceCall::settle() {
  TUTTI_ASSERT(launch_group_ != nullptr);
  return launch_group_->settle(*this);
}

LaunchGroup::LaunchGroup(std::shared_ptr<RankDevice> device, const std::vector<std::uint32_t>& ranks, bool whole)
    : device_(std::move(device)), whole_(whole) {
  for (const std::uint32_t rank : ranks) {
    members_.emplace_back();
    members_.back().options.rank = rank;
  }
}

LaunchGroup::~LaunchGroup() { TUTTI_ASSERT(!watchdog_.joinable(), "ranks have not left"); }

LaunchGroup::Member& LaunchGroup::member(std::uint32_t rank) {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.options.rank == rank; });
  TUTTI_ASSERT(found != members_.end(), "rank {} is not a member of this group", rank);
  return *found;
}

Status LaunchGroup::add_member(const MemberOptions& options) {
  const std::scoped_lock lock(mutex_);
  Member& taken = member(options.rank);
  taken.options = options;
  taken.here = true;
  return preallocate_launch_buffers(options.ranks);
}

Result<std::shared_ptr<cuda::Event>> LaunchGroup::take_event() {
  std::unique_ptr<cuda::Event> event;
  {
    const std::scoped_lock lock(pool_->mutex);
    if (!pool_->free.empty()) {
      event = std::move(pool_->free.back());
      pool_->free.pop_back();
    }
  }
  if (event == nullptr) {
    auto made = cuda::Event::create(device_->driver());
    if (!made) return made.error();
    event = std::make_unique<cuda::Event>(std::move(*made));
    const std::scoped_lock lock(pool_->mutex);
    pool_->free.reserve(pool_->made + 1);
    ++pool_->made;
  }
  const auto give_back = [pool = pool_](cuda::Event* used) {
    std::unique_ptr<cuda::Event> owned(used);
    const std::scoped_lock lock(pool->mutex);
    pool->free.push_back(std::move(owned));
  };
  return std::shared_ptr<cuda::Event>(event.release(), give_back);
}

Status LaunchGroup::submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call) {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const NotifyingLock hold(*this);
  if (broken_) return copy_of(*broken_);
  try {
    Status taken = take_call(member(rank), call);
    if (taken || taken.error().scope < ErrorScope::kCommunicator) return taken;
    fail_locked(lost_error(std::move(taken).error(), rank, &call->tag));
    return copy_of(*broken_);
  } catch (...) {
    return fail_by_exception(rank);
  }
}

// Called in a catch block. A call may have been partly taken or launched, so the group cannot continue.
Status LaunchGroup::fail_by_exception(std::uint32_t rank) noexcept {
  const auto culprit = static_cast<std::int32_t>(rank);
  fail_locked(error_of_exception(ErrorScope::kCommunicator, culprit, "a call on device memory"));
  return copy_of(*broken_);
}

// Queues the call, and launches as long as each rank has a waiting call.
Status LaunchGroup::take_call(Member& caller, const std::shared_ptr<DeviceCall>& call) {
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  if (!scope) return scope.error();
  if (caller.waiting.size() >= kMostWaiting) {
    return call_error(
        ErrorCode::kUnsupported,
        fmt::format(
            "{} calls of rank {} already wait for the other ranks of its process: make the calls of those ranks, too",
            kMostWaiting, caller.options.rank));
  }
  for (const Member& other : members_) {
    if (!other.left) continue;
    return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(other.options.rank),
                 fmt::format("rank {}, of this process and GPU, has left the communicator", other.options.rank)};
  }
  TUTTI_TRY(look_at_stream(*call));
  TUTTI_TRY(check_flag_waits(caller, *call));
  if (members_.size() > 1 || call->launch.rounds > 0) {
    auto ready = take_event();
    if (!ready) return broken_error(ready.error());
    const Status recorded = (*ready)->record(call->stream);
    if (!recorded) return call->capture_ == 0 ? broken_error(recorded.error()) : recorded.error();
    call->ready_ = std::move(*ready);
  }
  call->launch_group_ = shared_from_this();
  call->member_index_ = static_cast<std::size_t>(&caller - members_.data());
  call->number_ = ++caller.numbers;
  caller.caller = std::this_thread::get_id();
  call->deadline_ = Clock::now() + std::chrono::nanoseconds(call->timeout_ns);
  caller.waiting.push_back(call);
  const auto all_here = [&] {
    return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return !m.waiting.empty(); });
  };
  while (all_here()) TUTTI_TRY(launch_front(caller));
  return {};
}

// Finds out whether the stream is being captured, and whether it may wait for a flag.
Status LaunchGroup::look_at_stream(DeviceCall& call) {
  const cuda::Driver& driver = device_->driver();
  const cuda::DriverApi& api = driver.api();
  auto status = cuda::CaptureStatus::kNone;
  std::uint64_t capture = 0;
  TUTTI_TRY(driver.check(api.stream_get_capture_info(call.stream, &status, &capture, nullptr, nullptr, nullptr),
                         "looking at the stream of a call"));
  call.capture_ = status == cuda::CaptureStatus::kNone ? 0 : capture;
  if (is_default_stream(call.stream)) return {};
  unsigned flags = 0;
  TUTTI_TRY(driver.check(api.stream_get_flags(call.stream, &flags), "looking at the stream of a call"));
  call.non_blocking_ = (flags & cuda::kStreamNonBlocking) != 0;
  return {};
}

// Fails the group if a call of another rank already waits for a flag in the same stream, because the two calls would
// wait for each other. (Later calls of the same rank may wait behind its earlier ones.)
Status LaunchGroup::check_flag_waits(const Member& caller, const DeviceCall& call) {
  for (const Member& other : members_) {
    if (&other == &caller) continue;
    for (const auto& waiting : other.waiting) {
      if (!waiting->waits_for_flag_ || waiting->stream != call.stream) continue;
      const Error error = broken_error(call_error(
          ErrorCode::kUnsupported,
          fmt::format(
              "{}: a call of rank {} waits in this very stream for the other ranks of its process and GPU: make "
              "the calls of all of them in a Group, or give each rank a stream of its own",
              describe(call.tag), other.options.rank)));
      fail_locked(error);
      return error;
    }
  }
  return {};
}

cuda::CUdeviceptr LaunchGroup::flag_address(const DeviceCall& call) const {
  const std::size_t at = offsetof(RankFlags, passed) + call.number_ % RankFlags::kWords * sizeof(std::uint32_t);
  return members_[call.member_index_].options.flags_on_device + at;
}

// Sets the flag of a call from the host, so that its stream continues.
void LaunchGroup::release_stream(const DeviceCall& call) {
  std::uint32_t& word = members_[call.member_index_].options.flags->passed[call.number_ % RankFlags::kWords];
  std::atomic_ref<std::uint32_t>(word).store(call.number_, std::memory_order_release);
}

// Checks that the waiting calls of all ranks agree. Returns the first difference to the call of the first rank as an
// error.
Status LaunchGroup::check_front() const {
  const DeviceCall& first = *members_.front().waiting.front();
  for (const Member& other : members_) {
    const DeviceCall& call = *other.waiting.front();
    const CallArgument what = first_difference(first.tag, call.tag);
    if (what == CallArgument::kNone && call.launch == first.launch) continue;
    const std::string differs = what == CallArgument::kNone
                                    ? "other settings"
                                    : fmt::format("{}, rank {} has {}", describe(call.tag, what),
                                                  members_.front().options.rank, describe(first.tag, what));
    return call_error(ErrorCode::kMismatch,
                      fmt::format("{}: rank {} has {}", describe(first.tag), other.options.rank, differs),
                      static_cast<std::int32_t>(other.options.rank));
  }
  return {};
}

// Launches the first waiting call of every rank.
Status LaunchGroup::launch_front(const Member& caller) {
  const Status alike = check_front();
  std::vector<std::shared_ptr<DeviceCall>> calls;
  calls.reserve(members_.size());
  for (Member& each : members_) {
    calls.push_back(std::move(each.waiting.front()));
    each.waiting.pop_front();
  }
  // From here on only this function has these calls, so it must set an outcome for each of them in any case.
  Error error;
  try {
    const Status launched = alike.ok() ? launch(calls) : alike;
    if (launched) return {};
    error = copy_of(launched.error());
  } catch (...) {
    error = error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(caller.options.rank),
                               "launching a call on device memory");
  }
  // Ranks outside of this group may already have launched their part, so the communicator is broken.
  if (alike.ok() || !whole_) error = lost_error(std::move(error), caller.options.rank, &calls.front()->tag);
  for (const auto& call : calls) {
    call->outcome_ = copy_of(error);
    members_[call->member_index_].late_error = copy_of(error);
    release_stream(*call);
  }
  launched_.notify_all();
  if (error.scope == ErrorScope::kCommunicator) fail_locked(error);
  return error;
}

// Whether other threads make the calls of all missing ranks.
bool LaunchGroup::missing_served_by_others() const {
  return std::none_of(members_.begin(), members_.end(),
                      [](const Member& m) { return m.waiting.empty() && m.caller == std::this_thread::get_id(); });
}

// A stream must not wait for a flag if other streams of the caller implicitly wait for it, or if its handle stands
// for several streams: the launch that writes the flag could be queued behind the wait. In this case the host waits,
// for as long as the call may take. Returns false if neither is possible.
bool LaunchGroup::wait_for_others(std::unique_lock<std::mutex>& lock, DeviceCall& call) {
  const auto over = [&] { return call.launched_ || call.outcome_; };
  if (over() || call.capture_ != 0) return true;
  const bool served_elsewhere = missing_served_by_others();
  if (call.non_blocking_) {
    if (served_elsewhere) launched_.wait_for(lock, kWaitForOthers, over);
    return true;
  }
  return served_elsewhere && launched_.wait_until(lock, call.deadline_, over);
}

Status LaunchGroup::settle(DeviceCall& call) {
  NotifyingLock hold(*this);
  try {
    Status waits = make_wait(hold.lock, call);
    if (waits || call.outcome_) return waits;
    fail_locked(broken_error(std::move(waits).error()));
    return copy_of(*broken_);
  } catch (...) {
    return fail_by_exception(members_[call.member_index_].options.rank);
  }
}

// Errors: the outcome of the call, or an error after which the group cannot continue.
Status LaunchGroup::make_wait(std::unique_lock<std::mutex>& lock, DeviceCall& call) {
  const bool may_wait = wait_for_others(lock, call);
  if (call.outcome_) return *call.outcome_;
  const cuda::Driver& driver = device_->driver();
  auto scope = cuda::ContextScope::enter(driver, device_->context());
  if (!scope) return scope.error();
  if (call.launched_) {
    if (call.stream == call.launched_in_) return {};
    return driver.check(driver.api().stream_wait_event(call.stream, call.done_->handle(), 0), "waiting for a call");
  }
  if (call.capture_ != 0) {
    return call_error(
        ErrorCode::kUnsupported,
        "the stream is capturing, and not all ranks of this process and GPU have made the call: capture the calls of "
        "all of them in one graph, from one thread, in a Group");
  }
  if (!may_wait && missing_served_by_others()) return missing(call);
  if (!may_wait) {
    return call_error(
        ErrorCode::kUnsupported,
        "one thread serves several ranks of a GPU, by the default stream or by one that waits for it: make their calls "
        "in a Group, or give each rank a stream made with CU_STREAM_NON_BLOCKING");
  }
  TUTTI_TRY(driver.check(
      driver.api().stream_wait_value32(call.stream, flag_address(call), call.number_, cuda::kWaitGreaterEqual),
      "making the stream wait for the other ranks"));
  call.waits_for_flag_ = true;
  return start_watchdog();
}

}  // namespace tutti::detail
