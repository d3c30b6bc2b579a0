// The fake driver's functions for work in streams, except kernels: copies, memset, waiting for and writing a value in
// memory, and host functions.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

// Which memory a function accepts: any memory, only host memory, or only device memory.
enum class RequiredMemory : std::uint8_t { kAny, kHost, kDevice };

// The source or the target of a copy. If `memory` is empty, it is pageable host memory, which the driver does not
// manage.
struct CopyEndpoint {
  std::vector<std::weak_ptr<Memory>> memory;
  bool known() const { return !memory.empty(); }
};

// Checks that [address, address + bytes) is memory as required, and finds the memory that contains it.
CUresult check_endpoint(const Context& context, CUdeviceptr address, std::size_t bytes, RequiredMemory required,
                        CopyEndpoint& end) {
  const DriverState& own = driver_state();
  if (address == 0) return CUresult::kInvalidValue;
  const auto span = own.find_span(address, bytes);
  if (span.empty()) {
    const bool overruns = own.find_memory(address, 1) != nullptr;
    return overruns || required == RequiredMemory::kDevice ? CUresult::kInvalidValue : CUresult::kSuccess;
  }
  for (const auto& memory : span) {
    if (required == RequiredMemory::kHost && memory->on_device()) return CUresult::kInvalidValue;
    if (memory->category == MemoryCategory::kMapped && !may_use(context, *memory)) return CUresult::kInvalidValue;
  }
  end.memory.assign(span.begin(), span.end());
  return CUresult::kSuccess;
}

// Whether some of the memory has been freed since the copy was submitted. This happens if a graph is replayed after its
// memory was freed; the work then fails with kIllegalAddress, as on a real device.
bool is_gone(const CopyEndpoint& end) {
  return std::any_of(end.memory.begin(), end.memory.end(), [](const auto& memory) { return memory.expired(); });
}

// Counters for the copies that one driver function makes. Copies are numbered from 1 in the order of the calls.
struct Copies {
  const char* name;
  std::atomic<unsigned> begun{0};
  std::atomic<unsigned> done{0};  // stored with release order, after the copy
  std::atomic<unsigned> held{0};  // number of the copy that waits for release_copy(); 0 if there is none
};
std::array<Copies, 4> all_copies = {Copies{"cuMemcpyAsync"}, Copies{"cuMemcpyHtoDAsync"}, Copies{"cuMemcpyDtoHAsync"},
                                    Copies{"cuMemcpyDtoDAsync"}};

Copies& copies_of(const char* function) {
  for (Copies& copies : all_copies) {
    if (std::strcmp(copies.name, function) == 0) return copies;
  }
  std::fprintf(stderr, "fake driver: '%s' is not an asynchronous copy function\n", function);
  std::abort();
}

CUresult copy(CUdeviceptr target, RequiredMemory target_memory, CUdeviceptr source, RequiredMemory source_memory,
              std::size_t bytes, CUstream handle, const char* what) {
  Copies& copies = copies_of(what);
  const unsigned number = copies.begun.fetch_add(1) + 1;
  std::shared_ptr<Stream> stream;
  std::uint64_t ticket = 0;
  bool pageable = false;
  {
    const std::lock_guard lock(driver_state().mutex);
    std::shared_ptr<Context> context;
    if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
    if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
    if (bytes == 0) return CUresult::kSuccess;
    CopyEndpoint to;
    if (const CUresult result = check_endpoint(*context, target, bytes, target_memory, to);
        result != CUresult::kSuccess) {
      return result;
    }
    CopyEndpoint from;
    if (const CUresult result = check_endpoint(*context, source, bytes, source_memory, from);
        result != CUresult::kSuccess) {
      return result;
    }
    pageable = !to.known() || !from.known();
    const auto run = [=, &copies] {
      if (!wait_until([&] { return copies.held.load() != number; }, what)) return CUresult::kLaunchTimeout;
      if (is_gone(to) || is_gone(from)) return CUresult::kIllegalAddress;
      std::memmove(std::bit_cast<void*>(target), std::bit_cast<const void*>(source), bytes);
      copies.done.fetch_add(1, std::memory_order_release);
      return CUresult::kSuccess;
    };
    if (const CUresult result = submit(stream, {what, run, {}}, &ticket); result != CUresult::kSuccess) return result;
  }
  // A copy from or to pageable memory is synchronous: the function returns when it is finished.
  return pageable && ticket != 0 ? wait_for(stream, ticket, what) : CUresult::kSuccess;
}

CUresult memcpy_async(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(target, RequiredMemory::kAny, source, RequiredMemory::kAny, bytes, stream, "cuMemcpyAsync");
}

CUresult memcpy_htod_async(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) {
  return copy(target, RequiredMemory::kDevice, reinterpret_cast<CUdeviceptr>(source), RequiredMemory::kHost, bytes,
              stream, "cuMemcpyHtoDAsync");
}

CUresult memcpy_dtoh_async(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<CUdeviceptr>(target), RequiredMemory::kHost, source, RequiredMemory::kDevice, bytes,
              stream, "cuMemcpyDtoHAsync");
}

CUresult memcpy_dtod_async(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(target, RequiredMemory::kDevice, source, RequiredMemory::kDevice, bytes, stream, "cuMemcpyDtoDAsync");
}

