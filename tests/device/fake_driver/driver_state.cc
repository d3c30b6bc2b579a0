// The functions of the fake driver's state that several groups of driver functions share: look-ups of handles and
// memory, submission of work to streams, waits, and the report of leaks.
#include "driver_state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tutti::cuda::fake {
namespace {

constexpr std::uint64_t kMaxChannels = 32;  // of a context, as on a real device

void add_line(std::string& lines, const char* what, std::uint64_t which, std::uint64_t bytes = 0) {
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(), "%s 0x%llx%s%s\n", what, static_cast<unsigned long long>(which),
                bytes > 0 ? ", bytes: " : "", bytes > 0 ? std::to_string(bytes).c_str() : "");
  lines += line.data();
}

const char* name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kDevice: return "device memory";
    case MemoryCategory::kManaged: return "managed memory";
    case MemoryCategory::kPinned: return "pinned memory";
    case MemoryCategory::kRegistered: return "registered host memory";
    case MemoryCategory::kOpened: return "another process's memory";
    case MemoryCategory::kMapped: return "mapped virtual memory";
    case MemoryCategory::kPool: return "memory of a pool";
  }
  return "memory";
}

template <class T>
void add_held(std::string& lines, const char* what, const Table<T>& table, const Context* context) {
  for (const auto& [handle, object] : table.all()) {
    const Context* its = object->context.get();
    if (its->alive && (context == nullptr || its == context)) add_line(lines, what, handle);
  }
}

bool is_blocking(const Stream& stream) { return (stream.flags & kStreamNonBlocking) == 0; }

// Returns the blocking streams of a context. The legacy stream waits for them, and they wait for the legacy stream.
std::vector<std::shared_ptr<Stream>> blocking_streams(const Context& context) {
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& [handle, stream] : driver_state().streams.all()) {
    if (stream->context.get() == &context && is_blocking(*stream)) found.push_back(stream);
  }
  for (const auto& [thread, stream] : context.per_thread) found.push_back(stream);
  return found;
}

// Returns the end of each queue of the device's contexts, or only of `context` if it is not null.
std::vector<QueuePosition> submitted_to(int device, const Context* context) {
  const DriverState& own = driver_state();
  const auto selected = [&](const Context& its) {
    return its.alive && its.device == device && (context == nullptr || &its == context);
  };
  std::vector<QueuePosition> found;
  const auto add = [&](const Stream& stream) { found.push_back({stream.queue, stream.queue->submitted()}); };
  for (const auto& [handle, stream] : own.streams.all()) {
    if (selected(*stream->context)) add(*stream);
  }
  for (const auto& [its, after] : own.draining) {
    if (selected(*its)) found.push_back(after);
  }
  for (const auto& [handle, its] : own.contexts.all()) {
    if (!selected(*its)) continue;
    add(*its->legacy);
    for (const auto& [thread, stream] : its->per_thread) add(*stream);
  }
  return found;
}

std::shared_ptr<Stream> make_internal_stream(const std::shared_ptr<Context>& context) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->queue = std::make_shared<Queue>(context->lost);
  return stream;
}

}  // namespace

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

DriverState::DriverState() {
  version = static_cast<int>(setting("FAKE_CUDA_VERSION", 13000));
  blocks = static_cast<unsigned>(setting("FAKE_CUDA_BLOCKS", 16));
  devices.resize(setting("FAKE_CUDA_DEVICES", 2));
  for (Device& device : devices) {
    device.limit_bytes = setting("FAKE_CUDA_BYTES", std::uint64_t{1} << 30U);
    device.block_slots->free_blocks = blocks;
  }
  if (setting("FAKE_CUDA_P2P", 1) != 0) return;
  for (int a = 0; has_device(a); ++a) {
    for (int b = 0; has_device(b); ++b) unreachable.insert({a, b});
  }
}

DriverState& driver_state() {
  static DriverState& driver_state = *std::make_unique<DriverState>().release();  // never destroyed, see the header
  return driver_state;
}

Physical::~Physical() {
  if (fd >= 0) close(fd);
}

Memory::~Memory() {
  if (map != 0) munmap(std::bit_cast<void*>(map), map_bytes);
  if (fd >= 0) close(fd);
}

