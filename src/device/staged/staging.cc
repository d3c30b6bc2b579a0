// StagedCall: puts the copies of a call into streams, and handles their callbacks and lost contexts.
#include "device/staged/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "engine/arguments.h"

namespace tutti::detail {
namespace {

// Of the calls of finished() that find the call unfinished, only one in kLooks queries the CUDA driver, because a query
// takes much longer than a look at a counter.
constexpr std::uint32_t kLooks = 64;

constexpr std::chrono::milliseconds kEndLook{20};  // interval at which a waiting call looks for lost contexts

// Whether the result of a query means that the context is lost. After a context was destroyed, the driver reports that
// the context or a handle in it is invalid, so these two results count as well.
bool says_lost(cuda::CUresult result) {
  return cuda::is_lost(result) || result == cuda::CUresult::kInvalidContext || result == cuda::CUresult::kInvalidHandle;
}

}  // namespace

StagedCall::StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool)
    : driver_(driver), pool_(std::move(pool)) {}

StagedCall::~StagedCall() {
  for (Part& part : parts_) {
    if (part.event && !retires_) pool_->give_back(part.context, *std::move(part.event));
    if (part.event && retires_) pool_->retire(*std::move(part.event));
    if (part.fork && !retires_) pool_->give_back(part.context, *std::move(part.fork));
    if (part.fork && retires_) pool_->retire(*std::move(part.fork));
  }
  retires_ ? pool_->retire(buffers_.take_block()) : pool_->give_back(buffers_.take_block());
}

// Returns the index of the part for this stream and for the context of the memory. Adds a part if there is none
// yet.
Result<std::size_t> StagedCall::part_of(const cuda::PointerInfo& where, cuda::CUstream stream) {
  cuda::CUcontext context = where.context;
  if (context == nullptr) {  // mapped virtual memory belongs to no context, so use the current one
    TUTTI_TRY(driver_.check(driver_.api().ctx_get_current(&context), "finding the current context"));
    if (context == nullptr) {
      return invalid_argument(fmt::format(
          "the buffers are mapped virtual memory of GPU {}, and no context is current: make one of it current",
          where.device));
    }
  }
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (parts_[part].stream == stream && parts_[part].context == context) return part;
  }
  auto scope = cuda::ContextScope::enter(driver_, context);
  if (!scope) return scope.error();
  if (stream != nullptr) {
    cuda::CUcontext its = nullptr;
    TUTTI_TRY(driver_.check(driver_.api().stream_get_ctx(stream, &its), "looking at the stream of a call"));
    if (its != context) {
      return invalid_argument(fmt::format(
          "the stream belongs to another context than the buffers, which are memory of GPU {}: make it there",
          where.device));
    }
  }
  auto capture = cuda::CaptureStatus::kNone;
  TUTTI_TRY(driver_.check(driver_.api().stream_is_capturing(stream, &capture), "looking at the stream of a call"));
  const bool captured = capture != cuda::CaptureStatus::kNone;
  if (!parts_.empty() && (captured || captured_)) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCall, -1,
        "the stream is capturing a graph, and the buffers belong to several contexts: capture a call for each"};
  }
  captured_ = captured;
  parts_.push_back({.stream = stream, .context = context, .device = where.device});
  return parts_.size() - 1;
}

Result<std::size_t> StagedCall::add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes) {
  auto part = part_of(where, static_cast<cuda::CUstream>(stream));
  if (!part) return part.error();
  return buffers_.add(data, bytes, *part);
}

Status StagedCall::allocate() {
  const cuda::RelaxedCapture relaxed(driver_);
  return buffers_.allocate(*pool_, parts_.front().device);
}

void StagedCall::submit_later(std::shared_ptr<EngineHandle> handle, std::shared_ptr<Operation> operation) {
  const std::scoped_lock lock(mutex_);
  outcome_.handle = std::move(handle);
  outcome_.operation = std::move(operation);
}

Status StagedCall::enqueue() {
  to_stage_ = parts_.size();
  to_finish_ = settles() && !buffers_.copies_out() ? 0 : parts_.size();
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const auto take_back = [&] {
      stop_reuse();
      forget();
      release_streams();
    };
    try {
      Status queued = enqueue(part);
      if (queued) continue;
      take_back();
      return queued;
    } catch (...) {
      take_back();
      throw;
    }
  }
  return {};
}

