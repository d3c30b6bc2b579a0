// How a team launches its calls, and what the launches read in host memory.
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

constexpr std::size_t kMostCapturedWords = 4096;
constexpr std::size_t kMostLent = 4096;  // to launches that are captured
constexpr std::size_t kFirstLent = 8;
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

// Fills host memory that the device reads, from its beginning.
class Filling {
 public:
  explicit Filling(const cuda::PinnedMemory& memory) : memory_(memory) {}

  // Where the device finds them; null: there are none.
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
  // Each thread has another per-thread stream by the same handle. Rounds of a rank wait for those of another.
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

Status LaunchGroup::launch(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
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
    if (captured_words_.size() >= kMostCapturedWords) {
      return call_error(ErrorCode::kUnsupported, "too many calls by copy engines are captured in graphs");
    }
    captured_rounds_ = true;
    captured_words_.insert(calls.front()->meeting_word);
  }
  if (watched || captured_rounds_) TUTTI_TRY(start_watchdog());
  if (watched) {
    auto event = take_event();
    if (!event) return event.error();
    begun = std::move(*event);
    TUTTI_TRY(begun->record(*stream));
    underway_.push_back({.call = calls.front(), .done = *done, .begun = begun});
  }
  // If rounds or copies fail halfway, those in the stream may wait for peers. Such a launch counts as made: the
  // watchdog releases it, and drain() waits for it.
  bool may_run = true;
  Status put;
  try {
    put = put_kernel(calls, *stream);
    may_run = put.ok() || in_rounds;
  } catch (...) {
    put = error_of_exception(ErrorScope::kCommunicator, -1, "launching a call on device memory");
  }
  if (!may_run) {
    if (watched) underway_.pop_back();
    return put;
  }
  launched_.notify_all();
  last_capture_ = capture == 0 ? last_capture_ : capture;
  TUTTI_TRY((*done)->record(*stream));
  last = *done;
  if (lends_ && capture == 0) lent_.back().done = *done;
  TUTTI_TRY(std::move(put));
  for (const auto& call : calls) {
    call->launched_ = true;
    call->launched_in_ = *stream;
    call->done_ = *done;
    if (!call->by_word_) continue;
    TUTTI_TRY(driver.check(
        driver.api().stream_write_value32(*stream, word_on_device(*call), call->number_, cuda::kWriteDefault),
        "letting the stream of a rank go on"));
  }
  return {};
}

Status LaunchGroup::put_kernel(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream) {
  const DeviceLaunch& how = calls.front()->launch;
  lends_ = false;
  if (std::ranges::all_of(calls, [](const auto& call) { return call->copies.has_value(); })) {
    return put_copies(calls, stream);
  }
  device::Launch launch;
  launch.call_count = static_cast<std::uint32_t>(calls.size());
  launch.channels = how.channels;
  launch.slices = how.slices;
  auto lent = lend(calls);
  if (!lent) return lent.error();
  if (how.rounds > 0) return put_rounds(*calls.front(), stream);
  launch.calls = *lent;
  if (launch.calls == nullptr) {
    for (std::size_t i = 0; i < calls.size(); ++i) launch.inline_calls[i] = calls[i]->call;
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
  return result == cuda::CUresult::kSuccess ? Status() : not_launched(result, launch, how.threads);
}

// Its text is made after a failure only: a launch that is running may not fail because there is no memory for a text.
Error LaunchGroup::not_launched(cuda::CUresult result, const device::Launch& launch, std::uint32_t threads) const {
  return device_->driver().error(result,
                                 fmt::format("launching {} blocks of {} threads", device::blocks_of(launch), threads));
}

// Some to begin with, where others wait for what runs already: the driver may wait for the device when it is asked for
// more.
Status LaunchGroup::lend_first(std::uint32_t ranks) {
  if (whole_ || !lent_.empty()) return {};
  const std::size_t tables = aligned(ranks * sizeof(device::Cut)) + 2 * aligned((ranks + 1) * sizeof(std::uint64_t));
  for (std::size_t i = 0; i < kFirstLent; ++i) {
    TUTTI_TRY(lend_more(calls_bytes(members_.size()) + members_.size() * tables));
  }
  return {};
}

Status LaunchGroup::lend_more(std::size_t bytes) {
  if (lent_.size() >= kMostLent) {
    return call_error(ErrorCode::kUnsupported,
                      "too many calls of more than 8 ranks on a GPU, or of blocks of several lengths, are captured in "
                      "graphs or under way");
  }
  auto memory = cuda::PinnedMemory::allocate(device_->driver(), bytes);
  if (!memory) return memory.error();
  lent_.push_back({.memory = std::move(*memory), .done = nullptr, .used = false});
  return {};
}

// Puts where the device reads it what no kernel's parameters hold: many calls, tables of blocks that differ in length.
// Null: the parameters hold all calls. Memory that a launch of before has been through with is used again.
Result<const device::Call*> LaunchGroup::lend(const std::vector<std::shared_ptr<DeviceCall>>& calls) {
  std::size_t bytes = calls_bytes(calls.size());
  for (const auto& call : calls) bytes += tables_bytes(call->tables);
  if (bytes == 0) return nullptr;
  const auto is_free = [bytes](const Lent& one) {
    if (one.memory.bytes().size() < bytes) return false;
    if (!one.used) return true;
    if (one.done == nullptr) return false;
    const auto finished = one.done->finished();
    return finished.ok() && *finished;
  };
  const auto found = std::find_if(lent_.begin(), lent_.end(), is_free);
  if (found != lent_.end()) {
    std::rotate(found, found + 1, lent_.end());  // the last is the one in use
  } else {
    TUTTI_TRY(lend_more(bytes));
  }
  lends_ = true;
  Lent& taken = lent_.back();
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
