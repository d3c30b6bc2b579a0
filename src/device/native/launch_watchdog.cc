// LaunchGroup::Watchdog: the checks of its thread, and how it releases streams.
#include "device/native/launch_watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "base/thread.h"
#include "device/native/device_failure.h"
#include "engine/failure_analyzer.h"
#include "engine/failure_text.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

// Longest time between two checks while there is something to check.
constexpr std::chrono::milliseconds kLooking{20};
// After a peer has left or exited, a pending call fails only after this time, because it may still end by itself.
constexpr std::chrono::milliseconds kGrace{200};
constexpr std::chrono::nanoseconds kWarnAfter{kWarnAfterNs};
// Time between two checks while the watchdog releases the barriers of a pending launch.
constexpr std::chrono::milliseconds kReleasing{1};
// Largest number of different barrier values in captured calls.
constexpr std::size_t kMostCapturedBarriers = 4096;
// PeerLife::kAborted covers a rank that called abort(), that has lost its device, or whose communicator is broken.
constexpr const char* kAborted = "called abort(), or cannot take part any more: see the error of that rank";

// The warning about a call that has waited for kWarnAfter.
std::string late_text(const LaunchGroup::MemberOptions& options, const DeviceCall& call) {
  std::vector<std::uint32_t> late;
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    const bool is_late = call.transfers ? call.transfers->is_with(peer)
                                        : options.peer_status && options.peer_status(peer).device_calls < call.number;
    if (peer != options.rank && is_late) late.push_back(peer);
  }
  std::string cause;
  if (call.transfers) {
    cause = fmt::format("for its sends to, or receives from, {}", rank_list(late));
  } else if (!late.empty()) {
    cause = fmt::format("for {0}: not entered by {0}", rank_list(late));
  } else if (options.peer_status) {
    cause = "although all ranks have made this call: the stream or the GPU of one of them is busy with other work";
  } else {
    cause = "for unknown ranks: only the shared-memory transport shows which ones are late";
  }
  return fmt::format("{}: waited {} s in the stream {}; this is rank {}; the call goes on, and fails after {} s",
                     describe(call.tag), kWarnAfterNs / 1'000'000'000, cause, options.rank,
                     call.timeout_ns / 1'000'000'000);
}

}  // namespace

LaunchGroup::Watchdog::~Watchdog() { TUTTI_ASSERT(!thread_.joinable(), "ranks have not left"); }

Status LaunchGroup::Watchdog::start() {
  members_.changed().notify_all();
  if (thread_.joinable()) return {};
  try {
    thread_ = start_thread([this] { watch(); });
    return {};
  } catch (const std::system_error& error) {
    const Error failed = broken_error(call_error(ErrorCode::kSystem, describe_thread_start_error(error)));
    members_.fail(failed);
    return failed;
  }
}

Status LaunchGroup::Watchdog::add_captured(std::uint32_t barrier_value) {
  if (captured_barrier_values_.size() >= kMostCapturedBarriers) {
    return call_error(ErrorCode::kUnsupported, "too many calls by copy engines are captured in graphs");
  }
  captured_barrier_values_.insert(barrier_value);
  return {};
}

void LaunchGroup::Watchdog::remove_last() {
  pending_launches_.pop_back();
  return_blocks();
}

// Returns the borrowed blocks that no pending launch uses.
void LaunchGroup::Watchdog::return_blocks() noexcept {
  std::uint32_t used = 0;
  for (const PendingLaunch& launch : pending_launches_) used = std::max(used, launch.borrowed);
  members_.loan().lower(used);
}

void LaunchGroup::Watchdog::end() {
  ending_ = true;
  pending_launches_.clear();  // their calls refer to the group, which would otherwise never be destroyed
  members_.changed().notify_all();
}

void LaunchGroup::Watchdog::join() {
  if (thread_.joinable()) thread_.join();
}

// The function that the thread runs.
void LaunchGroup::Watchdog::watch() noexcept {
  const cuda::RelaxedCapture relaxed(device_.driver());
  std::unique_lock lock(mutex_);
  while (!ending_) {
    try {
      check_all();
    } catch (...) {
      static_cast<void>(members_.fail_by_exception(members_.all().front().options.rank));
    }
    if (members_.broken()) release_streams();
    members_.notify(lock);
    if (!ending_) wait_for_next_check(lock);
  }
}

