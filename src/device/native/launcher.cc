// LaunchGroup::Launcher: the order of launches, their events, and the kernels.
#include "device/native/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"

namespace tutti::detail {
namespace {

bool runs_by_copies(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  return std::ranges::all_of(calls, [](const auto& call) { return call->copies.has_value(); });
}

}  // namespace

Status ProgramUpload::put(const cuda::Driver& driver, cuda::CUstream stream) const {
  return driver.check(driver.api().memcpy_htod_async(to, from.data(), from.size(), stream), "writing a plan");
}

Status LaunchGroup::Launcher::preallocate(std::uint32_t ranks, std::uint32_t transfer_queues) {
  return members_.whole() ? Status() : buffers_.preallocate(members_.all().size(), ranks, transfer_queues);
}

Result<std::shared_ptr<cuda::Event>> LaunchGroup::Launcher::take_event() {
  std::unique_ptr<cuda::Event> event;
  {
    const std::scoped_lock lock(pool_->mutex);
    if (!pool_->free.empty()) {
      event = std::move(pool_->free.back());
      pool_->free.pop_back();
    }
  }
  if (event == nullptr) {
    auto made = cuda::Event::create(device_.driver());
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

Result<bool> LaunchGroup::Launcher::finished() const {
  return last_plain_done_ == nullptr ? Result<bool>(true) : last_plain_done_->finished();
}

// Returns the stream of the launch: the members' own stream if all passed the same one, otherwise a stream of the
// group. Also returns a stream of the group if several members passed the per-thread default stream. Errors:
// kUnsupported (the calls are captured in different graphs, or only some of them are), those of the driver.
Result<cuda::CUstream> LaunchGroup::Launcher::choose_stream(const Calls& calls) {
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
  // The handle of the per-thread default stream stands for another stream in each thread, so equal handles do not
  // show that it is one stream.
  const bool several = calls.size() > 1 && reinterpret_cast<std::uintptr_t>(first.stream) == cuda::kPerThreadStream;
  if (one_stream && !several) return first.stream;
  std::optional<cuda::Stream>& stream = first.capture_ == 0 ? stream_ : capture_stream_;
  if (!stream) {
    auto made = cuda::Stream::create(device_.driver());
    if (!made) return made.error();
    stream.emplace(std::move(*made));
  }
  return stream->handle();
}

// Makes the launching stream wait for the streams of all `calls` and for the previous launch, so that calls run in
// the order of submission, whatever their streams. A captured call waits only for the previous call of the same
// capture: the order between graphs, and between graphs and other calls, is up to the caller.
Status LaunchGroup::Launcher::order_behind(const Calls& calls, cuda::CUstream stream) const {
  const cuda::Driver& driver = device_.driver();
  for (const auto& call : calls) {
    if (call->stream == stream) continue;
    TUTTI_TRY(driver.check(driver.api().stream_wait_event(stream, call->ready_->handle(), 0),
                           "waiting for the stream of a rank"));
  }
  const std::uint64_t capture = calls.front()->capture_;
  const std::shared_ptr<cuda::Event>& last = capture == 0 ? last_plain_done_ : last_captured_done_;
  if (last == nullptr || (capture != 0 && capture != last_capture_)) return {};
  return driver.check(driver.api().stream_wait_event(stream, last->handle(), 0), "waiting for the call before");
}

Status LaunchGroup::Launcher::launch(const Calls& calls) {
  auto stream = choose_stream(calls);
  if (!stream) return stream.error();
  TUTTI_TRY(order_behind(calls, *stream));
  auto done = take_event();
  if (!done) return done.error();
  const DeviceCall& first = *calls.front();
  const bool captured = first.capture_ != 0;
  const bool in_rounds = first.launch.rounds > 0;
  const bool watched = !members_.whole() && !captured;
  if (in_rounds && captured) TUTTI_TRY(watchdog_.add_captured(first.barrier_value));
  if (watched || watchdog_.watches_graphs()) TUTTI_TRY(watchdog_.start());
  const std::uint32_t blocks = members_.take_blocks(wanted_blocks(calls), captured);
  if (watched) TUTTI_TRY(watch(calls.front(), *done, blocks, *stream));
  // Putting a call that consists of several kernels or copies into the stream can fail halfway. The part that is in the
  // stream then still uses memory, and may wait for peers if the call has barriers. Therefore such a launch counts as
  // made: the watchdog releases its barriers, and drain() waits for its end. An exception is treated in the same way,
  // because it is not known how much is in the stream. If the call is a single kernel whose program was copied before,
  // and its launch fails, nothing of the call is in the stream, and the launch is not made.
  bool may_run = true;
  const bool uploads = std::ranges::any_of(calls, [](const auto& call) { return call->needs_upload(); });
  Status put;
  try {
    put = put_call(calls, blocks, *stream);
    const bool several = in_rounds || uploads || runs_by_copies(calls) || first.transfers.has_value();
    may_run = put.ok() || several;
  } catch (...) {
    put = error_of_exception(ErrorScope::kCommunicator, -1, "launching a call on device memory");
  }
  if (!may_run) {
    if (watched) watchdog_.remove_last();
    return put;
  }
  if (captured) last_capture_ = first.capture_;
  TUTTI_TRY((*done)->record(*stream));
  (captured ? last_captured_done_ : last_plain_done_) = *done;
  if (!captured) buffers_.reuse_after(*done);
  TUTTI_TRY(std::move(put));
  mark_launched(calls, *done, *stream);
  members_.launched().notify_all();
  return {};
}

// Adds a launch to the watchdog, which ends it if a rank outside of the group is gone. `call`: the first call of the
// launch. `done`: the event that will be recorded behind the launch. `blocks`: the number of blocks of the launch.
Status LaunchGroup::Launcher::watch(const std::shared_ptr<DeviceCall>& call, const std::shared_ptr<cuda::Event>& done,
                                    std::uint32_t blocks, cuda::CUstream stream) {
  auto begun = take_event();
  if (!begun) return begun.error();
  TUTTI_TRY((*begun)->record(stream));
  const std::uint32_t kept = members_.kept_blocks();
  watchdog_.add({.call = call, .done = done, .begun = *begun, .borrowed = blocks > kept ? blocks - kept : 0});
  return {};
}

void LaunchGroup::Launcher::mark_launched(const Calls& calls, const std::shared_ptr<cuda::Event>& done,
                                          cuda::CUstream stream) {
  for (const auto& call : calls) {
    call->launched_ = true;
    call->launched_in_ = stream;
    call->done_ = done;
  }
}

// How many blocks the launch can use. 0 if it needs none of the budget: a call in rounds, because its kernels do not
// wait, or copies, which have no kernel.
std::uint32_t LaunchGroup::Launcher::wanted_blocks(const Calls& calls) {
  const DeviceCall& first = *calls.front();
  if (first.transfers) return first.transfers->blocks;
  if (first.launch.rounds > 0 || runs_by_copies(calls)) return 0;
  return static_cast<std::uint32_t>(calls.size()) * first.launch.slices * first.launch.channels;
}

// Puts the launch into the stream: sends and receives, copies if all calls have them, otherwise a call in rounds, or
// one kernel. `blocks`: the result of take_blocks().
Status LaunchGroup::Launcher::put_call(const Calls& calls, std::uint32_t blocks, cuda::CUstream stream) {
  const DeviceCall& first = *calls.front();
  buffers_.begin_launch();
  if (first.transfers) return put_transfers(first, blocks, stream);
  if (runs_by_copies(calls)) {
    return CopyEngines::put(device_.driver(), calls, members_.of(first).options.barrier, stream);
  }
  auto filled = buffers_.fill(calls);
  if (!filled) return filled.error();
  for (const auto& call : calls) {
    if (call->needs_upload()) TUTTI_TRY(call->upload->put(device_.driver(), stream));
  }
  TUTTI_TRY(first.launch.rounds > 0 ? put_rounds(first, stream) : put_kernel(calls, *filled, blocks, stream));
  for (const auto& call : calls) call->upload->done = true;
  return {};
}

// Puts one kernel for all calls into the stream. `filled`: the address of the calls on the device; null: they are
// passed as parameters of the kernel.
Status LaunchGroup::Launcher::put_kernel(const Calls& calls, const device::Call* filled, std::uint32_t blocks,
                                         cuda::CUstream stream) {
  const DeviceCall::Launch& how = calls.front()->launch;
  device::Launch launch;
  launch.call_count = static_cast<std::uint32_t>(calls.size());
  launch.channels = how.channels;
  launch.slices = how.slices;
  launch.at_once = blocks / (launch.call_count * launch.channels);
  TUTTI_ASSERT(launch.at_once > 0);  // make_plan() rejects plans with more channels than kept_blocks
  launch.calls = filled;
  if (launch.calls == nullptr) {
    for (std::size_t i = 0; i < calls.size(); ++i) launch.inline_calls[i] = calls[i]->call;
  }
  void* parameters[] = {&launch};
  const std::uint32_t all = device::blocks_of(launch);
  // If a launch has several calls, its blocks wait for each other. Then the launch must be cooperative, so that
  // either all of its blocks are resident or none.
  const cuda::DriverApi& api = device_.driver().api();
  const cuda::CUresult result =
      calls.size() > 1 ? api.launch_cooperative_kernel(how.kernel, all, 1, 1, how.threads, 1, 1, 0, stream, parameters)
                       : api.launch_kernel(how.kernel, all, 1, 1, how.threads, 1, 1, 0, stream, parameters, nullptr);
  return result == cuda::CUresult::kSuccess ? Status() : not_launched(result, all, how.threads);
}

// Puts a call in rounds into the stream: in each round a barrier, then a kernel that does not wait for peers.
// Barriers use two sets of flags in turn (parity 0 and 1). The number of rounds is rounded up to an even number, so
// that every call begins with parity 0. Otherwise a captured call could not be replayed, because its parities are
// fixed.
Status LaunchGroup::Launcher::put_rounds(const DeviceCall& call, cuda::CUstream stream) {
  const StreamBarrier& barrier = *members_.of(call).options.barrier;
  const DeviceCall::Launch& how = call.launch;
  device::Launch launch;
  launch.call_count = 1;
  launch.channels = how.channels;
  launch.slices = how.slices;
  launch.inline_calls[0] = call.call;
  const std::uint32_t blocks = device::blocks_of(launch);
  const std::uint64_t rounds = how.rounds + how.rounds % 2;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    TUTTI_TRY(barrier.put(static_cast<std::uint32_t>(round % 2), call.barrier_value, stream));
    launch.resume = round > 0 ? 1 : 0;
    launch.last = round + 1 >= how.rounds ? 1 : 0;
    void* parameters[] = {&launch};
    const cuda::CUresult result = device_.driver().api().launch_kernel(how.kernel, blocks, 1, 1, how.threads, 1, 1, 0,
                                                                       stream, parameters, nullptr);
    if (result != cuda::CUresult::kSuccess) return not_launched(result, blocks, how.threads);
  }
  return {};
}

// Puts sends and receives into the stream: this rank's copies within its GPU, then one kernel for all transfers with
// other ranks, if there are any. Transfers without bytes are not among them (TransferCall::empty).
Status LaunchGroup::Launcher::put_transfers(const DeviceCall& call, std::uint32_t blocks, cuda::CUstream stream) {
  const TransferCall& transfers = *call.transfers;
  const cuda::DriverApi& api = device_.driver().api();
  for (const OwnCopy& own : transfers.own) {
    if (own.bytes == 0 || own.from == own.to) continue;
    const auto address = [](const std::byte* at) { return reinterpret_cast<cuda::CUdeviceptr>(at); };
    TUTTI_TRY(device_.driver().check(api.memcpy_dtod_async(address(own.to), address(own.from), own.bytes, stream),
                                     "copying within a GPU"));
  }
  if (transfers.packed.queues.empty()) return {};
  device::TransferLaunch launch;
  launch.status = call.call.status;
  launch.timeout_ns = static_cast<std::uint64_t>(call.timeout_ns);
  TUTTI_TRY(buffers_.fill(transfers.packed, launch));
  void* parameters[] = {&launch};
  const cuda::CUresult result =
      api.launch_kernel(call.launch.kernel, blocks, 1, 1, call.launch.threads, 1, 1, 0, stream, parameters, nullptr);
  return result == cuda::CUresult::kSuccess ? Status() : not_launched(result, blocks, call.launch.threads);
}

// A function of its own, so that the message is formatted only after a failure: a successful launch must not fail
// because there is no memory for a message.
Error LaunchGroup::Launcher::not_launched(cuda::CUresult result, std::uint32_t blocks, std::uint32_t threads) const {
  return device_.driver().error(result, fmt::format("launching {} blocks of {} threads", blocks, threads));
}

}  // namespace tutti::detail
