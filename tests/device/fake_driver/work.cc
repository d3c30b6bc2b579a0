// What runs in streams, but kernels: copies, sets, waits and writes of words, host functions.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks.h"
#include "world.h"

namespace tutti::cuda::fake {
namespace {

enum class Place : std::uint8_t { kAny, kHost, kDevice };

// One end of a copy. Memory that the driver does not know is the host's, and pageable.
struct End {
  std::vector<std::weak_ptr<Memory>> memory;
  bool known() const { return !memory.empty(); }
};

CUresult check_end(const Context& context, CUdeviceptr address, std::size_t bytes, Place place, End& end) {
  const World& own = world();
  if (address == 0) return CUresult::kInvalidValue;
  const auto span = own.find_span(address, bytes);
  if (span.empty()) {
    const bool overruns = own.find_memory(address, 1) != nullptr;
    return overruns || place == Place::kDevice ? CUresult::kInvalidValue : CUresult::kSuccess;
  }
  for (const auto& memory : span) {
    if (place == Place::kHost && memory->on_device()) return CUresult::kInvalidValue;
    if (memory->kind == MemKind::kMapped && !may_use(context, *memory)) return CUresult::kInvalidValue;
  }
  end.memory.assign(span.begin(), span.end());
  return CUresult::kSuccess;
}

// Memory that was given back before a replayed graph used it again is what a device would trip over, too.
bool is_gone(const End& end) {
  return std::any_of(end.memory.begin(), end.memory.end(), [](const auto& memory) { return memory.expired(); });
}

// The copies that one function was called for, in the order of the calls.
struct Copies {
  const char* name;
  std::atomic<unsigned> begun{0};
  std::atomic<unsigned> done{0};  // release after the copy
  std::atomic<unsigned> held{0};  // which waits for release_copy(); 0: none
};
std::array<Copies, 4> all_copies = {Copies{"cuMemcpyAsync"}, Copies{"cuMemcpyHtoDAsync"}, Copies{"cuMemcpyDtoHAsync"},
                                    Copies{"cuMemcpyDtoDAsync"}};

Copies& copies_of(const char* function) {
  for (Copies& copies : all_copies) {
    if (std::strcmp(copies.name, function) == 0) return copies;
  }
  std::fprintf(stderr, "fake cuda: %s copies nothing\n", function);
  std::abort();
}

CUresult copy(CUdeviceptr target, Place target_place, CUdeviceptr source, Place source_place, std::size_t bytes,
              CUstream handle, const char* what) {
  Copies& copies = copies_of(what);
  const unsigned number = copies.begun.fetch_add(1) + 1;
  std::shared_ptr<Stream> stream;
  std::uint64_t ticket = 0;
  bool pageable = false;
  {
    const std::lock_guard lock(world().mutex);
    std::shared_ptr<Context> context;
    if (const CUresult result = current_context(context); result != CUresult::kSuccess) return result;
    if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
    if (bytes == 0) return CUresult::kSuccess;
    End to;
    if (const CUresult result = check_end(*context, target, bytes, target_place, to); result != CUresult::kSuccess) {
      return result;
    }
    End from;
    if (const CUresult result = check_end(*context, source, bytes, source_place, from); result != CUresult::kSuccess) {
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
  // Pageable memory is not copied behind the caller's back: it returns when that is over.
  return pageable && ticket != 0 ? wait_for(stream, ticket, what) : CUresult::kSuccess;
}

CUresult memcpy_async(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(target, Place::kAny, source, Place::kAny, bytes, stream, "cuMemcpyAsync");
}

CUresult memcpy_htod_async(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) {
  return copy(target, Place::kDevice, reinterpret_cast<CUdeviceptr>(source), Place::kHost, bytes, stream,
              "cuMemcpyHtoDAsync");
}

CUresult memcpy_dtoh_async(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<CUdeviceptr>(target), Place::kHost, source, Place::kDevice, bytes, stream,
              "cuMemcpyDtoHAsync");
}

CUresult memcpy_dtod_async(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(target, Place::kDevice, source, Place::kDevice, bytes, stream, "cuMemcpyDtoDAsync");
}

// The stream, and memory at `address` that its device may use.
CUresult find_target(CUstream handle, CUdeviceptr address, std::size_t bytes, std::shared_ptr<Stream>& stream,
                     End& end) {
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  const CUresult result = check_end(*stream->context, address, bytes, Place::kDevice, end);
  if (result != CUresult::kSuccess) return result;
  const auto usable = [&](const auto& memory) { return may_use(*stream->context, *memory.lock()); };
  return std::all_of(end.memory.begin(), end.memory.end(), usable) ? CUresult::kSuccess : CUresult::kInvalidValue;
}

CUresult memset_d8_async(CUdeviceptr target, unsigned char value, std::size_t bytes, CUstream handle) {
  if (bytes == 0) return CUresult::kSuccess;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Stream> stream;
  End end;
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
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Stream> stream;
  End end;
  if (const CUresult result = find_target(handle, address, sizeof(Word), stream, end); result != CUresult::kSuccess) {
    return result;
  }
  const auto run = [=, lost = stream->context->lost] {
    const auto memory = end.memory.front().lock();  // a word lies in one
    if (memory == nullptr) return CUresult::kIllegalAddress;
    const std::atomic_ref<Word> word(*std::bit_cast<Word*>(address));
    const auto over = [&] {
      return lost->load() != CUresult::kSuccess || holds(word.load(std::memory_order_acquire), value, flags);
    };
    if (!wait_until(over, "cuStreamWaitValue")) return CUresult::kLaunchTimeout;
    return lost->load();
  };
  return submit(stream, {"cuStreamWaitValue", run, {}});
}

template <class Word>
CUresult write_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  if (address % sizeof(Word) != 0 || flags > 1) return CUresult::kInvalidValue;
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Stream> stream;
  End end;
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
  const std::lock_guard lock(world().mutex);
  std::shared_ptr<Stream> stream;
  if (const CUresult result = find_stream(handle, stream); result != CUresult::kSuccess) return result;
  const auto run = [=] {
    const Inside outside(-1);
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
