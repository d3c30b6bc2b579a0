// Of a team: calls in rounds; and the watchdog, which ends what waits for ranks that do not come.
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
#include "executor/device_arena.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLooking{20};  // at launches that wait for ranks elsewhere
constexpr std::chrono::milliseconds kGrace{200};   // for a peer that has gone
constexpr std::chrono::milliseconds kReleasing{1};
// What a rank that calls abort(), and one whose device is lost, have in common.
constexpr const char* kAborted = "called abort(), or can take part no more: then its own error says why";

}  // namespace

// Kernels that do not wait, and meetings between them. An even number of them, so that every call begins with the same
// parity, and a captured one can be replayed.
Status LaunchGroup::put_rounds(const DeviceCall& call, cuda::CUstream stream) {
  const cuda::Driver& driver = device_->driver();
  const StreamBarrier& meeting = *members_[call.seat_].seat.meeting;
  const DeviceLaunch& how = call.launch;
  device::Launch launch;
  launch.call_count = 1;
  launch.channels = how.channels;
  launch.slices = how.slices;
  launch.inline_calls[0] = call.call;
  const std::uint64_t rounds = how.rounds + how.rounds % 2;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    TUTTI_TRY(meet(meeting, static_cast<std::uint32_t>(round % 2), call.meeting_word, stream));
    launch.resume = round > 0 ? 1 : 0;
    launch.last = round + 1 >= how.rounds ? 1 : 0;
    void* parameters[] = {&launch};
    const cuda::CUresult result = driver.api().launch_kernel(how.kernel, device::blocks_of(launch), 1, 1, how.threads,
                                                             1, 1, 0, stream, parameters, nullptr);
    if (result != cuda::CUresult::kSuccess) return not_launched(result, launch, how.threads);
  }
  return {};
}

// A rank takes its words of one parity back before it sets those of the next, and no peer comes to the one after that
// before: so nobody sets a word that is still to be taken back.
Status LaunchGroup::meet(const StreamBarrier& meeting, std::uint32_t parity, std::uint32_t word,
                         cuda::CUstream stream) {
  const cuda::Driver& driver = device_->driver();
  const cuda::DriverApi& api = driver.api();
  const auto for_each_peer = [&](auto visit) -> Status {
    for (std::uint32_t peer = 0; peer < meeting.arenas.size(); ++peer) {
      if (peer != meeting.rank) TUTTI_TRY(driver.check(visit(peer), "meeting the other ranks in a stream"));
    }
    return {};
  };
  const std::uint64_t own = meeting.arenas[meeting.rank];
  TUTTI_TRY(for_each_peer([&](std::uint32_t peer) {
    return api.stream_write_value32(stream, meeting.arenas[peer] + DeviceArena::met_word(meeting.rank, parity), word,
                                    cuda::kWriteDefault);
  }));
  TUTTI_TRY(for_each_peer([&](std::uint32_t peer) {
    return api.stream_wait_value32(stream, own + DeviceArena::met_word(peer, parity), word, cuda::kWaitEqual);
  }));
  return for_each_peer([&](std::uint32_t peer) {
    return api.stream_write_value32(stream, own + DeviceArena::met_word(peer, parity), 0, cuda::kWriteDefault);
  });
}

Status LaunchGroup::start_watchdog() {
  changed_.notify_all();
  if (watchdog_.joinable()) return {};
  try {
    watchdog_ = start_thread([this] { watch(); });
    return {};
  } catch (const std::system_error& error) {
    const Error failed = broken_error(call_error(ErrorCode::kSystem, words_of_unstarted_thread(error)));
    fail_locked(failed);
    return failed;
  }
}

Error LaunchGroup::missing(const DeviceCall& call) const {
  std::string absent;
  std::int32_t first = -1;
  for (const Member& other : members_) {
    if (!other.waiting.empty()) continue;
    absent += fmt::format("{}{}", absent.empty() ? "" : ", ", other.seat.rank);
    if (first < 0) first = static_cast<std::int32_t>(other.seat.rank);
  }
  return broken_error(call_error(
      ErrorCode::kTimeout,
      fmt::format("{}: waited {} ms for ranks {} of this process and GPU, which have not made the call, or not on "
                  "device memory: {}",
                  describe(call.tag), call.timeout_ns / 1'000'000, absent, kOneKindOfMemory),
      first));
}

