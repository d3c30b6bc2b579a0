// LaunchGroup: launches the calls, and manages the host memory that launches read.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "device/native/device_failure.h"
#include "device/native/launch_group.h"

namespace tutti::detail {
namespace {

// Largest number of different barrier values in graphs.
constexpr std::size_t kMostCapturedBarriers = 4096;
constexpr std::size_t kMostLaunchBuffers =
    4096;  // largest number of buffers; those of captured launches are never reused
// Buffers that are allocated in advance, see preallocate_launch_buffers().
constexpr std::size_t kPreallocatedBuffers = 8;
constexpr std::size_t kAlignment = 16;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
std::size_t table_bytes(const std::vector<T>& table) {
  return aligned(table.size() * sizeof(T));
}

std::size_t tables_bytes(const DeviceGeometry& tables) {
  return table_bytes(tables.cuts) + table_bytes(tables.contiguous) + table_bytes(tables.starts);
}

std::size_t calls_bytes(std::size_t calls) {
  return calls > device::kInlineCalls ? aligned(calls * sizeof(device::Call)) : 0;
}

// Writes values one after another into host memory that the device reads.
class Filling {
 public:
  explicit Filling(const cuda::PinnedMemory& memory) : memory_(memory) {}

  // Returns the address of the copy on the device, or null if `count` is 0.
  template <class T>
  T* put(const T* values, std::size_t count) {
    if (count == 0) return nullptr;
    TUTTI_ASSERT(at_ + count * sizeof(T) <= memory_.bytes().size());
    std::memcpy(memory_.bytes().data() + at_, values, count * sizeof(T));
    T* const found = reinterpret_cast<T*>(memory_.device_address() + at_);  // NOLINT: a device's address
    at_ += aligned(count * sizeof(T));
    return found;
  }

