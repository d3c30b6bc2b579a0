// The functions that libtutti_heap.so exports: malloc(), its relatives and madvise(), which a program calls instead of
// the C library's if it loads the library with LD_PRELOAD, and the same allocator for NumPy, which works without
// LD_PRELOAD. Blocks of at least kLeastBlockBytes come from the heap, if it can serve them. The others, except for a
// few while the addresses of functions are looked up, come from the allocator that the program would have without this
// library ("the next one"): that of the C library, or jemalloc or tcmalloc if the program uses one of them as a shared
// library.
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "heap/heap.h"
#include "heap/heap_interface.h"

#define TUTTI_EXPORT extern "C" __attribute__((visibility("default")))  // NOLINT: an attribute

namespace {

// From this size on, blocks come from the heap if it can serve them. Shorter messages are usually copied even if their
// memory is shared, because a copy costs less than the signals between ranks that a collective without copies needs. A
// block uses whole pages, so with pages of 4 KiB it wastes at most an eighth.
constexpr std::size_t kLeastBlockBytes = 32 * 1024;

constinit tutti::Heap heap;  // never destroyed: it has a trivial destructor

// The next allocator. dlsym() may itself call calloc() while these addresses are looked up. Such calls are served from
// a small buffer, whose blocks are never reused.
struct NextAllocator {
  void* (*malloc)(std::size_t);
  void* (*calloc)(std::size_t, std::size_t);
  void* (*realloc)(void*, std::size_t);
  void (*free)(void*);
  void* (*aligned_alloc)(std::size_t, std::size_t);
  void* (*memalign)(std::size_t, std::size_t);
  int (*posix_memalign)(void**, std::size_t, std::size_t);
  std::size_t (*malloc_usable_size)(void*);
  int (*madvise)(void*, std::size_t, int);
};
constinit NextAllocator next_allocator{};
constinit std::atomic<bool> next_is_known{false};
constinit std::atomic<std::size_t> early_bytes{0};
alignas(16) constinit std::byte early_buffer[64 * 1024]{};  // NOLINT: an array of bytes

void* allocate_early(std::size_t bytes) {
  if (bytes > sizeof early_buffer) return nullptr;
  const std::size_t rounded = (bytes + 15) / 16 * 16;
  const std::size_t offset = early_bytes.fetch_add(rounded);
  return offset > sizeof early_buffer - rounded ? nullptr : early_buffer + offset;
}

// Block addresses are multiples of 16, so larger alignments fail as if there were no memory.
void* allocate_early(std::size_t bytes, std::size_t alignment) {
  void* const block = alignment <= 16 ? allocate_early(bytes) : nullptr;
  if (block == nullptr) errno = ENOMEM;
  return block;
}

bool is_early(const void* data) {
  const auto* byte = static_cast<const std::byte*>(data);
  return byte >= early_buffer && byte < early_buffer + sizeof early_buffer;
}

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Returns the next allocator. Returns null if this thread is in dlsym() below, and dlsym() has called malloc() or
// another function of this file.
const NextAllocator* next() {
  if (next_is_known.load(std::memory_order_acquire)) return &next_allocator;
  static constinit std::atomic<pid_t> looking{0};  // the thread that looks up the functions; 0: none yet
  const pid_t thread = gettid();
  pid_t other = 0;
  if (!looking.compare_exchange_strong(other, thread)) {
    if (other == thread) return nullptr;
    while (!next_is_known.load(std::memory_order_acquire)) sched_yield();
    return &next_allocator;
  }
  look_up(next_allocator.malloc, "malloc");
  look_up(next_allocator.calloc, "calloc");
  look_up(next_allocator.realloc, "realloc");
  look_up(next_allocator.free, "free");
  look_up(next_allocator.aligned_alloc, "aligned_alloc");
  look_up(next_allocator.memalign, "memalign");
  look_up(next_allocator.posix_memalign, "posix_memalign");
  look_up(next_allocator.malloc_usable_size, "malloc_usable_size");
  look_up(next_allocator.madvise, "madvise");
  next_is_known.store(true, std::memory_order_release);
  return &next_allocator;
}

void* allocate(std::size_t bytes, std::size_t alignment, bool zeroed) {
  return bytes < kLeastBlockBytes ? nullptr : heap.allocate(bytes, alignment, zeroed);
}

std::size_t usable_bytes(void* data) {
  if (heap.contains(data)) return heap.usable_bytes(data);
  if (is_early(data))
    return static_cast<std::size_t>(early_buffer + sizeof early_buffer - static_cast<std::byte*>(data));
  return next()->malloc_usable_size(data);
}

// The implementations of malloc(), calloc(), free() and realloc(). They have names of their own, because a call of
// malloc() from here would call another malloc() if this library was not loaded with LD_PRELOAD.

void* allocate_block(std::size_t bytes) {
  if (void* block = allocate(bytes, 1, false)) return block;
  const NextAllocator* const other = next();
  return other == nullptr ? allocate_early(bytes) : other->malloc(bytes);
}

void* allocate_zeros(std::size_t count, std::size_t bytes) {
  std::size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  if (void* block = allocate(all, 1, true)) return block;
  const NextAllocator* const other = next();
  return other == nullptr ? allocate_early(all) : other->calloc(count, bytes);
}

void release(void* data) {
  if (heap.contains(data)) {
    heap.release(data);
  } else if (data != nullptr && !is_early(data)) {
    next()->free(data);
  }
}

void* resize(void* data, std::size_t bytes) {
  if (data == nullptr) return allocate_block(bytes);
  const bool in_heap = heap.contains(data);
  const bool moves_out = in_heap || is_early(data);
  if (!moves_out && bytes < kLeastBlockBytes) return next()->realloc(data, bytes);
  if (moves_out && bytes == 0) {
    release(data);
    return nullptr;
  }
  if (in_heap && bytes >= kLeastBlockBytes && heap.resize(data, bytes)) return data;
  // The block moves: into the heap, to another place in it, or out of it. But if the block is of the next allocator and
  // the heap cannot serve the new size, the next allocator resizes it.
  void* const block = moves_out ? allocate_block(bytes) : allocate(bytes, 1, false);
  if (block == nullptr) return moves_out ? nullptr : next()->realloc(data, bytes);
  std::memcpy(block, data, std::min(bytes, usable_bytes(data)));
  release(data);
  return block;
}

}  // namespace