void LaunchGroup::Watchdog::check_all() {
  check_pending_launches();
  if (watches_graphs()) check_replays();
}

// Waits until changed() is notified, or until it is time for the next check. Waits without a time limit if there is
// nothing to check: no launch is pending, and no call with barriers was captured in a graph.
void LaunchGroup::Watchdog::wait_for_next_check(std::unique_lock<std::mutex>& lock) {
  if (pending_launches_.empty() && !watches_graphs()) return members_.changed().wait(lock);
  members_.changed().wait_for(lock, members_.broken() && releases_rounds() ? kReleasing : kLooking);
}

// Removes the pending launches that have ended, and returns the blocks that they have borrowed. If the context of a
// launch is lost, that launch never ends, so this function fails the group, makes its kernels end, and removes the
// launch. If the oldest launch that remains has begun, the function also checks the peers and, if the launch has
// barriers, its timeout, and logs a warning if it has waited long.
void LaunchGroup::Watchdog::check_pending_launches() {
  while (!pending_launches_.empty()) {
    const auto finished = pending_launches_.front().done->finished();
    if (finished.ok() && !*finished) break;
    if (!finished.ok()) {
      members_.fail(members_.lost(*pending_launches_.front().call, finished.error()));
      members_.end_kernels();
    }
    pending_launches_.pop_front();
  }
  return_blocks();
  const auto now = Clock::now();
  const bool was_stopped = now - std::exchange(last_check_, now) >= kWarnAfter / 4;  // see kWarnAfterNs
  if (pending_launches_.empty()) return gone_since_.reset();
  PendingLaunch& first = pending_launches_.front();
  const auto begun = first.begun->finished();
  const bool begins = !first.since && begun.ok() && *begun;
  if (begins) first.since = now;
  if (begins || (was_stopped && first.warns_at)) first.warns_at = now + kWarnAfter;
  if (!members_.broken() && first.since) check_peers(*first.call);
  if (!members_.broken()) warn_if_late(first);
  if (first.call->launch.rounds > 0) check_round_timeout(first);
}

// Fails the group if the oldest pending launch, which has barriers, has run longer than its timeout. Streams wait
// at barriers without a time limit, so the watchdog measures the time.
void LaunchGroup::Watchdog::check_round_timeout(const PendingLaunch& first) {
  const DeviceCall& call = *first.call;
  const auto now = Clock::now();
  if (members_.broken() || !first.since || now - *first.since < std::chrono::nanoseconds(call.timeout_ns)) return;
  const MemberOptions& options = members_.of(call).options;
  const std::string waited = fmt::format("{}: rank {} waited {} ms in its stream", describe(call.tag), options.rank,
                                         call.timeout_ns / 1'000'000);
  members_.fail(options.barrier->timeout_error(waited, call.barrier_value));
}

// Logs one warning if the launch has run for kWarnAfter, like the engine's watchdog; see Watchdog::warn_if_late() in
// src/engine. Logs none if the call's timeout ends at about the same time or earlier, because the error of the timeout
// says more.
void LaunchGroup::Watchdog::warn_if_late(PendingLaunch& first) {
  const MemberOptions& options = members_.of(*first.call).options;
  const DeviceCall& call = *first.call;
  if (!first.warns_at || Clock::now() < *first.warns_at || !options.warn) return;
  first.warns_at.reset();
  if (std::chrono::nanoseconds(call.timeout_ns) <= kWarnAfter + kLooking) return;
  // If there is no memory for the text, there is no warning, and the call goes on.
  runs_through([&] { options.warn(late_text(options, call)); });
}

