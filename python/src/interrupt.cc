// Ctrl-C in a blocking call. Python's handler of SIGINT only sets a flag, which is not checked while the main thread
// executes C++ code. So this file installs a handler in front of it, which wakes a thread. If the main thread is
// still in the same call after kGrace, the thread aborts its communicators. The call then returns, and Python raises
// KeyboardInterrupt.
//
// The handler is installed only if SIGINT has Python's own handler. If the program sets another handler, that one
// replaces this one, and the program decides about Ctrl-C itself.
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

sem_t interrupts;
struct sigaction before;  // Python's own handler
std::uint64_t watched_generation = UINT64_MAX;
pthread_t main_thread;

std::mutex mutex;
std::span<const std::shared_ptr<Communicator>> waited_for;  // the communicators for which the main thread waits
std::uint64_t number_of_wait = 0;
bool has_aborted = false;

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
    sigset_t all, old;  // the thread starts with all signals blocked, so that the program's own threads get them
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
  // Taken from Python, because another thread than the main thread may import the module.
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
}

}  // namespace tutti::python