TUTTI_EXPORT void* malloc(std::size_t bytes) { return allocate_block(bytes); }
TUTTI_EXPORT void free(void* data) { release(data); }
// free_sized() and free_aligned_sized() are functions of C23. The headers of older C libraries do not declare them.
TUTTI_EXPORT void free_sized(void* data, std::size_t /*bytes*/) { release(data); }
TUTTI_EXPORT void free_aligned_sized(void* data, std::size_t /*alignment*/, std::size_t /*bytes*/) { release(data); }
TUTTI_EXPORT void* calloc(std::size_t count, std::size_t bytes) { return allocate_zeros(count, bytes); }
TUTTI_EXPORT void* realloc(void* data, std::size_t bytes) { return resize(data, bytes); }

TUTTI_EXPORT void* reallocarray(void* data, std::size_t count, std::size_t bytes) {
  std::size_t all = 0;
  if (__builtin_mul_overflow(count, bytes, &all)) {
    errno = ENOMEM;
    return nullptr;
  }
  return resize(data, all);
}

TUTTI_EXPORT void* memalign(std::size_t alignment, std::size_t bytes) {
  if (std::has_single_bit(alignment)) {
    if (void* block = allocate(bytes, alignment, false)) return block;
  }
  const NextAllocator* const other = next();
  return other == nullptr ? allocate_early(bytes, alignment) : other->memalign(alignment, bytes);
}