// Checks the peers of a launched call. If a peer has called abort() or has lost its device, the group fails. If a peer
// has left or exited, the group fails after a grace period, because the peer may have done its part before, and then
// the call soon ends by itself. For sends and receives, a peer that has left does not fail the group here, because
// their kernel detects that, and neither does a peer that has exited without a part in them.
void LaunchGroup::Watchdog::check_peers(const DeviceCall& call) {
  const MemberOptions& options = members_.of(call).options;
  if (!options.peer_status) return;
  const auto ends = [&](ErrorCode code, std::uint32_t peer, const char* what) {
    members_.fail(broken_error(call_error(code, fmt::format("{}: rank {} {}", describe(call.tag), peer, what),
                                          static_cast<std::int32_t>(peer))),
                  call.transfers.has_value());
  };
  for (std::uint32_t peer = 0; peer < options.ranks; ++peer) {
    const PeerLife life = peer == options.rank ? PeerLife::kLive : options.peer_status(peer).life;
    if (life == PeerLife::kLive) continue;
    if (life == PeerLife::kLeft && call.transfers) {
      // a rank may leave when its own part is done; the kernel knows whether it still waits for that rank
      std::atomic_ref<std::uint64_t>(options.status->left).fetch_or(std::uint64_t{1} << peer);
      continue;
    }
    if (life == PeerLife::kLost && call.transfers && !call.transfers->is_with(peer)) continue;
    if (life == PeerLife::kAborted) return ends(ErrorCode::kAborted, peer, kAborted);
    const auto now = Clock::now();
    if (!gone_since_) gone_since_ = now;
    if (now - *gone_since_ < kGrace) return;
    return ends(ErrorCode::kPeerLost, peer, life == PeerLife::kLeft ? "has left the communicator" : "has ended");
  }
}

// The group cannot see whether a graph is being replayed at the moment. So if a peer has aborted or exited, the
// group fails at once, and the streams of replays that may wait for that peer are released.
void LaunchGroup::Watchdog::check_replays() {
  const MemberOptions& options = members_.all().front().options;
  for (std::uint32_t peer = 0; !members_.broken() && options.peer_status && peer < options.ranks; ++peer) {
    const PeerLife life = peer == options.rank ? PeerLife::kLive : options.peer_status(peer).life;
    if (life != PeerLife::kAborted && life != PeerLife::kLost) continue;
    members_.fail(
        broken_error(call_error(life == PeerLife::kLost ? ErrorCode::kPeerLost : ErrorCode::kAborted,
                                fmt::format("rank {} {}", peer, life == PeerLife::kLost ? "has ended" : kAborted),
                                static_cast<std::int32_t>(peer))));
  }
}

// Whether the oldest pending launch is a call in rounds, or by copies between barriers, so that its stream may wait
// at a barrier.
bool LaunchGroup::Watchdog::releases_rounds() const {
  return !pending_launches_.empty() && pending_launches_.front().call->launch.rounds > 0;
}

// Called after each check while the group is broken: makes running kernels end, and releases barriers for one
// value. It does not loop, because the value must stay in the flags until the next check, so that the stream has
// time to see it.
void LaunchGroup::Watchdog::release_streams() noexcept {
  if (!pending_launches_.empty()) members_.end_kernels();
  if (releases_rounds() || watches_graphs()) release_rounds();
}

// Sets the flags for which streams at barriers wait. The watchdog calls this function again and again, because a
// stream resets the flags of each barrier that it passes, and then waits at the next one.
void LaunchGroup::Watchdog::release_rounds() noexcept {
  give_up_barriers();
  // Each call of this function writes one of the values for which barriers wait, in turn: those of the captured
  // calls, and that of the oldest pending launch. The value stays in the flags until the next call, so that a
  // stream has time to see it.
  const std::size_t values = captured_barrier_values_.size() + (pending_launches_.empty() ? 0 : 1);
  if (values == 0) return;
  const std::size_t turn = release_turns_++ % values;
  const std::uint32_t value = turn < captured_barrier_values_.size()
                                  ? *std::next(captured_barrier_values_.begin(), static_cast<std::ptrdiff_t>(turn))
                                  : pending_launches_.front().call->barrier_value;
  for (const Member& each : members_.all()) {
    if (each.options.barrier != nullptr) each.options.barrier->release(value);
  }
}

// If this rank gives up a call by copies, or captured calls with barriers, prevents peers that reach its barriers later
// from passing them. The watchdog repeats this, because this rank's own stream, once it is released, goes on and writes
// the regular values into the same flags.
void LaunchGroup::Watchdog::give_up_barriers() noexcept {
  const bool by_copies = watches_graphs() || (!pending_launches_.empty() && pending_launches_.front().call->copies);
  for (const Member& each : members_.all()) {
    if (by_copies && each.options.barrier != nullptr) each.options.barrier->give_up();
  }
}

}  // namespace tutti::detail
