// The interpreter's lock, its end, and forks.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core.h"

namespace tutti::python {
namespace {

std::atomic<std::uint64_t> generation{0};
std::atomic<bool> interpreter_ends{false};
std::atomic<int> coming_back{0};  // threads between their look at interpreter_ends and the lock
std::thread::id ending_thread;    // written before interpreter_ends

// From atexit, in the main thread: from now on no other thread comes back to the interpreter. One that is about to is
// let in first, which takes as long as other threads hold the lock.
void end_of_interpreter() {
  ending_thread = std::this_thread::get_id();
  interpreter_ends = true;
  PyThreadState* state = PyEval_SaveThread();
  while (coming_back > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  PyEval_RestoreThread(state);
}

void count_fork() {
  ++generation;
  coming_back = 0;  // threads that are not here
}

}  // namespace

WithoutLock::WithoutLock() : state_(PyEval_SaveThread()) {}

WithoutLock::~WithoutLock() {
  ++coming_back;
  if (interpreter_ends && std::this_thread::get_id() != ending_thread) {
    --coming_back;
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  --coming_back;
}

std::uint64_t process_generation() { return generation.load(std::memory_order_relaxed); }

void add_interpreter(nb::module_& module) {
  pthread_atfork(nullptr, nullptr, &count_fork);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_of_interpreter));
  (void)module;
}

}  // namespace tutti::python