Status StagedCall::enqueue(std::size_t number) {
  Part& part = parts_[number];
  auto scope = cuda::ContextScope::enter(driver_, part.context);
  if (!scope) return scope.error();
  auto event = pool_->take_event(part.context);
  if (!event) return event.error();
  part.event.emplace(std::move(*event));
  TUTTI_TRY(buffers_.enqueue(driver_, StagedBuffers::Direction::kIn, number, part.stream));
  auto ticket = call_back(number, part.stream, on_staged);
  if (!ticket) return ticket.error();
  {
    const std::scoped_lock lock(looking_);
    part.staged = *ticket;
  }
  if (settles()) return part.event->record(part.stream);  // look() queries it
  auto stream = part.stream_of_output(driver_, *pool_);
  if (!stream) return stream.error();
  TUTTI_TRY(driver_.check(
      driver_.api().stream_wait_value32(*stream, buffers_.flag_address(), StagedBuffers::kGoOn, cuda::kWaitEqual),
      "making the stream wait for the ranks"));
  return enqueue_output(number, *stream);
}

// The output copies are ordered behind the flag. The documentation of the driver requires that work on one device
// that is ordered by memory flags is also ordered by events, because streams may share a hardware queue. Therefore
// the output copies wait for the input copies by an event. This also orders them behind everything that the
// caller's stream does with the output before the call.
Result<cuda::CUstream> StagedCall::Part::stream_of_output(const cuda::Driver& driver, StagingPool& pool) {
  if (out == nullptr) return stream;
  auto taken = pool.take_event(context);
  if (!taken) return taken.error();
  fork.emplace(std::move(*taken));
  TUTTI_TRY(fork->record(stream));
  TUTTI_TRY(
      driver.check(driver.api().stream_wait_event(out, fork->handle(), 0), "making copies out wait for copies in"));
  return out;
}

Status StagedCall::enqueue_output(std::size_t number, cuda::CUstream stream) {
  Part& part = parts_[number];
  TUTTI_TRY(buffers_.enqueue(driver_, StagedBuffers::Direction::kOut, number, stream));
  auto ticket = call_back(number, stream, on_finished);
  if (!ticket) return ticket.error();
  {
    const std::scoped_lock lock(looking_);
    part.finished = *ticket;
  }
  if (!captured_) return part.event->record(stream);
  return driver_.check(driver_.api().event_record_with_flags(part.event->handle(), stream, cuda::kEventExternal),
                       "recording an event in each replay");
}

void StagedCall::stop_reuse() {
  const std::scoped_lock lock(looking_);
  retires_ = true;
}

Status StagedCall::settle() {
  if (std::exchange(settled_, true) || !buffers_.copies_out()) return {};
  Status queued;
  try {
    queued = wait_for_end();
    if (queued) queued = enqueue_rest();
  } catch (...) {
    queued = error_of_exception(ErrorScope::kCall, -1, "copying the output of a call back");
  }
  if (queued) return {};
  // No callback will report the copies that are missing. The memory is kept, because some copies may be in a stream.
  stop_reuse();
  {
    const std::scoped_lock lock(mutex_);
    if (!outcome_.lost) outcome_.lost = copy_of(queued.error());
  }
  gave_up_.store(true, std::memory_order_release);
  return queued;
}

Status StagedCall::enqueue_rest() {
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    auto scope = cuda::ContextScope::enter(driver_, parts_[part].context);
    if (!scope) return scope.error();
    TUTTI_TRY(enqueue_output(part, parts_[part].stream));
  }
  return {};
}

// Waits until the operation has ended, well or not. Errors: the context is lost, or the communicator has failed before
// the operation was submitted.
Status StagedCall::wait_for_end() {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return outcome_.ended || outcome_.lost; };
  while (!ended_.wait_for(lock, kEndLook, over)) {
    lock.unlock();
    look();
    drop_if_broken();
    lock.lock();
  }
  return outcome_.ended ? Status() : Status(copy_of(*outcome_.lost));
}

// If a callback is to submit the operation, and the communicator has failed, ends the operation with that error. (The
// engine ends operations that have been submitted.)
void StagedCall::drop_if_broken() {
  std::shared_ptr<EngineHandle> handle;
  {
    const std::scoped_lock lock(mutex_);
    if (outcome_.operation == nullptr) return;
    handle = outcome_.handle;
  }
  const auto error = handle->broken();
  if (!error) return;
  std::shared_ptr<Operation> unsubmitted;  // destroyed after unlocking, as in forget()
  const std::scoped_lock lock(mutex_);
  unsubmitted = std::exchange(outcome_.operation, nullptr);
  if (unsubmitted == nullptr) return;
  if (!outcome_.lost) outcome_.lost = copy_of(*error);
  gave_up_.store(true, std::memory_order_release);
  unsubmitted->result = copy_of(*error);
  unsubmitted->done.store(true, std::memory_order_release);
}

