// LaunchGroup: joining, submitting calls, making their streams wait, their outcome, and the end of the group.
#include "device/native/launch_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"
#include "device/native/launch_members.h"
#include "device/native/launch_watchdog.h"
#include "device/native/launcher.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaiting = 1024;
constexpr std::chrono::milliseconds kLaunchLook{20};  // time between two looks at a call that waits for other ranks
constexpr std::chrono::microseconds kDrainPoll{50};

}  // namespace

bool DeviceCall::finished() {
  if (const Operation* empty = empty_transfers(); empty != nullptr && !empty->done) return false;
  return launch_group_ == nullptr || launch_group_->look(*this).has_value();
}

Status DeviceCall::outcome() {
  if (launch_group_ != nullptr) TUTTI_TRY(launch_group_->look(*this).value_or(Status()));
  const Operation* empty = empty_transfers();
  return empty == nullptr ? Status() : empty->result;
}

Status DeviceCall::settle() {
  TUTTI_ASSERT(launch_group_ != nullptr);
  return launch_group_->settle(*this);
}

LaunchGroup::LaunchGroup(std::shared_ptr<RankDevice> device, const std::vector<std::uint32_t>& ranks, bool whole)
    : device_(std::move(device)),
      members_(std::make_unique<Members>(ranks, whole, device_->uuid())),
      watchdog_(std::make_unique<Watchdog>(*device_, mutex_, *members_)),
      launcher_(std::make_unique<Launcher>(*device_, *members_, *watchdog_)) {}

LaunchGroup::~LaunchGroup() = default;

Status LaunchGroup::add_member(const MemberOptions& options) {
  const std::scoped_lock lock(mutex_);
  Member& taken = members_->of_rank(options.rank);
  taken.options = options;
  taken.here = true;
  return launcher_->preallocate(options.ranks, options.transfer_queues);
}

void LaunchGroup::on_failure(std::uint32_t rank, FailureCallback on_failure) {
  // shared, because notify() calls it without the mutex
  auto shared = std::make_shared<const FailureCallback>(std::move(on_failure));
  const std::scoped_lock lock(mutex_);
  members_->of_rank(rank).on_failure = std::move(shared);
}

// Has no RelaxedCapture, because that takes two calls of the driver, and captures in other threads do not forbid what
// this function does nearly always: asking for properties, creating events and streams, and submitting work
// (docs/results/2026-11-28-gpu.md). LaunchBuffers::take() and upload_captured(), which do more, have a RelaxedCapture.
Status LaunchGroup::submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call) {
  std::optional<cuda::ContextScope> scope;
  Status looked;
  // Without the mutex: this may wait for streams that the watchdog releases, and the watchdog needs the mutex.
  try {
    auto entered = cuda::ContextScope::enter_unless_current(device_->driver(), device_->context());
    if (entered) {
      scope.emplace(*std::move(entered));
      looked = find_capture(*call);
      if (looked.ok()) looked = upload_captured(*call);
    } else {
      looked = entered.error();
    }
  } catch (...) {
    looked = error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank), "looking at a stream");
  }
  const NotifyingLock hold(mutex_, *members_);
  if (members_->broken()) return copy_of(*members_->broken());
  try {
    Status taken = looked.ok() ? take_call(members_->of_rank(rank), call) : std::move(looked);
    if (taken || taken.error().scope < ErrorScope::kCommunicator) return taken;
    members_->fail(lost_error(std::move(taken).error(), rank, &call->tag));
    return copy_of(*members_->broken());
  } catch (...) {
    return members_->fail_by_exception(rank);
  }
}

// Refuses sends to a rank that is gone, because their messages would stay in slots that no rank reads. Receives are not
// checked, because the messages may have arrived before.
Status LaunchGroup::check_receivers(const MemberOptions& options, const TransferCall& transfers) {
  if (!options.peer_status) return {};
  for (const device::TransferQueue& queue : transfers.packed.queues) {
    if (queue.sends == 0) continue;
    const PeerLife life = options.peer_status(queue.peer).life;
    if (life != PeerLife::kLeft && life != PeerLife::kLost) continue;
    const char* const what = life == PeerLife::kLeft ? "has left the communicator" : "has ended";
    return call_error(ErrorCode::kPeerLost, fmt::format("a send to rank {}, which {}", queue.peer, what),
                      static_cast<std::int32_t>(queue.peer));
  }
  return {};
}

