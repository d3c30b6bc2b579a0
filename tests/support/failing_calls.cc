#include "support/failing_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tutti::test::failing_calls {
namespace {

std::atomic<Fault> chosen;
std::atomic<std::int64_t> fails_at = 0;  // 0: calls are not counted
std::atomic<std::int64_t> count = 0;

[[maybe_unused]] bool fails(Fault fault, int error) {
  if (fails_at == 0 || chosen != fault) return false;
  const std::int64_t number = ++count;
  if (fault == Fault::kDescriptors ? number < fails_at : number != fails_at) return false;
  errno = error;
  return true;
}

std::atomic<void (*)()> hook_of_threads = nullptr;

struct ThreadStart {
  void* (*run)(void*);
  void* argument;
};

[[maybe_unused]] void* run_with_hook(void* memory) {
  auto* const cached = static_cast<ThreadStart*>(memory);
  const ThreadStart start = *cached;
  std::free(cached);
  if (auto* const hook = hook_of_threads.load()) hook();
  return start.run(start.argument);
}

[[maybe_unused]] bool no_descriptor() {
  return fails(Fault::kDescriptor, EMFILE) || fails(Fault::kDescriptors, EMFILE);
}

// Returns the function of the C library with this name, and caches it in `cached`. Several threads may look it up at
// the same time, which is harmless. A static variable with a guard is not used, because its guard could call one of
// the functions below while it waits.
template <class Function>
Function real(std::atomic<void*>& cached, const char* name) {
  void* found = cached.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = dlsym(RTLD_NEXT, name);
    cached.store(found, std::memory_order_relaxed);
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

void fail_nth(Fault fault, std::int64_t n) {
  fails_at = 0;
  chosen = fault;
  if (n > 0) count = 0;
  fails_at = n;
}

std::int64_t counted() { return count; }

void call_in_new_threads(void (*hook)()) { hook_of_threads = hook; }

}  // namespace tutti::test::failing_calls

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

using tutti::test::failing_calls::fails;
using tutti::test::failing_calls::Fault;
using tutti::test::failing_calls::hook_of_threads;
using tutti::test::failing_calls::no_descriptor;
using tutti::test::failing_calls::real;
using tutti::test::failing_calls::run_with_hook;
using tutti::test::failing_calls::ThreadStart;

// NOLINTBEGIN: the names, parameters and variable arguments are those of the C library
#pragma GCC visibility push(default)
extern "C" {

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static std::atomic<void*> cached;
  if (fails(Fault::kMapping, ENOMEM)) return MAP_FAILED;
  return real<decltype(&mmap)>(cached, "mmap")(address, bytes, protection, flags, fd, offset);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static std::atomic<void*> cached;
  char byte = 0;
  const bool has_come = recv(fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0;
  if (has_come && fails(Fault::kMessage, ENOMEM)) return -1;
  if (has_come && fails(Fault::kLostDescriptor, 0)) message->msg_controllen = 0;
  return real<decltype(&recvmsg)>(cached, "recvmsg")(fd, message, flags);
}

void* dlopen(const char* file, int flags) noexcept {
  static std::atomic<void*> cached;
  // a file that does not exist, so that dlerror() has an error
  if (file != nullptr && fails(Fault::kLibrary, 0)) file = "libof-failing-calls.so";
  return real<decltype(&dlopen)>(cached, "dlopen")(file, flags);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) noexcept {
  static std::atomic<void*> cached;
  if (fails(Fault::kThread, errno)) return EAGAIN;
  const auto create = real<decltype(&pthread_create)>(cached, "pthread_create");
  if (hook_of_threads == nullptr) return create(thread, attributes, run, argument);
  auto* const start =
      static_cast<ThreadStart*>(std::malloc(sizeof(ThreadStart)));  // not with operator new, which may be counted
  if (start == nullptr) return EAGAIN;
  *start = {run, argument};
  const int error = create(thread, attributes, run_with_hook, start);
  if (error != 0) std::free(start);
  return error;
}

int posix_fallocate(int fd, off_t offset, off_t bytes) {
  static std::atomic<void*> cached;
  if (fails(Fault::kFileSpace, errno)) return ENOSPC;
  return real<decltype(&posix_fallocate)>(cached, "posix_fallocate")(fd, offset, bytes);
}

int ftruncate(int fd, off_t bytes) noexcept {
  static std::atomic<void*> cached;
  if (fails(Fault::kFileSpace, ENOSPC)) return -1;
  return real<decltype(&ftruncate)>(cached, "ftruncate")(fd, bytes);
}

int socket(int domain, int type, int protocol) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&socket)>(cached, "socket")(domain, type, protocol);
}

int accept(int fd, sockaddr* address, socklen_t* bytes) {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&accept)>(cached, "accept")(fd, address, bytes);
}

int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&accept4)>(cached, "accept4")(fd, address, bytes, flags);
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&memfd_create)>(cached, "memfd_create")(name, flags);
}

int epoll_create(int size) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&epoll_create)>(cached, "epoll_create")(size);
}

int epoll_create1(int flags) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&epoll_create1)>(cached, "epoll_create1")(flags);
}

int eventfd(unsigned value, int flags) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&eventfd)>(cached, "eventfd")(value, flags);
}

int timerfd_create(int clock, int flags) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&timerfd_create)>(cached, "timerfd_create")(clock, flags);
}

int dup(int fd) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&dup)>(cached, "dup")(fd);
}

int getifaddrs(ifaddrs** found) noexcept {
  static std::atomic<void*> cached;
  return no_descriptor() ? -1 : real<decltype(&getifaddrs)>(cached, "getifaddrs")(found);
}

std::FILE* fopen(const char* path, const char* mode) {
  static std::atomic<void*> cached;
  return no_descriptor() ? nullptr : real<decltype(&fopen)>(cached, "fopen")(path, mode);
}

std::FILE* fopen64(const char* path, const char* mode) {
  static std::atomic<void*> cached;
  return no_descriptor() ? nullptr : real<decltype(&fopen64)>(cached, "fopen64")(path, mode);
}

DIR* opendir(const char* path) {
  static std::atomic<void*> cached;
  return no_descriptor() ? nullptr : real<decltype(&opendir)>(cached, "opendir")(path);
}

// The last parameter of the next three functions is optional and depends on the others. If it is missing, reading it
// gives an undefined value, which the function ignores.
int open(const char* path, int flags, ...) {
  static std::atomic<void*> cached;
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return no_descriptor() ? -1 : real<decltype(&open)>(cached, "open")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static std::atomic<void*> cached;
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return no_descriptor() ? -1 : real<decltype(&openat)>(cached, "openat")(folder, path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  static std::atomic<void*> cached;
  std::va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && no_descriptor()) return -1;
  return real<decltype(&fcntl)>(cached, "fcntl")(fd, command, argument);
}

long syscall(long number, ...) noexcept {
  static std::atomic<void*> cached;
  std::va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_pidfd_open && no_descriptor()) return -1;
  return real<decltype(&syscall)>(cached, "syscall")(number, arguments[0], arguments[1], arguments[2], arguments[3],
                                                     arguments[4], arguments[5]);
}

}  // extern "C"
#pragma GCC visibility pop
// NOLINTEND

#endif
