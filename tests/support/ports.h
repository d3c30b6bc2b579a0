// Reserves ports on which rank 0 of a test's job can listen, for tests in which all ranks must know the port before
// rank 0 binds it.
//
// It is not enough to bind port 0, read the port and close the socket, because the kernel may then give the port to
// the next connection of any program. So the ports here are outside the range from which the kernel assigns ports to
// connections (ip_local_port_range), outside the range of ports that the library derives from job ids (20000-32767),
// and reserved by a lock, so that two tests never get the same port. The lock is on a byte of a file that all tests
// of a user share: byte N stands for port N. The system releases it after the process and all children that it has
// forked have exited. ports.py and ports.sh do the same for other tests.
//
// If the port need not be known beforehand, bind port 0 and pass the port on, because that is simpler.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>

namespace tutti::test {

class PortReservations {
 public:
  // Returns a port that is free on every address of this machine, and reserved for this process and its children
  // until they exit. Any thread.
  std::uint16_t next() {
    const std::scoped_lock lock(mutex_);
    if (owner_ != getpid()) open_anew();
    // A test that is repeated for hours reuses its own ports, oldest first, so that it does not reserve all ports.
    for (std::size_t i = 0; i < reserved_.size() && reserved_.size() >= kMost; ++i) {
      const std::uint32_t oldest = reserved_.front();
      reserved_.pop_front();
      reserved_.push_back(oldest);
      if (can_be_bound(oldest)) return static_cast<std::uint16_t>(oldest);
    }
    for (std::uint32_t i = 0; i < 2 * (kLast - kFirst); ++i) {
      at_ = at_ >= kLast ? kFirst : at_ + 1;
      if ((at_ < lowest_of_kernel_ || at_ > highest_of_kernel_) && reserve(at_) && can_be_bound(at_)) {
        reserved_.push_back(at_);
        return static_cast<std::uint16_t>(at_);
      }
    }
    ADD_FAILURE() << "no free port in " << kFirst << " to " << kLast;
    return 0;
  }

 private:
  static constexpr std::uint32_t kFirst = 10'000, kLast = 19'999;
  static constexpr std::size_t kMost = 300;

  // A lock belongs to the open file description, which a forked child shares with its parent. So the child opens the
  // file again, and does not close the parent's descriptor, because of its locks. Each process starts at a different
  // port, so that few processes try the same ports.
  void open_anew() {
    owner_ = getpid();
    reserved_.clear();
    at_ = kFirst + static_cast<std::uint32_t>(owner_) * 61 % (kLast - kFirst);
    const auto path = std::filesystem::temp_directory_path() / ("tutti-test-ports-" + std::to_string(getuid()));
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    EXPECT_GE(file_, 0) << path;
    std::FILE* const range = std::fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    if (range == nullptr) return;
    unsigned lowest = 0, highest = 0;
    // If the kernel's range includes all of our ports, the ports must be shared with the kernel.
    if (std::fscanf(range, "%u %u", &lowest, &highest) == 2 && (lowest > kFirst + 1000 || highest + 1000 < kLast)) {
      lowest_of_kernel_ = lowest;
      highest_of_kernel_ = highest;
    }
    std::fclose(range);
  }
  bool reserve(std::uint32_t port) const {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = port;
    lock.l_len = 1;
    return fcntl(file_, F_OFD_SETLK, &lock) == 0;
  }
  static bool can_be_bound(std::uint32_t port) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);  // binds both families if the machine has IPv6
    const int off = 0;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(port));
    bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&any6), sizeof(any6)) == 0;
    if (fd >= 0) close(fd);
    if (bound) return true;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_port = htons(static_cast<std::uint16_t>(port));
    bound = bind(fd, reinterpret_cast<sockaddr*>(&any4), sizeof(any4)) == 0;
    close(fd);
    return bound;
  }

  std::mutex mutex_;
  pid_t owner_ = -1;
  int file_ = -1;
  std::uint32_t at_ = kFirst;
  std::deque<std::uint32_t> reserved_;
  std::uint32_t lowest_of_kernel_ = 1, highest_of_kernel_ = 0;  // an empty range
};

inline std::uint16_t free_port() {
  static PortReservations reservations;
  return reservations.next();
}

}  // namespace tutti::test