Error LaunchGroup::lost(const DeviceCall& call, const Error& error) const {
  return lost_error(error, members_[call.seat_].seat.rank, &call.tag);
}

// A peer that has called abort() ends the call; one that has left or died too, unless it had done its part before: then
// the call ends by itself, soon.
void LaunchGroup::look_at_peers(const DeviceCall& call) {
  const Seat& seat = members_[call.seat_].seat;
  if (!seat.life) return;
  const auto ends = [&](ErrorCode code, std::uint32_t peer, const char* what) {
    fail_locked(broken_error(call_error(code, fmt::format("{}: rank {} {}", describe(call.tag), peer, what),
                                        static_cast<std::int32_t>(peer))));
  };
  for (std::uint32_t peer = 0; peer < seat.ranks; ++peer) {
    const PeerLife life = peer == seat.rank ? PeerLife::kLive : seat.life(peer);
    if (life == PeerLife::kLive) continue;
    if (life == PeerLife::kAborted) return ends(ErrorCode::kAborted, peer, kAborted);
    const auto now = Clock::now();
    if (!gone_since_) gone_since_ = now;
    if (now - *gone_since_ < kGrace) return;
    return ends(ErrorCode::kPeerLost, peer, life == PeerLife::kLeft ? "has left the communicator" : "has ended");
  }
}

// Forgets launches that have ended. One that cannot end is ended.
void LaunchGroup::look_at_underway() {
  while (!underway_.empty()) {
    const auto finished = underway_.front().done->finished();
    if (finished.ok() && !*finished) break;
    if (!finished.ok()) {
      fail_locked(lost(*underway_.front().call, finished.error()));
      end_kernels();
    }
    underway_.pop_front();
  }
  if (underway_.empty()) return gone_since_.reset();
  Underway& first = underway_.front();
  const auto begun = first.begun->finished();
  if (!first.since && begun.ok() && *begun) first.since = Clock::now();
  if (!broken_ && first.since) look_at_peers(*first.call);
  if (first.call->launch.rounds > 0) look_at_rounds(first);
}

// Ends kernels and meetings. Once in each look, because a stream must find the word of its meeting for a whole look.
// The first call makes a stream. If that throws, the next look ends the meetings.
void LaunchGroup::let_streams_go() noexcept {
  if (!underway_.empty()) end_kernels();
  const bool in_rounds = !underway_.empty() && underway_.front().call->launch.rounds > 0;
  if (in_rounds || captured_rounds_) static_cast<void>(runs_through([&] { release_rounds(); }));
}

void LaunchGroup::end_kernels() noexcept {
  for (Member& each : members_) {
    if (each.here) std::atomic_ref<std::uint64_t>(each.seat.words->status.abort).store(1, std::memory_order_release);
  }
}

// Calls that wait for ranks of this process, in a context that is lost meanwhile: no stream tells.
void LaunchGroup::look_at_waiting() {
  for (const Member& each : members_) {
    if (each.waiting.empty()) continue;
    const DeviceCall& call = *each.waiting.front();
    if (call.ready_ == nullptr || call.capture_ != 0) continue;
    const auto ready = call.ready_->finished();
    if (!ready.ok()) return fail_locked(lost(call, ready.error()));
  }
}

// Streams wait without an end: the time is taken here.
void LaunchGroup::look_at_rounds(Underway& first) {
  const auto now = Clock::now();
  if (broken_ || !first.since || now - *first.since < std::chrono::nanoseconds(first.call->timeout_ns)) return;
  fail_locked(not_met(*first.call));
}

