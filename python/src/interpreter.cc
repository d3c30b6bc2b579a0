// The interpreter lock (GIL), the end of the interpreter, and forks.
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
// Number of threads in ~WithoutLock(): they are about to check interpreter_ends, or have passed the check and are
// taking the interpreter lock.
std::atomic<int> threads_returning{0};
std::thread::id ending_thread;  // the thread that ends the interpreter; set before interpreter_ends becomes true

// Called by Python's atexit in the main thread. Afterwards, ~WithoutLock() does not take the interpreter lock in other
// threads any more. Threads that have already passed the check of interpreter_ends still take the lock, so this
// function releases it and waits for them.
void end_of_interpreter() {
  ending_thread = std::this_thread::get_id();
  interpreter_ends = true;
  PyThreadState* state = PyEval_SaveThread();
  while (threads_returning > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  PyEval_RestoreThread(state);
}

void count_fork() {
  ++generation;
  threads_returning = 0;  // the child process does not have the other threads
}

}  // namespace

WithoutLock::WithoutLock() : state_(PyEval_SaveThread()) {}

WithoutLock::~WithoutLock() {
  ++threads_returning;
  if (interpreter_ends && std::this_thread::get_id() != ending_thread) {
    --threads_returning;
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  --threads_returning;
}

std::uint64_t process_generation() { return generation.load(std::memory_order_relaxed); }

void add_interpreter(nb::module_& module) {
  pthread_atfork(nullptr, nullptr, &count_fork);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_of_interpreter));
  (void)module;
}

}  // namespace tutti::python
