// A stackful fiber: one emulated GPU thread, by Boost.Context, and what the sanitizers need to know of it.
//
// Fibers of a world run in the one thread that runs the world; switch_fibers() is called by the fiber that runs. A
// fiber that has said `finished` is never switched to again.
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

// Stacks that fibers have left behind serve later ones.
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

class Context {
 public:
  Context();  // of the thread that runs now
  Context(Stack stack, std::size_t colour, void (*entry)());
  ~Context();  // NOLINT(performance-trivially-destructible): not so under the thread sanitizer
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Stack stack() const { return stack_; }

 private:
  friend void switch_contexts(Context& from, Context& to, bool from_is_finished);
  static void enter(boost::context::detail::transfer_t transfer);

  boost::context::detail::fcontext_t context_ = nullptr;
  Stack stack_;
  void (*entry_)() = nullptr;
  // What the sanitizers know of it, where there are any.
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] void* asan_fake_stack_ = nullptr;
  [[maybe_unused]] bool is_thread_ = false;
};

void switch_contexts(Context& from, Context& to, bool from_is_finished);

// Keeps ThreadSanitizer from looking at the scheduler's own state, which fibers share without any order that it knows.
class Unwatched {
 public:
  Unwatched();
  ~Unwatched();  // NOLINT(performance-trivially-destructible): likewise
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// Tells ThreadSanitizer that what happened before released(at) happens before what follows acquired(at).
void released(void* at);
void acquired(void* at);

}  // namespace tutti::emu