// Finds the stream, and checks that [address, address + bytes) is memory that the stream's device may use.
CUresult find_target(CUstream handle, CUdeviceptr address, std::size_t bytes, std::shared_ptr<Stream>& stream,
                     CopyEndpoint& end) {
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  const CUresult result = check_endpoint(*stream->context, address, bytes, RequiredMemory::kDevice, end);
  if (result != CUresult::kSuccess) return result;
  const auto usable = [&](const auto& memory) { return may_use(*stream->context, *memory.lock()); };
  return std::all_of(end.memory.begin(), end.memory.end(), usable) ? CUresult::kSuccess : CUresult::kInvalidValue;
}

CUresult memset_d8_async(CUdeviceptr target, unsigned char value, std::size_t bytes, CUstream handle) {
  if (bytes == 0) return CUresult::kSuccess;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  CopyEndpoint end;
  if (const CUresult result = find_target(handle, target, bytes, stream, end); result != CUresult::kSuccess) {
    return result;
  }
  const auto run = [=] {
    if (is_gone(end)) return CUresult::kIllegalAddress;
    std::memset(std::bit_cast<void*>(target), value, bytes);
    return CUresult::kSuccess;
  };
  return submit(stream, {"cuMemsetD8Async", run, {}});
}

// Whether the condition of cuStreamWaitValue is true for the value `found`. kWaitGreaterEqual compares the signed
// difference, so that counters may wrap around.
template <class Word>
bool holds(Word found, Word wanted, unsigned flags) {
  switch (flags & 3U) {
    case kWaitGreaterEqual: return static_cast<std::make_signed_t<Word>>(found - wanted) >= 0;
    case kWaitEqual: return found == wanted;
    case kWaitAnd: return (found & wanted) != 0;
    default: return static_cast<Word>(~(found | wanted)) != 0;
  }
}

template <class Word>
CUresult wait_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  constexpr unsigned kFlush = 1U << 30U;
  if (address % sizeof(Word) != 0 || (flags & ~(kFlush | 3U)) != 0) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  CopyEndpoint end;
  if (const CUresult result = find_target(handle, address, sizeof(Word), stream, end); result != CUresult::kSuccess) {
    return result;
  }
  const auto run = [=, lost = stream->context->lost] {
    // Keeps the memory while this work waits. An aligned value cannot cross from one mapping to the next.
    const auto memory = end.memory.front().lock();
    if (memory == nullptr) return CUresult::kIllegalAddress;
    const std::atomic_ref<Word> word(*std::bit_cast<Word*>(address));
    const auto over = [&] {
      return lost->load() != CUresult::kSuccess || holds(word.load(std::memory_order_acquire), value, flags);
    };
    if (!wait_until(over, "cuStreamWaitValue")) return CUresult::kLaunchTimeout;
    return lost->load();
  };
  return submit(stream, {.what = "cuStreamWaitValue", .run = run, .holds_channel = true});
}

template <class Word>
CUresult write_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  if (address % sizeof(Word) != 0 || flags > 1) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  CopyEndpoint end;
  if (const CUresult result = find_target(handle, address, sizeof(Word), stream, end); result != CUresult::kSuccess) {
    return result;
  }
  const auto run = [=] {
    if (is_gone(end)) return CUresult::kIllegalAddress;
    std::atomic_ref<Word>(*std::bit_cast<Word*>(address)).store(value, std::memory_order_release);
    return CUresult::kSuccess;
  };
  return submit(stream, {"cuStreamWriteValue", run, {}});
}

CUresult launch_host_func(CUstream handle, CUhostFn function, void* user_data) {
  if (function == nullptr) return CUresult::kInvalidValue;
  const std::lock_guard lock(driver_state().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  const auto run = [=] {
    const DriverScope outside(-1);
    in_host_function() = true;
    function(user_data);
    in_host_function() = false;
    return CUresult::kSuccess;
  };
  return submit(stream, {"cuLaunchHostFunc", run, {}});
}

}  // namespace

void hold_copy(const char* function, unsigned nth) {
  Copies& copies = copies_of(function);
  copies.held = copies.begun + nth;
}

void release_copy() {
  for (Copies& copies : all_copies) copies.held = 0;
}

unsigned copies_done(const char* function) { return copies_of(function).done.load(std::memory_order_acquire); }

void bind_work(DriverApi& api) {
  bind<&memcpy_async>(api.memcpy_async);
  bind<&memcpy_htod_async>(api.memcpy_htod_async);
  bind<&memcpy_dtoh_async>(api.memcpy_dtoh_async);
  bind<&memcpy_dtod_async>(api.memcpy_dtod_async);
  bind<&memset_d8_async>(api.memset_d8_async);
  bind<&wait_value<std::uint32_t>>(api.stream_wait_value32);
  bind<&wait_value<std::uint64_t>>(api.stream_wait_value64);
  bind<&write_value<std::uint32_t>>(api.stream_write_value32);
  bind<&write_value<std::uint64_t>>(api.stream_write_value64);
  bind<&launch_host_func>(api.launch_host_func);
}

}  // namespace tutti::cuda::fake
