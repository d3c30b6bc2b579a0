// Helpers for tests of several processes with the fake driver: two child processes, and a channel between them. The
// parent must not call the driver, because a forked child cannot use a driver that its parent has initialized. If a
// check fails, the child prints a message and exits, and the parent reports the failure.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>

#include "tests/device/unit/driver_support.h"
#include "tests/support/patience.h"

namespace tutti::cuda {

// If `good` is false, prints the source location of the call and ends the process with status 1.
inline void must(bool good, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (good) return;
  std::fprintf(stderr, "%s:%d: the check failed\n", file, line);
  _exit(1);
}

// One end of a channel (a socket pair) between two processes. It carries values and file descriptors.
class ProcessChannel {
 public:
  explicit ProcessChannel(int fd) : fd_(fd) {}
  template <class T>
  void send(const T& value) const {
    must(write(fd_, &value, sizeof(value)) == sizeof(value));
  }
  template <class T>
  T receive() const {
    T value{};
    must(recv(fd_, &value, sizeof(value), MSG_WAITALL) == sizeof(value));
    return value;
  }
  void send_file(int file) const { message(file, nullptr); }
  int receive_file() const {
    int file = -1;
    message(-1, &file);
    return file;
  }

 private:
  void message(int out, int* in) const {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    char byte = 0;
    iovec part{&byte, 1};
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control.data();
    head.msg_controllen = control.size();
    if (in != nullptr) {
      must(recvmsg(fd_, &head, 0) == 1);
      std::memcpy(in, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof(int));
      return;
    }
    cmsghdr* rights = CMSG_FIRSTHDR(&head);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &out, sizeof(int));
    must(sendmsg(fd_, &head, 0) == 1);
  }
  int fd_;
};

// The driver in this process, with the primary context of a device, which is current.
struct DeviceSession {
  const Driver& driver;
  const DriverApi& api;
  PrimaryContext primary;
  ContextScope scope;

  static DeviceSession on(int device) {
    const Driver* driver = Driver::open().value();
    auto primary = PrimaryContext::retain(*driver, device).value();
    auto scope = ContextScope::enter(*driver, primary.context()).value();
    return {*driver, driver->api(), std::move(primary), std::move(scope)};
  }
};

// Runs `first` and `second` in a process each. Both must exit with status 0 and must not leak driver objects.
inline void run_two(const std::function<void(ProcessChannel)>& first,
                    const std::function<void(ProcessChannel)>& second) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  std::array<pid_t, 2> children{};
  for (std::size_t i = 0; i < 2; ++i) {
    children[i] = fork();
    ASSERT_GE(children[i], 0);
    if (children[i] != 0) continue;
    alarm(static_cast<unsigned>(2 * test::patience() / std::chrono::seconds(1)));
    (i == 0 ? first : second)(ProcessChannel(ends[i]));
    must(fake::control()->leaks().empty());
    _exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace tutti::cuda