std::shared_ptr<Memory> DriverState::find_memory(CUdeviceptr address, std::size_t bytes) const {
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return nullptr;
  const std::shared_ptr<Memory>& held = (--found)->second;
  const std::uint64_t offset = address - held->base;
  return offset < held->bytes && bytes <= held->bytes - offset ? held : nullptr;
}

std::vector<std::shared_ptr<Memory>> DriverState::find_span(CUdeviceptr address, std::size_t bytes) const {
  std::vector<std::shared_ptr<Memory>> span;
  for (CUdeviceptr at = address; at < address + std::max<std::size_t>(bytes, 1);
       at = span.back()->base + span.back()->bytes) {
    auto next = find_memory(at, 1);
    const bool continues = next != nullptr && (span.empty() || next->category == MemoryCategory::kMapped);
    if (!continues || (!span.empty() && span.back()->category != MemoryCategory::kMapped)) return {};
    span.push_back(std::move(next));
  }
  return span;
}

std::shared_ptr<Context> make_context(int device) {
  auto context = std::make_shared<Context>();
  context->device = device;
  const std::uint64_t channels = std::min<std::uint64_t>(setting("CUDA_DEVICE_MAX_CONNECTIONS", 0), kMaxChannels);
  for (std::uint64_t i = 0; i < channels; ++i) context->channels.push_back(std::make_shared<Channel>());
  context->legacy = make_internal_stream(context);
  context->legacy->legacy = true;
  driver_state().contexts.add(context);
  return context;
}

void end_context(const std::shared_ptr<Context>& context) {
  DriverState& own = driver_state();
  context->alive = false;
  for (auto entry = own.memory.begin(); entry != own.memory.end();) {
    const Memory& memory = *entry->second;
    if (memory.context != context) {
      ++entry;
      continue;
    }
    if (memory.counts_against_device()) {
      own.devices[static_cast<std::size_t>(memory.device)].used_bytes -= memory.bytes;
    }
    entry = own.memory.erase(entry);
  }
  for (const auto& [handle, stream] : own.streams.all()) {
    if (stream->context == context) stream->queue->close();
  }
  for (const auto& [thread, stream] : context->per_thread) stream->queue->close();
  context->per_thread.clear();
  context->legacy->queue->close();
  context->legacy.reset();
}

CUresult find_stream(CUstream handle, std::shared_ptr<Stream>& stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == kLegacyStream || number == kPerThreadStream) {
    std::shared_ptr<Context> context;
    if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
    stream = context->legacy;
    if (number == kPerThreadStream) {
      auto& own = context->per_thread[std::this_thread::get_id()];
      if (own == nullptr) own = make_internal_stream(context);
      stream = own;
    }
    return CUresult::kSuccess;
  }
  stream = driver_state().streams.find(handle);
  if (stream == nullptr) return CUresult::kInvalidHandle;
  return stream->context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

CUresult find_event(CUevent handle, std::shared_ptr<Event>& event) {
  event = driver_state().events.find(handle);
  if (event == nullptr) return CUresult::kInvalidHandle;
  return event->context->alive ? CUresult::kSuccess : CUresult::kContextIsDestroyed;
}

bool may_use(const Context& context, const Memory& memory) {
  switch (memory.category) {
    case MemoryCategory::kDevice: return memory.device == context.device || context.peers.contains(memory.device);
    case MemoryCategory::kMapped: return memory.accesses.contains(context.device);
    default: return true;
  }
}

