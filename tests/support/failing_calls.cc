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
std::atomic<std::int64_t> fails_at = 0;  // 0: nothing is counted
std::atomic<std::int64_t> count = 0;

[[maybe_unused]] bool fails(Fault fault, int error) {
  if (fails_at == 0 || chosen != fault) return false;
  const std::int64_t number = ++count;
  if (fault == Fault::kDescriptors ? number < fails_at : number != fails_at) return false;
  errno = error;
  return true;
}

std::atomic<void (*)()> hook_of_threads = nullptr;

struct Start {
  void* (*run)(void*);
  void* argument;
};

[[maybe_unused]] void* run_with_hook(void* memory) {
  auto* const kept = static_cast<Start*>(memory);
  const Start start = *kept;
  std::free(kept);
  if (auto* const hook = hook_of_threads.load()) hook();
  return start.run(start.argument);
}

[[maybe_unused]] bool no_descriptor() {
  return fails(Fault::kDescriptor, EMFILE) || fails(Fault::kDescriptors, EMFILE);
}

// The function of the C library. Found again by each thread that is too early, which does no harm; a guarded static
// variable could call one of the functions below while it waits.
template <class Function>
Function real(std::atomic<void*>& kept, const char* name) {
  void* found = kept.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = dlsym(RTLD_NEXT, name);
    kept.store(found, std::memory_order_relaxed);
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
using tutti::test::failing_calls::Start;

// NOLINTBEGIN: the names, parameters and variable arguments are the C library's
#pragma GCC visibility push(default)
extern "C" {

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static std::atomic<void*> kept;
  if (fails(Fault::kMapping, ENOMEM)) return MAP_FAILED;
  return real<decltype(&mmap)>(kept, "mmap")(address, bytes, protection, flags, fd, offset);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static std::atomic<void*> kept;
  char byte = 0;
  const bool has_come = recv(fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0;
  if (has_come && fails(Fault::kMessage, ENOMEM)) return -1;
  if (has_come && fails(Fault::kLostDescriptor, 0)) message->msg_controllen = 0;
  return real<decltype(&recvmsg)>(kept, "recvmsg")(fd, message, flags);
}

void* dlopen(const char* file, int flags) noexcept {
  static std::atomic<void*> kept;
  if (file != nullptr && fails(Fault::kLibrary, 0)) file = "libof-failing-calls.so";  // sets what dlerror() says
  return real<decltype(&dlopen)>(kept, "dlopen")(file, flags);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) noexcept {
  static std::atomic<void*> kept;
  if (fails(Fault::kThread, errno)) return EAGAIN;
  const auto create = real<decltype(&pthread_create)>(kept, "pthread_create");
  if (hook_of_threads == nullptr) return create(thread, attributes, run, argument);
  auto* const start = static_cast<Start*>(std::malloc(sizeof(Start)));  // not by a counted operator new
  if (start == nullptr) return EAGAIN;
  *start = {run, argument};
  const int error = create(thread, attributes, run_with_hook, start);
  if (error != 0) std::free(start);
  return error;
}

int posix_fallocate(int fd, off_t offset, off_t bytes) {
  static std::atomic<void*> kept;
  if (fails(Fault::kFileSpace, errno)) return ENOSPC;
  return real<decltype(&posix_fallocate)>(kept, "posix_fallocate")(fd, offset, bytes);
}

int ftruncate(int fd, off_t bytes) noexcept {
  static std::atomic<void*> kept;
  if (fails(Fault::kFileSpace, ENOSPC)) return -1;
  return real<decltype(&ftruncate)>(kept, "ftruncate")(fd, bytes);
}

int socket(int domain, int type, int protocol) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&socket)>(kept, "socket")(domain, type, protocol);
}

int accept(int fd, sockaddr* address, socklen_t* bytes) {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&accept)>(kept, "accept")(fd, address, bytes);
}

int accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&accept4)>(kept, "accept4")(fd, address, bytes, flags);
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&memfd_create)>(kept, "memfd_create")(name, flags);
}

int epoll_create(int size) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&epoll_create)>(kept, "epoll_create")(size);
}

int epoll_create1(int flags) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&epoll_create1)>(kept, "epoll_create1")(flags);
}

int eventfd(unsigned value, int flags) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&eventfd)>(kept, "eventfd")(value, flags);
}

int timerfd_create(int clock, int flags) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&timerfd_create)>(kept, "timerfd_create")(clock, flags);
}

int dup(int fd) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&dup)>(kept, "dup")(fd);
}

int getifaddrs(ifaddrs** found) noexcept {
  static std::atomic<void*> kept;
  return no_descriptor() ? -1 : real<decltype(&getifaddrs)>(kept, "getifaddrs")(found);
}

std::FILE* fopen(const char* path, const char* mode) {
  static std::atomic<void*> kept;
  return no_descriptor() ? nullptr : real<decltype(&fopen)>(kept, "fopen")(path, mode);
}

std::FILE* fopen64(const char* path, const char* mode) {
  static std::atomic<void*> kept;
  return no_descriptor() ? nullptr : real<decltype(&fopen64)>(kept, "fopen64")(path, mode);
}

DIR* opendir(const char* path) {
  static std::atomic<void*> kept;
  return no_descriptor() ? nullptr : real<decltype(&opendir)>(kept, "opendir")(path);
}

// The last parameter of the next three is there or not, as the others say. Reading one that is not there gives some
// value, which the function then ignores.
int open(const char* path, int flags, ...) {
  static std::atomic<void*> kept;
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return no_descriptor() ? -1 : real<decltype(&open)>(kept, "open")(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static std::atomic<void*> kept;
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return no_descriptor() ? -1 : real<decltype(&openat)>(kept, "openat")(folder, path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  static std::atomic<void*> kept;
  std::va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if ((command == F_DUPFD || command == F_DUPFD_CLOEXEC) && no_descriptor()) return -1;
  return real<decltype(&fcntl)>(kept, "fcntl")(fd, command, argument);
}

long syscall(long number, ...) noexcept {
  static std::atomic<void*> kept;
  std::va_list rest;
  va_start(rest, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_pidfd_open && no_descriptor()) return -1;
  return real<decltype(&syscall)>(kept, "syscall")(number, arguments[0], arguments[1], arguments[2], arguments[3],
                                                   arguments[4], arguments[5]);
}

}  // extern "C"
#pragma GCC visibility pop
// NOLINTEND

#endif