// Checks and queues the call of `caller`. Then launches, as long as each member has a waiting call.
Status LaunchGroup::take_call(Member& caller, const std::shared_ptr<DeviceCall>& call) {
  if (caller.waiting.size() >= kMostWaiting) {
    return call_error(
        ErrorCode::kUnsupported,
        fmt::format(
            "{} calls of rank {} already wait for the other ranks of its process: make the calls of those ranks, too",
            kMostWaiting, caller.options.rank));
  }
  if (call->transfers) TUTTI_TRY(check_receivers(caller.options, *call->transfers));
  const std::vector<Member>& members = members_->all();
  for (const Member& other : members) {
    if (!other.left) continue;
    return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(other.options.rank),
                 fmt::format("rank {}, of this process and GPU, has left the communicator", other.options.rank)};
  }
  if (members.size() > 1) {
    auto ready = launcher_->take_event();
    if (!ready) return broken_error(ready.error());
    const Status recorded = (*ready)->record(call->stream);
    if (!recorded) return call->capture_ == 0 ? broken_error(recorded.error()) : recorded.error();
    call->ready_ = std::move(*ready);
  }
  call->launch_group_ = shared_from_this();
  call->member_index_ = static_cast<std::size_t>(&caller - members.data());
  call->deadline_ = Clock::now() + std::chrono::nanoseconds(call->timeout_ns);
  caller.waiting.push_back(call);
  while (members_->all_wait()) TUTTI_TRY(launch_front(caller));
  return {};
}

// Sets capture_: whether the call's stream is being captured, and in which capture.
Status LaunchGroup::find_capture(DeviceCall& call) const {
  const cuda::Driver& driver = device_->driver();
  auto status = cuda::CaptureStatus::kNone;
  std::uint64_t capture = 0;
  TUTTI_TRY(
      driver.check(driver.api().stream_get_capture_info(call.stream, &status, &capture, nullptr, nullptr, nullptr),
                   "looking at the stream of a call"));
  call.capture_ = status == cuda::CaptureStatus::kNone ? 0 : capture;
  return {};
}

// Copies the program of a captured call and waits for the end of the copy. Does nothing if the call is not captured, or
// if the program has been copied before.
Status LaunchGroup::upload_captured(const DeviceCall& call) const {
  if (call.capture_ == 0 || !call.needs_upload()) return {};
  const cuda::RelaxedCapture relaxed(device_->driver());
  const auto copied = [&]() -> Status {
    auto stream = cuda::Stream::create(device_->driver());
    if (!stream) return stream.error();
    TUTTI_TRY(call.upload->put(device_->driver(), stream->handle()));
    return stream->synchronize();
  }();
  if (!copied) return broken_error(copied.error());
  call.upload->done = true;
  return {};
}

// Launches the first waiting call of every member, in one launch. `caller`: the member of the call that completes
// the set.
Status LaunchGroup::launch_front(const Member& caller) {
  const Status alike = members_->check_front();
  const Calls calls = members_->take_front();
  // The calls are in no queue any more, so if the launch fails, this function must set the outcome of each of them.
  Error error;
  try {
    const Status launched = alike.ok() ? launcher_->launch(calls) : alike;
    if (launched) return {};
    error = copy_of(launched.error());
  } catch (...) {
    error = error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(caller.options.rank),
                               "launching a call on device memory");
  }
  // If ranks outside of this group exist, they may already have launched their part of the call, so the
  // communicator is broken. The same is true if a launch was tried.
  if (alike.ok() || !members_->whole()) {
    error = lost_error(std::move(error), caller.options.rank, &calls.front()->tag);
  }
  for (const auto& call : calls) call->outcome_ = copy_of(error);
  members_->launched().notify_all();
  if (error.scope == ErrorScope::kCommunicator) members_->fail(error);
  return error;
}

Status LaunchGroup::settle(DeviceCall& call) {
  {
    // If the call was launched in its own stream, as is usual, no call of the driver is needed.
    const std::scoped_lock lock(mutex_);
    if (call.launched_ && !call.outcome_ && call.stream == call.launched_in_) return {};
  }
  const cuda::RelaxedCapture relaxed(device_->driver());
  NotifyingLock hold(mutex_, *members_);
  try {
    Status waits = make_wait(hold.lock, call);
    if (waits || call.outcome_) return waits;
    members_->fail(broken_error(std::move(waits).error()));
    return copy_of(*members_->broken());
  } catch (...) {
    return members_->fail_by_exception(members_->of(call).options.rank);
  }
}

// Waits on the host until the call is launched or has failed. Meanwhile the call fails the group if its context is
// lost, or when its timeout is over. (A stream in a lost context reports nothing by itself. Therefore this function
// queries the event that was recorded when the call was submitted.) The host waits, and not the stream, because the
// launch may get the hardware queue that a waiting stream holds up: the streams of a context share 8 queues by default,
// or as many as CUDA_DEVICE_MAX_CONNECTIONS says.
void LaunchGroup::wait_for_launch(std::unique_lock<std::mutex>& lock, DeviceCall& call) {
  const auto over = [&] { return call.launched_ || call.outcome_; };
  while (!over()) {
    const auto now = Clock::now();
    if (now >= call.deadline_) return members_->fail(members_->missing(call));
    const auto ready = call.ready_->finished();
    if (!ready.ok()) return members_->fail(members_->lost(call, ready.error()));
    members_->launched().wait_until(lock, std::min(call.deadline_, now + kLaunchLook), over);
  }
}

