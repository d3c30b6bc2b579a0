#include "runtime/device_team.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "runtime/device_failure.h"

namespace tutti::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaiting = 1024;
constexpr std::chrono::microseconds kPoll{50};
constexpr std::chrono::milliseconds kWaitForOthers{20};
constexpr std::size_t kMostLonger = 4096;  // launches of many ranks that are captured

}  // namespace

bool DeviceCall::finished() { return team_ == nullptr || team_->look(*this).has_value(); }

Status DeviceCall::outcome() {
  if (team_ == nullptr) return {};
  return team_->look(*this).value_or(Status());
}

Status DeviceCall::settle() {
  TUTTI_ASSERT(team_ != nullptr);
  return team_->settle(*this);
}

DeviceTeam::DeviceTeam(std::shared_ptr<RankDevice> device, std::vector<std::uint32_t> ranks, bool whole)
    : device_(std::move(device)), whole_(whole) {
  for (const std::uint32_t rank : ranks) {
    members_.emplace_back();
    members_.back().seat.rank = rank;
  }
}

DeviceTeam::~DeviceTeam() { TUTTI_ASSERT(!watchdog_.joinable(), "ranks have not left"); }

DeviceTeam::Member& DeviceTeam::member(std::uint32_t rank) {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.seat.rank == rank; });
  TUTTI_ASSERT(found != members_.end(), "rank {} has no seat", rank);
  return *found;
}

void DeviceTeam::take_seat(const Seat& seat) {
  const std::scoped_lock lock(mutex_);
  Member& taken = member(seat.rank);
  taken.seat = seat;
  taken.here = true;
}

Result<std::shared_ptr<cuda::Event>> DeviceTeam::take_event() {
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
  }
  const auto give_back = [pool = pool_](cuda::Event* used) {
    std::unique_ptr<cuda::Event> owned(used);
    const std::scoped_lock lock(pool->mutex);
    pool->free.push_back(std::move(owned));
  };
  return std::shared_ptr<cuda::Event>(event.release(), give_back);
}

Status DeviceTeam::submit(std::uint32_t rank, const std::shared_ptr<DeviceCall>& call) {
  const std::scoped_lock lock(mutex_);
  if (broken_) return *broken_;
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  if (!scope) return scope.error();
  Member& caller = member(rank);
  if (caller.waiting.size() >= kMostWaiting) {
    return call_error(
        ErrorCode::kUnsupported,
        fmt::format("{} calls of rank {} wait for the other ranks of its process already: call on those too",
                    kMostWaiting, rank));
  }
  const cuda::DriverApi& api = device_->driver().api();
  auto status = cuda::CaptureStatus::kNone;
  std::uint64_t capture = 0;
  TUTTI_TRY(
      device_->driver().check(api.stream_get_capture_info(call->stream, &status, &capture, nullptr, nullptr, nullptr),
                              "looking at the stream of a call"));
  call->capture_ = status == cuda::CaptureStatus::kNone ? 0 : capture;
  if (members_.size() > 1) {
    auto ready = take_event();
    if (!ready) return ready.error();
    TUTTI_TRY((*ready)->record(call->stream));
    call->ready_ = std::move(*ready);
  }
  call->team_ = shared_from_this();
  call->seat_ = static_cast<std::size_t>(&caller - members_.data());
  call->number_ = ++caller.numbers;
  caller.caller = std::this_thread::get_id();
  call->deadline_ = Clock::now() + std::chrono::nanoseconds(call->timeout_ns);
  caller.waiting.push_back(call);
  const auto all_here = [&] {
    return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return !m.waiting.empty(); });
  };
  while (all_here()) TUTTI_TRY(launch_front());
  return {};
}