// Sets all words that the streams wait for: again and again, since each meeting takes them back.
void LaunchGroup::release_rounds() {
  const cuda::DriverApi& api = device_->driver().api();
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  if (!scope) return underway_.clear();
  if (!release_stream_) {
    auto made = cuda::Stream::create(device_->driver());
    if (!made) return underway_.clear();
    release_stream_.emplace(std::move(*made));
  }
  say_given_up();
  // One of them each time, for as long as a stream may take to look.
  const std::size_t words = captured_words_.size() + (underway_.empty() ? 0 : 1);
  if (words == 0) return;
  const std::size_t turn = release_turns_++ % words;
  const std::uint32_t word = turn < captured_words_.size()
                                 ? *std::next(captured_words_.begin(), static_cast<std::ptrdiff_t>(turn))
                                 : underway_.front().call->meeting_word;
  for (const Member& each : members_) {
    if (each.seat.meeting == nullptr) continue;
    const StreamBarrier& meeting = *each.seat.meeting;
    for (std::uint32_t peer = 0; peer < meeting.arenas.size(); ++peer) {
      if (peer == meeting.rank) continue;
      for (const std::uint32_t parity : {0u, 1u}) {
        const std::uint64_t at = meeting.arenas[meeting.rank] + DeviceArena::met_word(peer, parity);
        static_cast<void>(api.stream_write_value32(release_stream_->handle(), at, word, cuda::kWriteDefault));
      }
    }
  }
  static_cast<void>(release_stream_->synchronize());
}

// Replays of graphs are not seen; where a peer has gone, or this rank gave up, their streams go on.
void LaunchGroup::look_at_replays() {
  const Seat& seat = members_.front().seat;
  for (std::uint32_t peer = 0; !broken_ && seat.life && peer < seat.ranks; ++peer) {
    const PeerLife life = peer == seat.rank ? PeerLife::kLive : seat.life(peer);
    if (life != PeerLife::kAborted && life != PeerLife::kLost) continue;
    fail_locked(
        broken_error(call_error(life == PeerLife::kLost ? ErrorCode::kPeerLost : ErrorCode::kAborted,
                                fmt::format("rank {} {}", peer, life == PeerLife::kLost ? "has ended" : kAborted),
                                static_cast<std::int32_t>(peer))));
  }
}

// The call that may wait for ranks of this process the shortest; null: none waits.
const DeviceCall* LaunchGroup::first_to_expire() const {
  const DeviceCall* first = nullptr;
  for (const Member& each : members_) {
    for (const auto& call : each.waiting) {
      if (first == nullptr || call->deadline_ < first->deadline_) first = call.get();
    }
  }
  return first;
}

// Ends calls for which some rank does not come.
void LaunchGroup::watch() noexcept {
  const cuda::RelaxedCapture relaxed(device_->driver());
  std::unique_lock lock(mutex_);
  while (!ending_) {
    try {
      look_at_all();
    } catch (...) {
      static_cast<void>(fail_by_exception(members_.front().seat.rank));
    }
    if (broken_) let_streams_go();
    tell_others(lock);
    if (!ending_) wait_to_look(lock);
  }
}

void LaunchGroup::look_at_all() {
  look_at_waiting();
  const DeviceCall* first = first_to_expire();
  if (first != nullptr && Clock::now() >= first->deadline_) fail_locked(missing(*first));
  look_at_underway();
  if (captured_rounds_) look_at_replays();
}

// Until something has changed, or may have.
void LaunchGroup::wait_to_look(std::unique_lock<std::mutex>& lock) {
  const DeviceCall* first = first_to_expire();
  if (!underway_.empty() || captured_rounds_) {
    const bool releasing = broken_ && !underway_.empty() && underway_.front().call->launch.rounds > 0;
    changed_.wait_for(lock, releasing ? kReleasing : kLooking);
  } else if (first == nullptr) {
    changed_.wait(lock);
  } else {
    const auto until = std::min(first->deadline_, Clock::now() + kLooking);  // the call may end while this sleeps
    changed_.wait_until(lock, until);
  }
}

}  // namespace tutti::detail
