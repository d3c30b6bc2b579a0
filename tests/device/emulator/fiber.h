// Stacks and contexts of fibers. Each emulated GPU thread is a fiber with a stack of its own. Boost.Context switches
// between them; this file adds the calls that inform the sanitizers about the switches.
//
// All fibers of an emulator run in the one operating system thread that runs the emulator. switch_contexts() must be
// called from the context that is running. After a call with `from_is_finished`, do not switch to `from` again.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>
#include <vector>

namespace tutti::emu {

struct Stack {
  unsigned char* memory = nullptr;
  std::size_t bytes = 0;
};

// A pool of stacks. The stack of a finished fiber is used again for a later one.
class Stacks {
 public:
  explicit Stacks(std::size_t stack_bytes) : stack_bytes_(stack_bytes) {}
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  Stack take();
  void give_back(Stack stack);

 private:
  std::size_t stack_bytes_;
  std::vector<void*> slabs_;
  std::vector<Stack> free_;
};

// The saved state of a fiber, or of the thread that runs the fibers, while another one runs.
class Context {
 public:
  Context();  // the context of the calling thread
  // A new fiber that will call `entry`, which must not return. `colour` is the number of bytes by which the first frame
  // is moved down from the top of the stack. Use different values for different fibers: without them, stacks that are
  // 2^n bytes apart would compete for the same cache sets.
  Context(Stack stack, std::size_t colour, void (*entry)());
  ~Context();  // NOLINT(performance-trivially-destructible): it is not trivial under ThreadSanitizer
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Stack stack() const { return stack_; }

 private:
  friend void switch_contexts(Context& from, Context& to, bool from_is_finished);
  static void enter(boost::context::detail::transfer_t transfer);

  boost::context::detail::fcontext_t context_ = nullptr;
  Stack stack_;
  void (*entry_)() = nullptr;
  // State for the sanitizers; used only in builds with the sanitizer.
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] void* asan_fake_stack_ = nullptr;
  [[maybe_unused]] bool is_thread_ = false;
};

void switch_contexts(Context& from, Context& to, bool from_is_finished);

// A scope in which ThreadSanitizer ignores memory accesses. The scheduler needs it for its own state, because fibers
// share this state and ThreadSanitizer does not see what orders their accesses.
class TsanIgnoreScope {
 public:
  TsanIgnoreScope();
  ~TsanIgnoreScope();  // NOLINT(performance-trivially-destructible): it is not trivial under ThreadSanitizer
  TsanIgnoreScope(const TsanIgnoreScope&) = delete;
  TsanIgnoreScope& operator=(const TsanIgnoreScope&) = delete;
};

// Informs ThreadSanitizer of an order: accesses before annotate_release(at) happen before accesses after a later
// annotate_acquire(at).
void annotate_release(void* at);
void annotate_acquire(void* at);

}  // namespace tutti::emu