 private:
  const cuda::PinnedMemory& memory_;
  std::size_t at_ = 0;
};

}  // namespace

// Returns the stream of the launch: the ranks' own if they share one, otherwise a stream of the group.
Result<cuda::CUstream> LaunchGroup::choose_stream(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
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
  // The handle of the per-thread default stream means another stream in each thread. Calls in rounds use a stream of
  // the group, because the rounds of one rank wait for those of another.
  const bool shared = calls.size() > 1 && reinterpret_cast<std::uintptr_t>(first.stream) == cuda::kPerThreadStream;
  if (one_stream && !shared && first.launch.rounds == 0) return first.stream;
  std::optional<cuda::Stream>& stream = first.capture_ == 0 ? stream_ : capture_stream_;
  if (!stream) {
    auto made = cuda::Stream::create(device_->driver());
    if (!made) return made.error();
    stream.emplace(std::move(*made));
  }
  return stream->handle();
}

// Launches one call of every rank.
Status LaunchGroup::launch(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  const cuda::Driver& driver = device_->driver();
  auto stream = choose_stream(calls);
  if (!stream) return stream.error();
  for (const auto& call : calls) {
    if (call->stream == *stream) continue;
    TUTTI_TRY(driver.check(driver.api().stream_wait_event(*stream, call->ready_->handle(), 0),
                           "waiting for the stream of a rank"));
  }
  // Calls run in the order of submission, whatever their streams. The order between captured calls and others is up
  // to the caller.
  const std::uint64_t capture = calls.front()->capture_;
  const bool in_rounds = calls.front()->launch.rounds > 0;
  const bool follows_capture = capture != 0 && capture == last_capture_;
  std::shared_ptr<cuda::Event>& last = capture == 0 ? last_plain_done_ : last_captured_done_;
  if (last != nullptr && (capture == 0 || follows_capture)) {
    TUTTI_TRY(driver.check(driver.api().stream_wait_event(*stream, last->handle(), 0), "waiting for the call before"));
  }
  auto done = take_event();
  if (!done) return done.error();
  std::shared_ptr<cuda::Event> begun;
  const bool watched = !whole_ && capture == 0;
  if (in_rounds && capture != 0) {
    if (captured_barrier_values_.size() >= kMostCapturedBarriers) {
      return call_error(ErrorCode::kUnsupported, "too many calls by copy engines are captured in graphs");
    }
    captured_rounds_ = true;
    captured_barrier_values_.insert(calls.front()->barrier_value);
  }
  if (watched || captured_rounds_) TUTTI_TRY(start_watchdog());
  if (watched) {
    auto event = take_event();
    if (!event) return event.error();
    begun = std::move(*event);
    TUTTI_TRY(begun->record(*stream));
    pending_launches_.push_back({.call = calls.front(), .done = *done, .begun = begun});
  }
  // If a call has barriers, putting it into the stream can fail halfway, and the part that is in the stream may then
  // wait for peers. Therefore such a launch counts as made: the watchdog releases its barriers, and drain() waits for
  // its end. An exception is treated in the same way, because it is not known how much is in the stream. Without
  // barriers, a launch that fails is not made.
  bool may_run = true;
  Status put;
  try {
    put = put_kernel(calls, *stream);
    may_run = put.ok() || in_rounds;
  } catch (...) {
    put = error_of_exception(ErrorScope::kCommunicator, -1, "launching a call on device memory");
  }
  if (!may_run) {
    if (watched) pending_launches_.pop_back();
    return put;
  }
  launched_.notify_all();
  last_capture_ = capture == 0 ? last_capture_ : capture;
  TUTTI_TRY((*done)->record(*stream));
  last = *done;
  if (uses_launch_buffer_ && capture == 0) launch_buffers_.back().done = *done;
  TUTTI_TRY(std::move(put));
  for (const auto& call : calls) {
    call->launched_ = true;
    call->launched_in_ = *stream;
    call->done_ = *done;
    if (!call->waits_for_flag_) continue;
    TUTTI_TRY(driver.check(
        driver.api().stream_write_value32(*stream, flag_address(*call), call->number_, cuda::kWriteDefault),
        "letting the stream of a rank go on"));
  }
  return {};
}

// Puts the kernel, or the copies that replace it, into the stream.
Status LaunchGroup::put_kernel(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream) {
  const DeviceLaunch& how = calls.front()->launch;
  uses_launch_buffer_ = false;
  if (std::ranges::all_of(calls, [](const auto& call) { return call->copies.has_value(); })) {
    const DeviceCall& first = *calls.front();
    return CopyEngines::put(device_->driver(), calls, members_[first.member_index_].options.barrier, stream);
  }
  device::Launch launch;
  launch.call_count = static_cast<std::uint32_t>(calls.size());
  launch.channels = how.channels;
  launch.slices = how.slices;
  auto filled = fill_launch_buffer(calls);
  if (!filled) return filled.error();
  if (how.rounds > 0) return put_rounds(*calls.front(), stream);
  launch.calls = *filled;
  if (launch.calls == nullptr) {
    for (std::size_t i = 0; i < calls.size(); ++i) launch.inline_calls[i] = calls[i]->call;
  }
  void* parameters[] = {&launch};
  const cuda::Driver& driver = device_->driver();
  const unsigned blocks = device::blocks_of(launch);
  // If ranks wait for each other within the launch, it must be cooperative, so that either all of its blocks are
  // resident or none.
  const cuda::DriverApi& api = driver.api();
  const cuda::CUresult result =
      calls.size() > 1
          ? api.launch_cooperative_kernel(how.kernel, blocks, 1, 1, how.threads, 1, 1, 0, stream, parameters)
          : api.launch_kernel(how.kernel, blocks, 1, 1, how.threads, 1, 1, 0, stream, parameters, nullptr);
  return result == cuda::CUresult::kSuccess ? Status() : not_launched(result, launch, how.threads);
}

// The message is formatted only after a failure, because a successful launch must not fail for lack of memory for a
// message.
Error LaunchGroup::not_launched(cuda::CUresult result, const device::Launch& launch, std::uint32_t threads) const {
  return device_->driver().error(result,
                                 fmt::format("launching {} blocks of {} threads", device::blocks_of(launch), threads));
}

// Allocates some buffers in advance if ranks outside of the group wait for launches that are already running: to
// allocate more, the driver may wait for the whole device, and so for those launches.
Status LaunchGroup::preallocate_launch_buffers(std::uint32_t ranks) {
  if (whole_ || !launch_buffers_.empty()) return {};
  const std::size_t tables = aligned(ranks * sizeof(device::Cut)) + 2 * aligned((ranks + 1) * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < kPreallocatedBuffers; ++i) {
    TUTTI_TRY(add_launch_buffer(calls_bytes(members_.size()) + members_.size() * tables));
  }
  return {};
}

Status LaunchGroup::add_launch_buffer(std::size_t bytes) {
  if (launch_buffers_.size() >= kMostLaunchBuffers) {
    return call_error(ErrorCode::kUnsupported,
                      "too many calls of more than 8 ranks on a GPU, or of blocks of several lengths, are captured in "
                      "graphs or under way");
  }
  auto memory = cuda::PinnedMemory::allocate(device_->driver(), bytes);
  if (!memory) return memory.error();
  launch_buffers_.push_back({.memory = std::move(*memory), .done = nullptr, .used = false});
  return {};
}

// Puts data into host memory that the device reads, because it does not fit into the parameters of a kernel: many
// calls, and tables of blocks with different lengths. Returns the address of the calls on the device; null if the
// parameters hold all calls. Memory of earlier launches that have ended is reused.
Result<const device::Call*> LaunchGroup::fill_launch_buffer(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  std::size_t bytes = calls_bytes(calls.size());
  for (const auto& call : calls) bytes += tables_bytes(call->tables);
  if (bytes == 0) return nullptr;
  const auto is_free = [bytes](const LaunchBuffer& one) {
    if (one.memory.bytes().size() < bytes) return false;
    if (!one.used) return true;
    if (one.done == nullptr) return false;
    const auto finished = one.done->finished();
    return finished.ok() && *finished;
  };
  const auto found = std::find_if(launch_buffers_.begin(), launch_buffers_.end(), is_free);
  if (found != launch_buffers_.end()) {
    std::rotate(found, found + 1, launch_buffers_.end());  // the last element is the one in use
  } else {
    TUTTI_TRY(add_launch_buffer(bytes));
  }
  uses_launch_buffer_ = true;
  LaunchBuffer& taken = launch_buffers_.back();
  taken.used = true;
  taken.done = nullptr;
  Filling filling(taken.memory);
  std::vector<device::Call> whole;
  for (const auto& call : calls) {
    device::Geometry& geometry = call->call.geometry;
    geometry.cuts = filling.put(call->tables.cuts.data(), call->tables.cuts.size());
    geometry.contiguous = filling.put(call->tables.contiguous.data(), call->tables.contiguous.size());
    geometry.starts = filling.put(call->tables.starts.data(), call->tables.starts.size());
    whole.push_back(call->call);
  }
  return calls_bytes(calls.size()) == 0 ? nullptr : filling.put(whole.data(), whole.size());
}

}  // namespace tutti::detail
