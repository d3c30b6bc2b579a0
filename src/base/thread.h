// start_thread: starts a thread of the library inside the user's program. These threads must not receive the
// program's signals, for two reasons: a signal handler may rely on thread-local data of the program, and a signal
// that should interrupt sleep() or read() in the main thread must not be delivered to a library thread instead. So
// all threads of the library start with signals blocked. May be called from any thread.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace tutti {

// Blocks signals in the calling thread while the object exists. Threads that the calling thread starts in this time,
// even those that another library starts, inherit the blocked signals and keep them blocked.
//
// Signals that a fault of the thread itself raises (SIGSEGV, SIGSYS, ...) are not blocked. POSIX does not define the
// effect of blocking them, and Linux then kills the process without calling the program's handler, for example that of
// Python's faulthandler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Runs `body` in a new thread with signals blocked. Throws std::system_error if the system cannot start a thread.
template <class Body>
std::thread start_thread(Body&& body) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Body>(body));
}

}  // namespace tutti
