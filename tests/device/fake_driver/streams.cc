// The fake driver's functions for streams and events.
#include <algorithm>
#include <chrono>
#include <utility>

#include "driver_state.h"
#include "hooks.h"
#include "shared.h"

namespace tutti::cuda::fake {
namespace {

std::int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// Returns the channel of the next stream of the context, or null if streams share no channels. The default streams have
// no channel, because it was not measured how they share them.
std::shared_ptr<Channel> next_channel(Context& context) {
  if (context.channels.empty()) return nullptr;
  return context.channels[context.streams_made++ % context.channels.size()];
}

CUresult stream_create_with_priority(CUstream* out, unsigned flags, int) {
  if (out == nullptr || flags > kStreamNonBlocking) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto stream = std::make_shared<Stream>();
  if (const CUresult result = current_context(stream->context); result != CUresult::kSuccess) return result;
  stream->flags = flags;
  stream->queue = std::make_shared<Queue>(stream->context->lost, next_channel(*stream->context));
  *out = as_handle<CUstream>(own.streams.add(std::move(stream)));
  return CUresult::kSuccess;
}

CUresult stream_create(CUstream* out, unsigned flags) { return stream_create_with_priority(out, flags, 0); }

CUresult stream_destroy(CUstream handle) {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  const auto stream = own.streams.find(handle);
  if (stream == nullptr) return CUresult::kInvalidHandle;
  if (!stream->context->alive) return CUresult::kContextIsDestroyed;
  if (stream->capture != nullptr) stream->capture->status = CaptureStatus::kInvalidated;
  // The work in the queue still runs, and `draining` lets wait_for_device() wait for it.
  stream->queue->close();
  std::erase_if(own.draining, [](const auto& left) { return left.second.queue->done(left.second.ticket); });
  own.draining.emplace_back(stream->context, QueuePosition{stream->queue, stream->queue->submitted()});
  own.streams.erase(handle);
  return CUresult::kSuccess;
}

// Finds a stream for a call that asks about its progress. A stream that is capturing cannot be asked: the call fails
// and invalidates the capture.
CUresult find_queryable_stream(CUstream handle, std::shared_ptr<Stream>& stream) {
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  if (stream->capture == nullptr) return stream->context->lost->load();
  stream->capture->status = CaptureStatus::kInvalidated;
  return CUresult::kStreamCaptureUnsupported;
}

CUresult stream_synchronize(CUstream handle) {
  std::shared_ptr<Stream> stream;
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(driver_state().mutex);
    if (const CUresult result = find_queryable_stream(handle, stream); result != CUresult::kSuccess) return result;
    if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
    ticket = stream->queue->submitted();
    if (stream->legacy) {  // it also waits for all blocking streams, so submit work that does so
      const Work nothing{"cuStreamSynchronize", [] { return CUresult::kSuccess; }, {}};
      if (const CUresult result = submit(stream, nothing, &ticket); result != CUresult::kSuccess) return result;
    }
  }
  return wait_for(stream, ticket, "cuStreamSynchronize");
}

CUresult stream_query(CUstream handle) {
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_queryable_stream(handle, stream); result != CUresult::kSuccess) return result;
  if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  return stream->queue->done(stream->queue->submitted()) ? stream->context->lost->load() : CUresult::kNotReady;
}