// The first that differs from the first rank's.
Status DeviceTeam::check_front() const {
  const DeviceCall& first = *members_.front().waiting.front();
  for (const Member& other : members_) {
    const DeviceCall& call = *other.waiting.front();
    const CallArgument what = first_difference(first.tag, call.tag);
    if (what == CallArgument::kNone && call.launch == first.launch) continue;
    const std::string differs = what == CallArgument::kNone
                                    ? "other settings"
                                    : fmt::format("{}, rank {} has {}", describe(call.tag, what),
                                                  members_.front().seat.rank, describe(first.tag, what));
    return call_error(ErrorCode::kMismatch,
                      fmt::format("{}: rank {} has {}", describe(first.tag), other.seat.rank, differs),
                      static_cast<std::int32_t>(other.seat.rank));
  }
  return {};
}

Status DeviceTeam::launch_front() {
  const Status alike = check_front();
  std::vector<std::shared_ptr<DeviceCall>> calls;
  for (Member& each : members_) {
    calls.push_back(std::move(each.waiting.front()));
    each.waiting.pop_front();
  }
  Status launched = alike.ok() ? launch(calls) : alike;
  if (launched) return {};
  // Ranks elsewhere may have launched their part.
  const Error error = alike.ok() || !whole_ ? broken_error(launched.error()) : launched.error();
  for (const auto& call : calls) {
    call->outcome_ = error;
    std::atomic_ref<std::uint32_t>(members_[call->seat_].seat.words->passed)
        .store(call->number_, std::memory_order_release);
  }
  launched_.notify_all();
  if (error.scope == ErrorScope::kCommunicator) fail_locked(error);
  return error;
}

Result<cuda::CUstream> DeviceTeam::choose_stream(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  const DeviceCall& first = *calls.front();
  bool one_stream = true;
  for (const auto& call : calls) {
    if (call->capture_ != first.capture_) {
      return call_error(
          ErrorCode::kUnsupported,
          "ranks that share a GPU in one process capture their calls in different graphs, or only some of "
          "them do: capture them in one graph, from one thread, in a Group");
    }
    one_stream &= call->stream == first.stream;
  }
  if (one_stream) return first.stream;
  std::optional<cuda::Stream>& stream = first.capture_ == 0 ? stream_ : capture_stream_;
  if (!stream) {
    auto made = cuda::Stream::create(device_->driver());
    if (!made) return made.error();
    stream.emplace(std::move(*made));
  }
  return stream->handle();
}

Status DeviceTeam::launch(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  const cuda::Driver& driver = device_->driver();
  auto stream = choose_stream(calls);
  if (!stream) return stream.error();
  for (const auto& call : calls) {
    if (call->stream == *stream) continue;
    TUTTI_TRY(driver.check(driver.api().stream_wait_event(*stream, call->ready_->handle(), 0),
                           "waiting for the stream of a rank"));
  }
  // Calls run in their order, whatever their streams; what is captured and what is not are the caller's to order.
  const std::uint64_t capture = calls.front()->capture_;
  if (last_done_ != nullptr && last_stream_ != *stream && last_capture_ == capture) {
    TUTTI_TRY(
        driver.check(driver.api().stream_wait_event(*stream, last_done_->handle(), 0), "waiting for the call before"));
  }
  auto done = take_event();
  if (!done) return done.error();
  std::shared_ptr<cuda::Event> begun;  // of calls in rounds
  const bool watched = !whole_ && capture == 0;
  if (watched) TUTTI_TRY(start_watchdog());
  if (watched && calls.front()->launch.rounds > 0) {
    auto event = take_event();
    if (!event) return event.error();
    begun = std::move(*event);
    TUTTI_TRY(begun->record(*stream));
  }
  TUTTI_TRY(put_kernel(calls, *stream));
  launched_.notify_all();
  last_stream_ = *stream;
  last_capture_ = capture;
  TUTTI_TRY((*done)->record(*stream));
  last_done_ = *done;
  if (capture == 0) last_plain_done_ = *done;
  if (!longer_.empty() && capture == 0) longer_.back().done = *done;
  if (watched) underway_.push_back({.call = calls.front(), .done = *done, .begun = begun});
  for (const auto& call : calls) {
    call->launched_ = true;
    call->launched_in_ = *stream;
    call->done_ = *done;
    if (!call->by_word_) continue;
    const Seat& seat = members_[call->seat_].seat;
    TUTTI_TRY(
        driver.check(driver.api().stream_write_value32(*stream, seat.words_on_device + offsetof(RankWords, passed),
                                                       call->number_, cuda::kWriteDefault),
                     "letting the stream of a rank go on"));
  }
  return {};
}

