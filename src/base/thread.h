// Threads that the library starts inside other people's programs. The program's signals must not end up in them: its
// handlers may count on its own threads' data, and a signal that interrupts sleep() or read() in the main thread must
// not be taken by a thread of ours instead. So every thread of ours starts with signals blocked. Any thread.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace tutti {

// Blocks signals in the calling thread while it lives. Threads that are started meanwhile, by us or by a library that
// we call, inherit that and keep it.
//
// Signals that a thread raises by a fault of its own (SIGSEGV, SIGSYS, ...) stay as they are: POSIX leaves open what
// happens if they are blocked. Linux ends the process, without the handler that the program, Python's faulthandler for
// example, has for them.
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

// Runs `body` in a new thread with signals blocked. Throws std::system_error if the system starts no thread.
template <class Body>
std::thread start_thread(Body&& body) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Body>(body));
}

}  // namespace tutti