CUresult stream_get_ctx(CUstream handle, CUcontext* context) {
  if (context == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  *context = as_handle<CUcontext>(driver_state().contexts.handle_of(stream->context.get()));
  return CUresult::kSuccess;
}

CUresult stream_get_flags(CUstream handle, unsigned* flags) {
  if (flags == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  // Measured with driver 580. It was not measured whether the call invalidates the capture.
  if (stream->capture != nullptr) return CUresult::kStreamCaptureUnsupported;
  *flags = stream->flags;
  return CUresult::kSuccess;
}

// Adds the stream to the capture in which the event was recorded, if it is not already part of it. The stream's next
// node then depends on the nodes that precede the event.
CUresult join_capture(Stream& stream, const Event& event) {
  if (event.capture->status == CaptureStatus::kNone) return CUresult::kCapturedEvent;
  if (event.capture->status == CaptureStatus::kInvalidated) return CUresult::kStreamCaptureInvalidated;
  if (stream.legacy) return CUresult::kStreamCaptureImplicit;
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->status = CaptureStatus::kInvalidated;
    event.capture->status = CaptureStatus::kInvalidated;
    return CUresult::kStreamCaptureMerge;
  }
  stream.capture = event.capture;
  for (const std::size_t node : event.nodes) {
    if (std::find(stream.tail.begin(), stream.tail.end(), node) == stream.tail.end()) stream.tail.push_back(node);
  }
  return CUresult::kSuccess;
}

CUresult stream_wait_event(CUstream stream_handle, CUevent event_handle, unsigned flags) {
  if (flags > kEventExternal) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(stream_handle, stream); result != CUresult::kSuccess) return result;
  std::shared_ptr<Event> event;
  if (const CUresult result = find_event(event_handle, event); result != CUresult::kSuccess) return result;
  const bool external = flags == kEventExternal && stream->capture != nullptr;
  if (!external && event->capture != nullptr) return join_capture(*stream, *event);
  if (!external && stream->capture != nullptr) {
    stream->capture->status = CaptureStatus::kInvalidated;
    return CUresult::kStreamCaptureIsolation;
  }
  const auto state = event->state;
  // A wait in a stream is for the recordings made before this call. A node of a graph (an external event) waits each
  // time that it runs for the recordings made before that time.
  const std::uint64_t now = state->recorded.load();
  const auto wait = [state, now, external] {
    const std::uint64_t wanted = external ? state->recorded.load() : now;
    const bool came =
        wait_until([&] { return state->completed.load(std::memory_order_acquire) >= wanted; }, "cuStreamWaitEvent");
    return came ? CUresult::kSuccess : CUresult::kLaunchTimeout;
  };
  return submit(stream, {.what = "cuStreamWaitEvent", .run = wait, .holds_channel = true});
}

CUresult event_create(CUevent* out, unsigned flags) {
  constexpr unsigned kKnown = kEventBlockingSync | kEventDisableTiming;
  if (out == nullptr || (flags & ~kKnown) != 0) return CUresult::kInvalidValue;
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  auto event = std::make_shared<Event>();
  if (const CUresult result = current_context(event->context); result != CUresult::kSuccess) return result;
  event->flags = flags;
  event->state = std::make_shared<EventState>();
  *out = as_handle<CUevent>(own.events.add(std::move(event)));
  return CUresult::kSuccess;
}

// Marks recording `number` of an event as complete. Recordings on different streams can complete out of order, so
// `completed` never decreases.
void complete(EventState& state, std::uint64_t number) {
  state.time_ns = now_ns();
  std::uint64_t before = state.completed.load();
  while (before < number && !state.completed.compare_exchange_weak(before, number)) {
  }
}

CUresult event_record_with_flags(CUevent event_handle, CUstream stream_handle, unsigned flags) {
  if (flags > kEventExternal) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(stream_handle, stream); result != CUresult::kSuccess) return result;
  std::shared_ptr<Event> event;
  if (const CUresult result = find_event(event_handle, event); result != CUresult::kSuccess) return result;
  if (event->context != stream->context) return CUresult::kInvalidHandle;
  const auto state = event->state;
  if (stream->capture != nullptr) {
    if (stream->capture->status != CaptureStatus::kActive) return CUresult::kStreamCaptureInvalidated;
    if (flags == kEventExternal) {
      const auto record = [state] {
        complete(*state, state->recorded.fetch_add(1) + 1);
        return CUresult::kSuccess;
      };
      return submit(stream, {"cuEventRecordWithFlags", record, {}});
    }
    event->capture = stream->capture;
    event->nodes = stream->tail;
    return CUresult::kSuccess;
  }
  event->capture.reset();
  const std::uint64_t number = state->recorded.fetch_add(1) + 1;
  const auto record = [state, number] {
    complete(*state, number);
    return CUresult::kSuccess;
  };
  const CUresult result = submit(stream, {"cuEventRecord", record, {}, true});
  // If the work was not submitted, complete the recording at once, so that waits for it do not hang.
  if (result != CUresult::kSuccess) complete(*state, number);
  return result;
}