Status DeviceTeam::put_kernel(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream) {
  const DeviceLaunch& how = calls.front()->launch;
  device::Launch launch;
  launch.call_count = static_cast<std::uint32_t>(calls.size());
  launch.channels = how.channels;
  launch.slices = how.slices;
  if (how.rounds > 0) return put_rounds(*calls.front(), stream);
  if (calls.size() <= device::kInlineCalls) {
    for (std::size_t i = 0; i < calls.size(); ++i) launch.inline_calls[i] = calls[i]->call;
  } else {
    auto on_device = calls_for_device(calls);
    if (!on_device) return on_device.error();
    launch.calls = *on_device;
  }
  void* parameters[] = {&launch};
  const cuda::Driver& driver = device_->driver();
  const unsigned blocks = device::blocks_of(launch);
  // Where ranks wait for each other inside the launch, all its blocks or none are on the device.
  const cuda::DriverApi& api = driver.api();
  const cuda::CUresult result =
      calls.size() > 1
          ? api.launch_cooperative_kernel(how.kernel, blocks, 1, 1, how.threads, 1, 1, 0, stream, parameters)
          : api.launch_kernel(how.kernel, blocks, 1, 1, how.threads, 1, 1, 0, stream, parameters, nullptr);
  return driver.check(result, fmt::format("launching {} blocks of {} threads", blocks, how.threads));
}

// Memory that a launch of before has been through with is used again.
Result<const device::Call*> DeviceTeam::calls_for_device(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  const auto is_free = [](const Longer& one) {
    if (one.done == nullptr) return false;
    const auto finished = one.done->finished();
    return finished.ok() && *finished;
  };
  const auto found = std::find_if(longer_.begin(), longer_.end(), is_free);
  if (found != longer_.end()) {
    std::rotate(found, found + 1, longer_.end());  // the last is the one in use
  } else {
    if (longer_.size() >= kMostLonger) {
      return call_error(ErrorCode::kUnsupported, "too many calls of more than 8 ranks on a GPU are captured in graphs");
    }
    auto memory = cuda::PinnedMemory::allocate(device_->driver(), members_.size() * sizeof(device::Call));
    if (!memory) return memory.error();
    longer_.push_back({.memory = std::move(*memory), .done = nullptr});
  }
  Longer& taken = longer_.back();
  taken.done = nullptr;
  std::byte* to = taken.memory.bytes().data();
  for (std::size_t i = 0; i < calls.size(); ++i)
    std::memcpy(to + i * sizeof(device::Call), &calls[i]->call, sizeof(device::Call));
  return reinterpret_cast<const device::Call*>(taken.memory.device_address());  // NOLINT: a device's address
}

bool DeviceTeam::others_serve_the_rest() const {
  return std::none_of(members_.begin(), members_.end(),
                      [](const Member& m) { return m.waiting.empty() && m.caller == std::this_thread::get_id(); });
}

Status DeviceTeam::settle(DeviceCall& call) {
  std::unique_lock lock(mutex_);
  if (!call.launched_ && call.capture_ == 0 && others_serve_the_rest()) {
    launched_.wait_for(lock, kWaitForOthers, [&] { return call.launched_ || call.outcome_; });
  }
  if (call.outcome_) return *call.outcome_;
  const cuda::Driver& driver = device_->driver();
  auto scope = cuda::ContextScope::enter(driver, device_->context());
  if (!scope) return scope.error();
  if (call.launched_) {
    if (call.stream == call.launched_in_) return {};
    return driver.check(driver.api().stream_wait_event(call.stream, call.done_->handle(), 0), "waiting for a call");
  }
  const Seat& seat = members_[call.seat_].seat;
  if (call.capture_ != 0) {
    const Error error = call_error(
        ErrorCode::kUnsupported,
        "the stream is capturing, and not all ranks of this process and GPU have made the call: capture the calls of "
        "all of them in one graph, from one thread, in a Group");
    fail_locked(broken_error(error));
    return broken_error(error);
  }
  TUTTI_TRY(
      driver.check(driver.api().stream_wait_value32(call.stream, seat.words_on_device + offsetof(RankWords, passed),
                                                    call.number_, cuda::kWaitGreaterEqual),
                   "making the stream wait for the other ranks"));
  call.by_word_ = true;
  return start_watchdog();
}