TUTTI_EXPORT void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  if (std::has_single_bit(alignment)) {
    if (void* block = allocate(bytes, alignment, false)) return block;
  }
  const NextAllocator* const other = next();
  return other == nullptr ? allocate_early(bytes, alignment) : other->aligned_alloc(alignment, bytes);
}

TUTTI_EXPORT int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
  if (std::has_single_bit(alignment) && alignment >= sizeof(void*)) {
    if (void* block = allocate(bytes, alignment, false)) {
      *result = block;
      return 0;
    }
  }
  if (const NextAllocator* const other = next()) return other->posix_memalign(result, alignment, bytes);
  void* const block = allocate_early(bytes, alignment);
  if (block != nullptr) *result = block;
  return block == nullptr ? ENOMEM : 0;
}

TUTTI_EXPORT std::size_t malloc_usable_size(void* data) { return data == nullptr ? 0 : usable_bytes(data); }

// In private memory, MADV_DONTNEED and MADV_FREE drop the contents. In the heap's shared memory, MADV_DONTNEED would
// keep them, and MADV_FREE would fail. So MADV_REMOVE is used instead, which drops them. If it fails, as in the private
// copies of blocks in a forked child, the advice of the caller is passed on. MADV_DONTFORK and MADV_DOFORK are ignored
// for addresses in the heap: programs use MADV_DONTFORK so that a write after fork() does not move their pages to a
// copy, and the parent's pages in the heap never move.
TUTTI_EXPORT int madvise(void* data, std::size_t bytes, int advice) noexcept {
  if (heap.contains(data)) {
    if (advice == MADV_DONTFORK || advice == MADV_DOFORK) return 0;
    const int error = errno;
    const bool drops = advice == MADV_DONTNEED || advice == MADV_FREE;
    if (drops && next()->madvise(data, bytes, MADV_REMOVE) == 0) return 0;
    errno = error;
  }
  return next()->madvise(data, bytes, advice);
}

// NumPy's PyDataMem_Handler (NumPy Enhancement Proposal 49), and the name of the capsule in which NumPy wants it. They
// are here and not in Python, because NumPy uses them until the process ends.
struct NumpyHandler {
  char name[127];  // NOLINT: NumPy's layout
  std::uint8_t version;
  void* context;
  void* (*malloc)(void*, std::size_t);
  void* (*calloc)(void*, std::size_t, std::size_t);
  void* (*realloc)(void*, void*, std::size_t);
  void (*free)(void*, void*, std::size_t);
};
TUTTI_EXPORT constexpr NumpyHandler tutti_heap_numpy_handler = {
    .name = "tutti_heap",
    .version = 1,
    .context = nullptr,
    .malloc = [](void*, std::size_t bytes) { return allocate_block(bytes); },
    .calloc = [](void*, std::size_t count, std::size_t bytes) { return allocate_zeros(count, bytes); },
    .realloc = [](void*, void* data, std::size_t bytes) { return resize(data, bytes); },
    .free = [](void*, void* data, std::size_t) { release(data); },
};
TUTTI_EXPORT const char tutti_heap_numpy_capsule[] = "mem_handler";  // NOLINT: a C string

TUTTI_EXPORT const tutti::HeapInterface tutti_heap_interface_1 = {
    .find = [](const void* data, std::size_t bytes,
               tutti::HeapSegment& found) { return heap.find(data, bytes, found); },
    .open_segment = [](std::uint32_t number) { return heap.open_segment(number); },
    .problem = [] { return heap.problem(); },
};

namespace {

// Runs when the library is loaded: with LD_PRELOAD before main(), and normally before the program has a second thread.
[[gnu::constructor]] void start() {
  next();
  pthread_atfork([] { heap.before_fork(); }, [] { heap.after_fork_in_parent(); }, [] { heap.after_fork_in_child(); });
}

}  // namespace