CUresult event_record(CUevent event, CUstream stream) { return event_record_with_flags(event, stream, 0); }

// Finds an event for a call that asks about its progress. An event that was last recorded in a capture cannot be asked:
// the call fails and invalidates the capture.
CUresult find_queryable_event(CUevent handle, std::shared_ptr<Event>& event) {
  if (const CUresult result = find_event(handle, event); result != CUresult::kSuccess) return result;
  if (event->capture != nullptr) {
    if (event->capture->status == CaptureStatus::kActive) event->capture->status = CaptureStatus::kInvalidated;
    return CUresult::kCapturedEvent;
  }
  return event->context->lost->load();
}

bool is_complete(const EventState& state) {
  return state.completed.load(std::memory_order_acquire) >= state.recorded.load();
}

CUresult event_query(CUevent handle) {
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Event> event;
  if (const CUresult result = find_queryable_event(handle, event); result != CUresult::kSuccess) return result;
  if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  return is_complete(*event->state) ? CUresult::kSuccess : CUresult::kNotReady;
}

CUresult event_synchronize(CUevent handle) {
  std::shared_ptr<Event> event;
  {
    const std::lock_guard lock(driver_state().mutex);
    if (const CUresult result = find_queryable_event(handle, event); result != CUresult::kSuccess) return result;
    if (const CUresult result = refuse_in_capture(); result != CUresult::kSuccess) return result;
  }
  const std::uint64_t wanted = event->state->recorded.load();
  const bool came = wait_until([&] { return event->state->completed.load(std::memory_order_acquire) >= wanted; },
                               "cuEventSynchronize");
  return came ? event->context->lost->load() : CUresult::kLaunchTimeout;
}

CUresult event_elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  if (milliseconds == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::array<std::shared_ptr<Event>, 2> events;
  for (const auto& [event, handle] : {std::pair{&events[0], start}, std::pair{&events[1], end}}) {
    if (const CUresult result = find_queryable_event(handle, *event); result != CUresult::kSuccess) return result;
    const bool timed = ((*event)->flags & kEventDisableTiming) == 0;
    if (!timed || (*event)->state->recorded.load() == 0) return CUresult::kInvalidHandle;
    if (!is_complete(*(*event)->state)) return CUresult::kNotReady;
  }
  const std::int64_t elapsed_ns = events[1]->state->time_ns.load() - events[0]->state->time_ns.load();
  *milliseconds = static_cast<float>(elapsed_ns) / 1e6F;
  return CUresult::kSuccess;
}

CUresult event_destroy(CUevent handle) {
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Event> event;
  if (const CUresult result = find_event(handle, event); result != CUresult::kSuccess) return result;
  driver_state().events.erase(handle);
  return CUresult::kSuccess;
}

}  // namespace

void bind_streams(DriverApi& api) {
  bind<&stream_create>(api.stream_create);
  bind<&stream_create_with_priority>(api.stream_create_with_priority);
  bind<&stream_destroy>(api.stream_destroy);
  bind<&stream_synchronize>(api.stream_synchronize);
  bind<&stream_query>(api.stream_query);
  bind<&stream_get_ctx>(api.stream_get_ctx);
  bind<&stream_get_flags>(api.stream_get_flags);
  bind<&stream_wait_event>(api.stream_wait_event);
  bind<&event_create>(api.event_create);
  bind<&event_record>(api.event_record);
  bind<&event_record_with_flags>(api.event_record_with_flags);
  bind<&event_query>(api.event_query);
  bind<&event_synchronize>(api.event_synchronize);
  bind<&event_elapsed_time>(api.event_elapsed_time);
  bind<&event_destroy>(api.event_destroy);
}

}  // namespace tutti::cuda::fake
