// Fibers with Boost.Context, and the annotations for AddressSanitizer and ThreadSanitizer: see fiber.h.
#include "tests/device/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdlib>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tutti::emu {
namespace {

constexpr std::size_t kStacksPerSlab = 64;

// Removes AddressSanitizer's marks of stack frames that were never left. These are the last frames of a finished fiber,
// and all frames of a fiber that was stuck and never finished.
void forget_frames([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

}  // namespace

Stacks::~Stacks() {
  for (void* slab : slabs_) {
    forget_frames(slab, kStacksPerSlab * stack_bytes_);
    munmap(slab, kStacksPerSlab * stack_bytes_);
  }
}

Stack Stacks::take() {
  if (free_.empty()) {
    void* slab = mmap(nullptr, kStacksPerSlab * stack_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) std::abort();
    slabs_.push_back(slab);
    for (std::size_t i = kStacksPerSlab; i > 0; --i)
      free_.push_back({static_cast<unsigned char*>(slab) + (i - 1) * stack_bytes_, stack_bytes_});
  }
  const Stack stack = free_.back();
  free_.pop_back();
  return stack;
}

void Stacks::give_back(Stack stack) {
  forget_frames(stack.memory, stack.bytes);
  free_.push_back(stack);
}

Context::Context() : is_thread_(true) {
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = __tsan_get_current_fiber();
#endif
}

// The first frame begins `colour` bytes below the top of the stack, see fiber.h.
Context::Context(Stack stack, std::size_t colour, void (*entry)()) : stack_(stack), entry_(entry) {
  context_ = boost::context::detail::make_fcontext(stack.memory + stack.bytes - colour, stack.bytes - colour, &enter);
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

#if defined(__SANITIZE_THREAD__)
Context::~Context() {
  if (!is_thread_) __tsan_destroy_fiber(tsan_fiber_);
}
#else
Context::~Context() = default;
#endif

namespace {
// The argument that a switch passes to the context that it switches to. It can be on the stack, because a thread
// performs only one switch at a time.
struct Handover {
  Context* from;
  Context* to;
};
}  // namespace

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread))
#endif
void Context::enter(boost::context::detail::transfer_t transfer) {
  const Handover handover = *static_cast<Handover*>(transfer.data);
  handover.from->context_ = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (handover.from->is_thread_) {
    handover.from->stack_ = {static_cast<unsigned char*>(const_cast<void*>(bottom)), bytes};
  }
#endif
  handover.to->entry_();
  std::abort();  // a fiber's entry never returns
}

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread))
#endif
void switch_contexts(Context& from, Context& to, bool from_is_finished) {
  if (&from == &to) return;
  Handover handover{&from, &to};
#if defined(__SANITIZE_THREAD__)
  // Flag 0: the switch orders the two fibers for ThreadSanitizer, so it does not report races between fibers of one
  // emulator. Without this order every access of the scheduler would have to be hidden from it. It still reports races
  // between emulators, streams and the program. Races between fibers are found by the weak memory model instead.
  __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_is_finished ? nullptr : &from.asan_fake_stack_, to.stack_.memory,
                                 to.stack_.bytes);
#else
  static_cast<void>(from_is_finished);
#endif
  const auto transfer = boost::context::detail::jump_fcontext(to.context_, &handover);
  static_cast<Handover*>(transfer.data)->from->context_ = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.asan_fake_stack_, nullptr, nullptr);
#endif
}

#if defined(__SANITIZE_THREAD__)
TsanIgnoreScope::TsanIgnoreScope() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
TsanIgnoreScope::~TsanIgnoreScope() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
void annotate_release(void* at) { __tsan_release(at); }
void annotate_acquire(void* at) { __tsan_acquire(at); }
#else
TsanIgnoreScope::TsanIgnoreScope() = default;
TsanIgnoreScope::~TsanIgnoreScope() = default;
void annotate_release(void*) {}
void annotate_acquire(void*) {}
#endif

}  // namespace tutti::emu
