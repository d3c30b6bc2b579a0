// LaunchGroup: calls in rounds, and the watchdog thread, which ends calls that wait for missing ranks.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "base/thread.h"
#include "device/native/device_failure.h"
#include "device/native/launch_group.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLooking{20};  // interval of the watchdog
constexpr std::chrono::milliseconds kGrace{200};   // grace period after a peer has gone
// Interval of the watchdog while it releases barriers.
constexpr std::chrono::milliseconds kReleasing{1};
// PeerLife::kAborted covers both a rank that called abort() and a rank that has lost its device.
constexpr const char* kAborted = "called abort(), or cannot take part any more: see the error of that rank";

}  // namespace

// Puts a call in rounds into the stream: in each round a barrier, then a kernel that does not wait for peers. Barriers
// use two sets of flags in turn. The number of rounds is even, so that every call begins with the same set and a
// captured call can be replayed.
Status LaunchGroup::put_rounds(const DeviceCall& call, cuda::CUstream stream) {
  const cuda::Driver& driver = device_->driver();
  const StreamBarrier& barrier = *members_[call.member_index_].options.barrier;
  const DeviceLaunch& how = call.launch;
  device::Launch launch;
  launch.call_count = 1;
  launch.channels = how.channels;
  launch.slices = how.slices;
  launch.inline_calls[0] = call.call;
  const std::uint64_t rounds = how.rounds + how.rounds % 2;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    TUTTI_TRY(barrier.put(static_cast<std::uint32_t>(round % 2), call.barrier_value, stream));
    launch.resume = round > 0 ? 1 : 0;
    launch.last = round + 1 >= how.rounds ? 1 : 0;
    void* parameters[] = {&launch};
    const cuda::CUresult result = driver.api().launch_kernel(how.kernel, device::blocks_of(launch), 1, 1, how.threads,
                                                             1, 1, 0, stream, parameters, nullptr);
    if (result != cuda::CUresult::kSuccess) return not_launched(result, launch, how.threads);
  }
  return {};
}

Status LaunchGroup::start_watchdog() {
  changed_.notify_all();
  if (watchdog_.joinable()) return {};
  try {
    watchdog_ = start_thread([this] { watch(); });
    return {};
  } catch (const std::system_error& error) {
    const Error failed = broken_error(call_error(ErrorCode::kSystem, describe_thread_start_error(error)));
    fail_locked(failed);
    return failed;
  }
}

// The error of a call that has waited too long for ranks of this process and GPU.
Error LaunchGroup::missing(const DeviceCall& call) const {
  std::string absent;
  std::int32_t first = -1;
  for (const Member& other : members_) {
    if (!other.waiting.empty()) continue;
    absent += fmt::format("{}{}", absent.empty() ? "" : ", ", other.options.rank);
    if (first < 0) first = static_cast<std::int32_t>(other.options.rank);
  }
  return broken_error(call_error(
      ErrorCode::kTimeout,
      fmt::format(
          "{}: waited {} ms for ranks {} of this process and GPU, which have not made the call, or have made it on "
          "host memory: {}",
          describe(call.tag), call.timeout_ns / 1'000'000, absent, kOneKindOfMemory),
      first));
}

Error LaunchGroup::lost(const DeviceCall& call, const Error& error) const {
  return lost_error(error, members_[call.member_index_].options.rank, &call.tag);
}

// If a peer has called abort(), the call fails. If a peer has left or exited, the call fails after a grace period:
// the peer may have done its part before, and then the call ends by itself soon.
void LaunchGroup::check_peers(const DeviceCall& call) {
  const MemberOptions& options = members_[call.member_index_].options;
  if (!options.life) return;
  const auto ends = [&](ErrorCode code, std::uint32_t peer, const char* what) {
    fail_locked(broken_error(call_error(code, fmt::format("{}: rank {} {}", describe(call.tag), peer, what),
                                        static_cast<std::int32_t>(peer))));
  };
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    const PeerLife life = peer == options.rank ? PeerLife::kLive : options.life(peer);
    if (life == PeerLife::kLive) continue;
    if (life == PeerLife::kAborted) return ends(ErrorCode::kAborted, peer, kAborted);
    const auto now = Clock::now();
    if (!gone_since_) gone_since_ = now;
    if (now - *gone_since_ < kGrace) return;
    return ends(ErrorCode::kPeerLost, peer, life == PeerLife::kLeft ? "has left the communicator" : "has ended");
  }
}

// Removes launches that have ended. If the context of a launch is lost, the launch cannot end by itself, so it is
// ended here.
void LaunchGroup::check_pending_launches() {
  while (!pending_launches_.empty()) {
    const auto finished = pending_launches_.front().done->finished();
    if (finished.ok() && !*finished) break;
    if (!finished.ok()) {
      fail_locked(lost(*pending_launches_.front().call, finished.error()));
      end_kernels();
    }
    pending_launches_.pop_front();
  }
  if (pending_launches_.empty()) return gone_since_.reset();
  PendingLaunch& first = pending_launches_.front();
  const auto begun = first.begun->finished();
  if (!first.since && begun.ok() && *begun) first.since = Clock::now();
  if (!broken_ && first.since) check_peers(*first.call);
  if (first.call->launch.rounds > 0) check_round_timeout(first);
}

// Ends kernels and releases barriers, once per interval of the watchdog, because a stream must see the value of its
// barrier for a whole interval. The first call creates a stream; if that throws, the next interval releases the
// barriers.
void LaunchGroup::release_streams() noexcept {
  if (!pending_launches_.empty()) end_kernels();
  const bool in_rounds = !pending_launches_.empty() && pending_launches_.front().call->launch.rounds > 0;
  if (in_rounds || captured_rounds_) static_cast<void>(runs_through([&] { release_rounds(); }));
}