Status StagedCall::use_own_output_stream() {
  if (parts_.size() != 1 || submits_itself()) return {};
  Part& part = parts_.front();
  auto scope = cuda::ContextScope::enter(driver_, part.context);
  if (!scope) return scope.error();
  auto own = pool_->stream_for(part.context);
  if (!own) return own.error();
  part.out = *own;
  return {};
}

// Records the event again before the wait, because an enqueue() that failed may not have recorded it.
Status StagedCall::join() {
  const Part& part = parts_.front();
  if (part.out == nullptr || !part.event) return {};
  auto scope = cuda::ContextScope::enter(driver_, part.context);
  if (!scope) return scope.error();
  TUTTI_TRY(part.event->record(part.out));
  return driver_.check(driver_.api().stream_wait_event(part.stream, part.event->handle(), 0),
                       "making the stream wait for its output");
}

Result<std::uint64_t> StagedCall::call_back(std::size_t part, cuda::CUstream stream, cuda::CUhostFn function) {
  const auto use = captured_ ? StagingPool::Use::kInEachReplay : StagingPool::Use::kOnce;
  StagingPool::Ticket& ticket = pool_->issue(shared_from_this(), part, use);
  const std::uint64_t number = ticket.number;
  const cuda::CUresult result = driver_.api().launch_host_func(stream, function, &ticket);
  if (result == cuda::CUresult::kSuccess) return number;
  pool_->not_handed_out(ticket);
  return driver_.error(result, "putting a call into the stream");
}

void StagedCall::on_staged(void* user_data) {
  auto& ticket = *static_cast<StagingPool::Ticket*>(user_data);
  std::shared_ptr<StagedCall> call = StagingPool::use(ticket);
  if (call == nullptr) return;
  if (call->captured_ || call->to_stage_.fetch_sub(1, std::memory_order_acq_rel) == 1) call->submit();
  call.reset();
  StagingPool::spent(ticket);
}

void StagedCall::on_finished(void* user_data) {
  auto& ticket = *static_cast<StagingPool::Ticket*>(user_data);
  std::shared_ptr<StagedCall> call = StagingPool::use(ticket);
  if (call == nullptr) return;
  if (call->captured_) {
    call->buffers_.reset_flag();
  } else {
    call->to_finish_.fetch_sub(1, std::memory_order_acq_rel);
  }
  // If this was the last reference to the call, its destructor returns the block to the pool. Otherwise the operation
  // or another ticket still refers to the call.
  call.reset();
  StagingPool::spent(ticket);
}

// Called when the input of all parts is staged. If the caller has submitted the operation, wakes the engine's
// driver. Otherwise submits the operation now. If that fails, breaks the communicator: the other ranks make this call,
// and this rank has given it no sequence number, so later calls would not match. Runs in a callback of the CUDA driver,
// so no exception may leave it.
void StagedCall::submit() noexcept {
  std::shared_ptr<EngineHandle> handle;
  std::shared_ptr<Operation> operation;  // the operation to submit; null: the caller has submitted it, or there is none
  Error failed;
  try {
    {
      const std::scoped_lock lock(mutex_);
      handle = outcome_.handle;
      if (outcome_.operation != nullptr)
        operation = captured_ ? outcome_.operation->again() : std::exchange(outcome_.operation, nullptr);
    }
    if (handle == nullptr) return pool_->ring();
    // No operation: enqueue() failed, the communicator has failed or ended, or a context is lost.
    if (operation == nullptr) return release_streams();
    const Status submitted = handle->submit(operation);
    if (submitted.ok()) return;
    failed = copy_of(submitted.error());
    failed.scope = std::max(failed.scope, ErrorScope::kCommunicator);
  } catch (...) {
    failed = error_of_exception(ErrorScope::kCommunicator, -1, "a call that its stream has come to");
  }
  if (handle != nullptr) handle->fail(failed);
  if (operation != nullptr && operation->guard != nullptr) operation->guard->failed(failed);
  ended(copy_of(failed));
  if (operation == nullptr) return;
  operation->result = std::move(failed);
  operation->done.store(true, std::memory_order_release);
}

void StagedCall::forget() {
  std::shared_ptr<Operation> operation;  // destroyed after unlocking, because it may be the last owner of this call
  const std::scoped_lock lock(mutex_);
  operation = std::exchange(outcome_.operation, nullptr);
}