CUresult submit(const std::shared_ptr<Stream>& stream, Work work, std::uint64_t* ticket) {
  if (ticket != nullptr) *ticket = 0;
  const CUresult lost = stream->context->lost->load();
  if (lost != CUresult::kSuccess) return lost;
  if (stream->capture != nullptr) {
    if (stream->capture->status != CaptureStatus::kActive) return CUresult::kStreamCaptureInvalidated;
    std::vector<Node>& nodes = stream->capture->graph->nodes;
    nodes.push_back({work.what, std::move(work.run), stream->tail});
    stream->tail = {nodes.size() - 1};
    return CUresult::kSuccess;
  }
  // A capture would have to order the legacy stream after a captured stream, which CUDA does not support.
  if (stream->legacy) {
    for (const auto& other : blocking_streams(*stream->context)) {
      if (other->capture != nullptr) {
        other->capture->status = CaptureStatus::kInvalidated;
        return CUresult::kStreamCaptureImplicit;
      }
      work.after.push_back({other->queue, other->queue->submitted()});
    }
  } else if (is_blocking(*stream)) {
    const auto& legacy = stream->context->legacy->queue;
    work.after.push_back({legacy, legacy->submitted()});
  }
  std::optional<QueuePosition>& set_up = stream->context->set_up;
  if (set_up && set_up->queue->done(set_up->ticket)) set_up.reset();
  if (set_up) work.after.push_back(*set_up);
  const std::uint64_t got = stream->queue->submit(std::move(work));
  if (ticket != nullptr) *ticket = got;
  return CUresult::kSuccess;
}

void set_up_launches(Context& context) {
  const auto queue = std::make_shared<Queue>(context.lost);
  Work work{.what = "the first launch in a context", .run = [] { return CUresult::kSuccess; }};
  work.after = submitted_to(context.device, &context);
  context.set_up = QueuePosition{queue, queue->submit(std::move(work))};
  queue->close();
}

CUresult refuse_in_capture() {
  const CaptureMode mode = thread_capture_mode();
  CUresult result = CUresult::kSuccess;
  for (const auto& capture : driver_state().captures) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != CaptureMode::kRelaxed;
    const bool refused = (mode == CaptureMode::kGlobal && (own || capture->mode == CaptureMode::kGlobal)) ||
                         (mode == CaptureMode::kThreadLocal && own);
    if (!refused) continue;
    capture->status = CaptureStatus::kInvalidated;
    result = CUresult::kStreamCaptureUnsupported;
  }
  return result;
}

CUresult wait_for(const std::shared_ptr<Stream>& stream, std::uint64_t ticket, const char* what) {
  if (!wait_until([&] { return stream->queue->done(ticket); }, what)) return CUresult::kLaunchTimeout;
  return stream->context->lost->load();
}

bool has_implicit_waits() { return setting("FAKE_CUDA_IMPLICIT_WAITS", 0) != 0; }

CUresult wait_for_device(int device, const Context* context, const char* what) {
  std::vector<QueuePosition> waited;
  {
    const std::lock_guard lock(driver_state().mutex);
    waited = submitted_to(device, context);
  }
  for (const QueuePosition& after : waited) {
    if (!wait_until([&] { return after.queue->done(after.ticket); }, what)) return CUresult::kLaunchTimeout;
  }
  return context == nullptr ? CUresult::kSuccess : context->lost->load();
}

std::string describe_unreleased(const Context* context) {
  const DriverState& own = driver_state();
  std::string lines;
  for (const auto& [base, memory] : own.memory) {
    if (context == nullptr || memory->context.get() == context) {
      add_line(lines, name_of(memory->category), base, memory->bytes);
    }
  }
  add_held(lines, "stream", own.streams, context);
  add_held(lines, "event", own.events, context);
  add_held(lines, "module", own.modules, context);
  return lines;
}

std::string leaks() {
  DriverState& own = driver_state();
  const std::lock_guard lock(own.mutex);
  std::string lines = std::exchange(own.leaked_with_context, {}) + describe_unreleased(nullptr);
  for (const auto& [base, bytes] : own.reservations) add_line(lines, "reserved addresses", base, bytes);
  for (const auto& [handle, graph] : own.graphs.all()) add_line(lines, "graph", handle);
  for (const auto& [handle, executable] : own.executables.all()) add_line(lines, "executable graph", handle);
  for (const auto& [handle, physical] : own.physicals.all()) {
    add_line(lines, "physical memory", handle, physical->bytes);
  }
  for (std::size_t i = 0; i < own.devices.size(); ++i) {
    if (own.devices[i].retained > 0) add_line(lines, "primary context of device", i);
  }
  return lines;
}

CaptureMode& thread_capture_mode() {
  static thread_local CaptureMode mode = CaptureMode::kGlobal;
  return mode;
}

}  // namespace tutti::cuda::fake
