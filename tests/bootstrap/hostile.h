// Tools for the security tests: a proxy that records or changes the bytes between ranks, and clients that attack a
// port.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/raw_rank.h"
#include "tests/support/patience.h"

namespace tutti::test {

// Opens a listening socket on a free port of loopback. The caller owns the descriptor.
inline int listen_anywhere(std::uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd, 64), 0);
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.sin_port);
  return fd;
}

// Connects to a port of loopback, and retries until a program listens there. Returns -1 if none does in time, or if
// give_up() returns true.
inline int dial(
    std::uint16_t port, const std::function<bool()>& give_up = [] { return false; }) {
  int fd = -1;
  static_cast<void>(eventually([&] {
    fd = connection_to(port);
    return fd >= 0 || give_up();
  }));
  const timeval limit{.tv_sec = patience() / std::chrono::seconds(1), .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  return fd;
}

// Forwards connections to another port of loopback, records their bytes, and may change them. Connections wait until
// begin() is called, so that the test can fork its processes before the proxy starts its thread.
class Proxy {
 public:
  struct Seen {
    std::string to_server, to_rank;
  };
  // Returns the new value of a byte. `place` is its offset in its direction. Runs in the proxy's thread.
  using Change = std::function<char(bool to_server, std::size_t place, char byte)>;

  explicit Proxy(std::uint16_t target, Change change = {}) : target_(target), change_(std::move(change)) {
    listener_ = listen_anywhere(port_);
  }
  ~Proxy() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    close(listener_);
    for (const Pair& pair : pairs_) {
      close(pair.rank);
      close(pair.server);
    }
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  void begin() {
    thread_ = std::thread([this] { run(); });
  }
  std::uint16_t port() const { return port_; }
  // The bytes of the i-th connection that were forwarded so far.
  Seen seen(std::size_t i) const {
    const std::scoped_lock lock(mutex_);
    return i < pairs_.size() ? pairs_[i].seen : Seen{};
  }

 private:
  struct Pair {
    int rank = -1, server = -1;
    bool open = true;
    Seen seen;
  };
  void run() {
    while (!stop_) {
      std::vector<pollfd> waits{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const Pair& pair : pairs_) {
        waits.push_back({.fd = pair.open ? pair.rank : -1, .events = POLLIN, .revents = 0});
        waits.push_back({.fd = pair.open ? pair.server : -1, .events = POLLIN, .revents = 0});
      }
      if (poll(waits.data(), waits.size(), 20) <= 0) continue;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        if (waits[1 + 2 * i].revents != 0) pass(pairs_[i], true);
        if (waits[2 + 2 * i].revents != 0) pass(pairs_[i], false);
      }
      if (waits[0].revents == 0) continue;
      const int rank = accept(listener_, nullptr, nullptr);
      const int server = dial(target_, [this] { return stop_.load(); });
      const std::scoped_lock lock(mutex_);
      pairs_.push_back({.rank = rank, .server = server, .open = rank >= 0 && server >= 0, .seen = {}});
    }
  }
  void pass(Pair& pair, bool to_server) {
    std::array<char, 4096> bytes;
    const ssize_t got = pair.open ? recv(to_server ? pair.rank : pair.server, bytes.data(), bytes.size(), 0) : 0;
    const std::scoped_lock lock(mutex_);
    std::string& seen = to_server ? pair.seen.to_server : pair.seen.to_rank;
    const std::size_t count = got > 0 ? static_cast<std::size_t>(got) : 0;
    for (std::size_t i = 0; i < count && change_; ++i) bytes[i] = change_(to_server, seen.size() + i, bytes[i]);
    seen.append(bytes.data(), count);
    const bool passed =
        count > 0 && send(to_server ? pair.server : pair.rank, bytes.data(), count, MSG_NOSIGNAL) == got;
    if (passed) return;
    pair.open = false;
    shutdown(pair.rank, SHUT_RDWR);
    shutdown(pair.server, SHUT_RDWR);
  }

  const std::uint16_t target_;
  const Change change_;
  std::uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::deque<Pair> pairs_;
  std::thread thread_;
};

// Opens connections to a port continuously and keeps the last `held` of them open. Each sends nothing, or the first
// bytes of a message, and later another byte now and then.
class Flood {
 public:
  Flood(std::uint16_t port, std::size_t held) : thread_([=, this] { run(port, held); }) {}
  ~Flood() {
    stop_ = true;
    thread_.join();
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;
  std::size_t opened() const { return opened_; }
  // number of connections that got a challenge or a welcome from a server
  std::size_t admitted() const { return admitted_; }

 private:
  void run(std::uint16_t port, std::size_t held) {
    std::deque<int> fds;
    while (!stop_) {
      const int fd = dial(port, [this] { return stop_.load(); });
      if (fd < 0) break;
      ++opened_;
      // Sends the first byte of a possible message, or the first bytes of a frame, or nothing.
      if (opened_ % 3 == 1) static_cast<void>(send(fd, "T", 1, MSG_NOSIGNAL));
      if (opened_ % 3 == 2) static_cast<void>(send(fd, "\x40\0\0\0T", 5, MSG_NOSIGNAL));
      fds.push_back(fd);
      if (fds.size() > held) {
        drop(fds.front());
        fds.pop_front();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (opened_ % 50 == 0) {
        for (const int one : fds) static_cast<void>(send(one, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
      }
    }
    for (const int fd : fds) drop(fd);
  }
  void drop(int fd) {
    std::array<char, 5> answer{};
    const ssize_t got = recv(fd, answer.data(), answer.size(), MSG_DONTWAIT);
    if (got == 5 && answer[4] != '\0') ++admitted_;
    close(fd);
  }

  std::atomic<bool> stop_ = false;
  std::atomic<std::size_t> opened_ = 0, admitted_ = 0;
  std::thread thread_;
};

}  // namespace tutti::test