// Sets the abort flags that running kernels poll.
void LaunchGroup::end_kernels() noexcept {
  for (Member& each : members_) {
    if (each.here) std::atomic_ref<std::uint64_t>(each.options.flags->status.abort).store(1, std::memory_order_release);
  }
}

// Fails the group if the context of a waiting call was lost: no stream reports that, so the "ready" event is
// queried.
void LaunchGroup::check_waiting_calls() {
  for (const Member& each : members_) {
    if (each.waiting.empty()) continue;
    const DeviceCall& call = *each.waiting.front();
    if (call.ready_ == nullptr || call.capture_ != 0) continue;
    const auto ready = call.ready_->finished();
    if (!ready.ok()) return fail_locked(lost(call, ready.error()));
  }
}

// Checks the timeout of a call in rounds. Streams wait without a time limit, so the watchdog measures the time.
void LaunchGroup::check_round_timeout(PendingLaunch& first) {
  const auto now = Clock::now();
  if (broken_ || !first.since || now - *first.since < std::chrono::nanoseconds(first.call->timeout_ns)) return;
  const DeviceCall& call = *first.call;
  const MemberOptions& options = members_[call.member_index_].options;
  const std::string waited = fmt::format("{}: rank {} waited {} ms in its stream", describe(call.tag), options.rank,
                                         call.timeout_ns / 1'000'000);
  fail_locked(options.barrier->timeout_error(waited, call.barrier_value));
}

// Sets all flags for which the streams of the barriers wait. This is repeated, because each barrier resets them.
void LaunchGroup::release_rounds() {
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  if (!scope) return pending_launches_.clear();
  if (!release_stream_) {
    auto made = cuda::Stream::create(device_->driver());
    if (!made) return pending_launches_.clear();
    release_stream_.emplace(std::move(*made));
  }
  write_given_up();
  // Each call of this function writes one of the values for which barriers wait: those of the captured calls, and that
  // of the first pending launch. The value stays until the next call, so that a stream has time to see it.
  const std::size_t flags = captured_barrier_values_.size() + (pending_launches_.empty() ? 0 : 1);
  if (flags == 0) return;
  const std::size_t turn = release_turns_++ % flags;
  const std::uint32_t word = turn < captured_barrier_values_.size()
                                 ? *std::next(captured_barrier_values_.begin(), static_cast<std::ptrdiff_t>(turn))
                                 : pending_launches_.front().call->barrier_value;
  for (const Member& each : members_) {
    if (each.options.barrier != nullptr) each.options.barrier->release(word, release_stream_->handle());
  }
  static_cast<void>(release_stream_->synchronize());
}

// If this rank gives up a call by copies, notifies the peers that reach the barrier later. The watchdog repeats this,
// because this rank's own stream, once it is released, still writes its regular values. Requires a current context.
void LaunchGroup::write_given_up() {
  const bool by_copies =
      !captured_barrier_values_.empty() || (!pending_launches_.empty() && pending_launches_.front().call->copies);
  for (const Member& each : members_) {
    if (by_copies && each.options.barrier != nullptr) each.options.barrier->give_up(release_stream_->handle());
  }
}

// The group cannot see replays of graphs. If a peer has gone, or this rank has given up, the group fails, so that
// the streams of replays are released.
void LaunchGroup::check_replays() {
  const MemberOptions& options = members_.front().options;
  for (std::uint32_t peer = 0; !broken_ && options.life && peer < options.ranks; ++peer) {
    const PeerLife life = peer == options.rank ? PeerLife::kLive : options.life(peer);
    if (life != PeerLife::kAborted && life != PeerLife::kLost) continue;
    fail_locked(
        broken_error(call_error(life == PeerLife::kLost ? ErrorCode::kPeerLost : ErrorCode::kAborted,
                                fmt::format("rank {} {}", peer, life == PeerLife::kLost ? "has ended" : kAborted),
                                static_cast<std::int32_t>(peer))));
  }
}

// Returns the waiting call with the earliest deadline, or null if no call waits.
const DeviceCall* LaunchGroup::first_to_expire() const {
  const DeviceCall* first = nullptr;
  for (const Member& each : members_) {
    for (const auto& call : each.waiting) {
      if (first == nullptr || call->deadline_ < first->deadline_) first = call.get();
    }
  }
  return first;
}

// The body of the watchdog thread: ends calls for which some rank is missing.
void LaunchGroup::watch() noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  std::unique_lock lock(mutex_);
  while (!ending_) {
    try {
      check_all();
    } catch (...) {
      static_cast<void>(fail_by_exception(members_.front().options.rank));
    }
    if (broken_) release_streams();
    notify_members(lock);
    if (!ending_) wait_for_next_check(lock);
  }
}

void LaunchGroup::check_all() {
  check_waiting_calls();
  const DeviceCall* first = first_to_expire();
  if (first != nullptr && Clock::now() >= first->deadline_) fail_locked(missing(*first));
  check_pending_launches();
  if (captured_rounds_) check_replays();
}

// Waits until something has changed, or until it is time for the next check.
void LaunchGroup::wait_for_next_check(std::unique_lock<std::mutex>& lock) {
  const DeviceCall* first = first_to_expire();
  if (!pending_launches_.empty() || captured_rounds_) {
    const bool releasing = broken_ && !pending_launches_.empty() && pending_launches_.front().call->launch.rounds > 0;
    changed_.wait_for(lock, releasing ? kReleasing : kLooking);
  } else if (first == nullptr) {
    changed_.wait(lock);
  } else {
    // A copy, because the call may be destroyed during the wait.
    const auto until = std::min(first->deadline_, Clock::now() + kLooking);
    changed_.wait_until(lock, until);
  }
}

}  // namespace tutti::detail