void DeviceTeam::fail(const Error& error) {
  const std::scoped_lock lock(mutex_);
  fail_locked(error);
}

void DeviceTeam::fail_locked(const Error& error) {
  if (!broken_) broken_ = error;
  for (Member& each : members_) {
    for (const auto& call : each.waiting) {
      call->outcome_ = *broken_;
      std::atomic_ref<std::uint32_t>(each.seat.words->passed).store(call->number_, std::memory_order_release);
    }
    each.waiting.clear();
  }
  launched_.notify_all();
  changed_.notify_all();  // the watchdog lets streams go
}

std::uint64_t DeviceTeam::failure_word(const Member& its) {
  if (!its.here) return its.failure;
  return std::atomic_ref<const std::uint64_t>(its.seat.words->status.failure).load(std::memory_order_acquire);
}

std::optional<Status> DeviceTeam::look(DeviceCall& call) {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const std::scoped_lock lock(mutex_);
  if (call.outcome_) return call.outcome_;
  if (!call.launched_) return std::nullopt;
  if (call.capture_ != 0) return Status();  // it runs when the graph does
  const Result<bool> finished = call.done_->finished();
  if (finished.ok() && !*finished) return std::nullopt;
  call.outcome_ = finished.ok() ? Status() : Status(broken_error(finished.error()));
  const Member& its = members_[call.seat_];
  const std::uint64_t failure = failure_word(its);
  if (finished.ok() && failure != 0) {
    const auto found = device::FailureWord::of(failure);
    const bool ended_here = found.cause == device::Failure::kAborted && broken_;
    call.outcome_ = ended_here ? *broken_ : device_failure(found, its.seat.rank, &call.tag, call.timeout_ns);
  }
  if (broken_ && call.launch.rounds > 0) call.outcome_ = *broken_;  // its stream was let go
  if (!call.outcome_->ok()) fail_locked(call.outcome_->error());
  return call.outcome_;
}

std::optional<Error> DeviceTeam::failure(std::uint32_t rank, bool asks_driver) {
  const cuda::RelaxedCapture relaxed(device_->driver());
  const std::scoped_lock lock(mutex_);
  if (broken_) return broken_;
  std::optional<Error> failed;
  if (const std::uint64_t word = failure_word(member(rank)); word != 0) {
    failed = device_failure(device::FailureWord::of(word), rank, nullptr, 0);
  }
  if (!failed && asks_driver && last_plain_done_ != nullptr) {
    const Result<bool> finished = last_plain_done_->finished();
    if (!finished.ok()) failed = broken_error(finished.error());
  }
  if (failed) fail_locked(*failed);
  return failed;
}

bool DeviceTeam::drain(std::chrono::milliseconds limit) {
  std::shared_ptr<cuda::Event> last;
  {
    const std::scoped_lock lock(mutex_);
    last = last_plain_done_;
  }
  if (last == nullptr) return true;
  const cuda::RelaxedCapture relaxed(device_->driver());
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const Result<bool> finished = last->finished();
    if (!finished.ok() || *finished) return true;  // what a lost context held does not run either
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPoll);
  }
}

void DeviceTeam::leave(std::uint32_t rank) {
  const std::scoped_lock lock(mutex_);
  fail_locked({ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
               fmt::format("rank {}, of this process and GPU, has left the communicator", rank)});
}

void DeviceTeam::forget(std::uint32_t rank) {
  {
    const std::scoped_lock lock(mutex_);
    Member& its = member(rank);
    its.failure = failure_word(its);
    its.here = false;
    if (std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.here; })) return;
    ending_ = true;
    underway_.clear();  // their calls hold the team
    changed_.notify_all();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

}  // namespace tutti::detail