cuda::CUresult StagedCall::Part::ask(const cuda::Driver& driver) const {
  const cuda::DriverApi& api = driver.api();
  cuda::CUresult result = api.ctx_push_current(context);
  if (result != cuda::CUresult::kSuccess) return result;
  {
    const cuda::RelaxedCapture relaxed(driver);
    result = api.event_query(event->handle());
  }
  cuda::CUcontext popped = nullptr;
  static_cast<void>(api.ctx_pop_current(&popped));
  return result;
}

void StagedCall::look() {
  const std::scoped_lock lock(looking_);
  for (const Part& part : parts_) {
    if (part.staged == 0) continue;  // no callback of this part was put into a stream
    const cuda::CUresult answer = part.ask(driver_);
    if (says_lost(answer)) give_up(part, answer);
  }
}

// Gives up the work in one stream after its context was lost (`why`), because its callbacks do not run any more:
// cancels their tickets, and records the error. If both callbacks have run already, the result stays valid. If a
// callback was to submit the operation, breaks the communicator, for the same reason as submit(). Hold looking_.
void StagedCall::give_up(const Part& part, cuda::CUresult why) {
  const bool not_staged = pool_->cut(part.staged);
  const bool not_finished = part.finished != 0 && pool_->cut(part.finished);
  if (!not_staged && !not_finished && !captured_) return;
  retires_ = true;
  const char* when = captured_    ? "a captured call was replayed"
                     : not_staged ? "a call's input was copied"
                                  : "a call's output was copied back";
  // Without the input this rank cannot take part in the call, so later calls of the ranks would not match.
  const ErrorScope least = not_staged ? ErrorScope::kCommunicator : ErrorScope::kCall;
  const ErrorScope scope = cuda::is_lost(why) ? ErrorScope::kProcess : least;
  Error error{ErrorCode::kDevice, scope, -1, kOutOfMemory};
  runs_through([&] {
    error = driver_.error(why, fmt::format("GPU {}: its context was lost before {}: the stream", part.device, when));
  });
  std::shared_ptr<EngineHandle> handle;  // set if the operation will never be submitted
  std::shared_ptr<Operation> unsubmitted;
  {
    const std::scoped_lock lock(mutex_);
    if (!captured_) unsubmitted = std::exchange(outcome_.operation, nullptr);
    if (unsubmitted != nullptr) handle = outcome_.handle;
    const bool news = !outcome_.lost;
    if (news) outcome_.lost = copy_of(error);
    if (news && (outcome_.ended || captured_ || unsubmitted != nullptr)) report(*outcome_.lost);
    if (unsubmitted != nullptr) unsubmitted->result = copy_of(*outcome_.lost);
  }
  if (handle != nullptr) handle->fail(error);
  ended_.notify_all();
  // After fail(), so that a thread that waits for the call cannot make another one before the communicator is broken.
  if (unsubmitted != nullptr) unsubmitted->done.store(true, std::memory_order_release);
  if (not_finished) to_finish_.fetch_sub(1, std::memory_order_acq_rel);
}

// Passes an error to the pool, for async_status(): at most one for each call, but one for each replay of a captured
// call. Hold mutex_.
void StagedCall::report(const Error& error) noexcept {
  if (captured_ || !std::exchange(outcome_.reported, true)) pool_->report(error);
}

std::optional<Error> StagedCall::lost() {
  look();
  const std::scoped_lock lock(mutex_);
  if (!outcome_.lost) return std::nullopt;
  return copy_of(*outcome_.lost);
}

void StagedCall::ended(const Status& result) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    outcome_.ended = true;
    const Error* error = outcome_.lost ? &*outcome_.lost : nullptr;
    if (!result.ok()) error = &result.error();
    if (error != nullptr) report(*error);
  }
  ended_.notify_all();
  release_streams();
}

void StagedCall::dropped() noexcept {
  {
    const std::scoped_lock lock(mutex_);
    outcome_.ended = true;
  }
  ended_.notify_all();
  release_streams();
}

bool StagedCall::finished() {
  const auto finished = [this] {
    return to_finish_.load(std::memory_order_acquire) == 0 || gave_up_.load(std::memory_order_acquire);
  };
  if (captured_ || (finished() && open())) return true;
  if (asked_.fetch_add(1, std::memory_order_relaxed) % kLooks == kLooks - 1) {
    look();
    drop_if_broken();
  }
  return finished();
}

Status StagedCall::outcome() {
  const std::scoped_lock lock(mutex_);
  if (outcome_.lost) return copy_of(*outcome_.lost);
  return {};
}

}  // namespace tutti::detail