// Does the work of settle(). Errors: the outcome of the call, if it has failed; otherwise an error after which the
// group cannot go on.
Status LaunchGroup::make_wait(std::unique_lock<std::mutex>& lock, DeviceCall& call) {
  const cuda::Driver& driver = device_->driver();
  auto scope = cuda::ContextScope::enter(driver, device_->context());
  if (!scope) return scope.error();
  if (!call.launched_ && !call.outcome_ && call.capture_ != 0) {
    return call_error(
        ErrorCode::kUnsupported,
        "the stream is capturing, and not all ranks of this process and GPU have made the call: capture the calls of "
        "all of them in one graph, from one thread, in a Group");
  }
  wait_for_launch(lock, call);
  if (call.outcome_) return *call.outcome_;
  if (call.stream == call.launched_in_) return {};
  return driver.check(driver.api().stream_wait_event(call.stream, call.done_->handle(), 0), "waiting for a call");
}

void LaunchGroup::fail(const Error& error) noexcept {
  const NotifyingLock hold(mutex_, *members_);
  members_->fail(error);
}

std::optional<Status> LaunchGroup::look(DeviceCall& call) noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const NotifyingLock hold(mutex_, *members_);
  try {
    return find_outcome(call);
  } catch (...) {
    if (!call.outcome_) call.outcome_ = members_->fail_by_exception(members_->of(call).options.rank);
    return call.outcome_->ok() ? Status() : Status(copy_of(call.outcome_->error()));
  }
}

// Returns the result of the call, or nothing while the call has not ended. A failure found here breaks the group.
std::optional<Status> LaunchGroup::find_outcome(DeviceCall& call) {
  if (call.outcome_) return call.outcome_;
  if (!call.launched_) return std::nullopt;
  // a captured call runs only when the graph is launched, and its result is not known here
  if (call.capture_ != 0) return Status();
  const Result<bool> finished = call.done_->finished();
  if (finished.ok() && !*finished) return std::nullopt;
  Status outcome = finished.ok() ? Status() : Status(members_->lost(call, finished.error()));
  const Member& its = members_->of(call);
  const std::optional<Error>& broken = members_->broken();
  const std::uint64_t failure = its.failure_word();
  if (finished.ok() && failure != 0) {
    const auto found = device::FailureWord::of(failure);
    const bool ended_here = found.cause == device::Failure::kAborted && broken;
    outcome = ended_here ? *broken : device_failure(found, its.options.rank, &call.tag, call.timeout_ns);
  }
  // the barriers of the call may have been released; then it has not waited for its peers, and its result is invalid
  if (broken && call.launch.rounds > 0) outcome = *broken;
  call.outcome_ = std::move(outcome);
  if (!call.outcome_->ok()) members_->fail(call.outcome_->error(), call.transfers.has_value());
  return call.outcome_;
}

std::optional<Error> LaunchGroup::failure(std::uint32_t rank, bool asks_driver) {
  std::optional<cuda::RelaxedCapture> relaxed;
  if (asks_driver) relaxed.emplace(device_->driver());
  const NotifyingLock hold(mutex_, *members_);
  if (members_->broken()) return members_->broken();
  std::optional<Error> failed;
  const auto found = device::FailureWord::of(members_->of_rank(rank).failure_word());
  if (found.cause != device::Failure::kNone) failed = device_failure(found, rank, nullptr, 0);
  if (!failed && asks_driver) {
    const Result<bool> finished = launcher_->finished();
    if (!finished.ok()) failed = lost_error(finished.error(), rank, nullptr);
  }
  if (failed) members_->fail(*failed, found.transfers);
  return failed;
}

bool LaunchGroup::drain(std::uint32_t rank, std::chrono::milliseconds limit) noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const auto deadline = Clock::now() + limit;
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      bool ended = true;
      // If the query fails, the context is lost, and nothing runs in it any more. So the launch counts as ended,
      // even if there is no memory for the error.
      runs_through([&] {
        const Result<bool> finished = launcher_->finished();
        ended = !finished.ok() || *finished;
      });
      if (ended && members_->of_rank(rank).waiting.empty()) return true;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
}

void LaunchGroup::leave(std::uint32_t rank) noexcept {
  const NotifyingLock hold(mutex_, *members_);
  members_->of_rank(rank).left = true;
  if (members_->none_waits()) return;
  const auto text = [&] { return fmt::format("rank {}, of this process and GPU, has left the communicator", rank); };
  members_->fail(error_with(text, ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank)));
}

void LaunchGroup::forget(std::uint32_t rank, bool idle) {
  {
    const std::scoped_lock lock(mutex_);
    Member& its = members_->of_rank(rank);
    its.failure = its.failure_word();
    its.here = false;
    its.on_failure = nullptr;
    for (const Member& each : members_->all()) {
      if (each.here) return;
    }
    watchdog_->end();
    if (idle) members_->loan().end();
  }
  watchdog_->join();
}

}  // namespace tutti::detail
