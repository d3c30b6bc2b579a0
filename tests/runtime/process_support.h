// Helpers of the tests whose ranks are processes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/support.h"

namespace tutti::test {

inline std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

inline CommunicatorOptions job(std::int32_t rank, std::int32_t size, std::uint16_t port) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.root = "127.0.0.1:" + std::to_string(port);
  options.job_id = "processes-test";
  options.setup_timeout = std::chrono::seconds(20);
  options.timeout = std::chrono::seconds(20);
  return options;
}

#if defined(__SANITIZE_THREAD__)
inline constexpr unsigned kLongestChildS = 400;
#else
inline constexpr unsigned kLongestChildS = 60;
#endif

// Runs body() in a child; its return value is the exit status.
inline pid_t start(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestChildS);  // no child outlives a broken test
    _exit(body());
  }
  return child;
}

inline int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tutti::test
