// Ctrl-C in a blocking call. Python's handler of SIGINT only sets a flag, which is not checked while the main thread
// executes C++ code. So this file installs a handler of its own, which wakes a watching thread and then calls Python's
// handler. If the main thread is still in the same call after kGrace, the watching thread aborts the communicators of
// the call. The call then returns, and Python raises KeyboardInterrupt.
//
// The handler is installed only if SIGINT has Python's own handler. If the program sets another handler, that handler
// replaces the one of this file, and the program decides about Ctrl-C itself.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <thread>

#include "core.h"

namespace tutti::python {
namespace {

// A call that ends by itself within this time after Ctrl-C is not aborted, so that its communicator stays usable.
constexpr auto kGrace = std::chrono::milliseconds(200);

sem_t interrupts;                               // posted once for each Ctrl-C
struct sigaction before;                        // Python's own handler
std::uint64_t watched_generation = UINT64_MAX;  // process_generation() at the start of the watching thread
pthread_t main_thread;

std::mutex mutex;
// The communicators of the call in which the main thread waits; empty if it does not wait. `mutex` protects this and
// the next two variables.
std::span<const std::shared_ptr<Communicator>> waited_for;
std::uint64_t number_of_wait = 0;  // number of waits of the main thread so far
bool has_aborted = false;          // the watching thread has aborted a call, and no exception was raised for it yet

void on_interrupt(int signal) {
  const int saved = errno;
  sem_post(&interrupts);
  errno = saved;
  before.sa_handler(signal);
}

void watch() {
  for (;;) {
    if (sem_wait(&interrupts) != 0) continue;
    std::unique_lock lock(mutex);
    const std::uint64_t number = number_of_wait;
    lock.unlock();
    std::this_thread::sleep_for(kGrace);
    lock.lock();
    if (waited_for.empty() || number_of_wait != number) continue;
    for (const auto& communicator : waited_for) communicator->abort();
    has_aborted = true;
  }
}

}  // namespace

bool in_main_thread() { return pthread_equal(pthread_self(), main_thread) != 0; }

void watch_interrupts() {
  if (!in_main_thread()) return;
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0) return;
  if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) return;
  if (now.sa_handler == &on_interrupt && watched_generation == process_generation()) return;
  const nb::module_ signals = nb::module_::import_("signal");
  if (!signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"))) return;
  if (watched_generation != process_generation()) {
    sem_init(&interrupts, 0, 0);
    sigset_t all, old;  // the watching thread starts with all signals blocked, so that the program's threads get them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::thread(&watch).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    watched_generation = process_generation();
  }
  if (now.sa_handler == &on_interrupt) return;
  before = now;
  now.sa_handler = &on_interrupt;
  sigaction(SIGINT, &now, nullptr);
}

Interruptible::Interruptible(std::span<const std::shared_ptr<Communicator>> communicators)
    : active_(!communicators.empty() && in_main_thread()) {
  if (!active_) return;
  const std::lock_guard lock(mutex);
  waited_for = communicators;
  ++number_of_wait;
}

Interruptible::~Interruptible() {
  if (!active_) return;
  const std::lock_guard lock(mutex);
  waited_for = {};
}

void raise_if_interrupted() {
  {
    const std::lock_guard lock(mutex);
    if (!has_aborted || !in_main_thread()) return;
    has_aborted = false;
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void add_interrupts(nb::module_&) {
  // Python is asked for its main thread, because the thread that imports this module may be another one.
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}

}  // namespace tutti::python
