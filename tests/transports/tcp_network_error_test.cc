// Tests with a network that fails for a moment. Such an error does not prove that the process of a peer has ended.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tcp_support.h"

namespace {
std::atomic<bool> network_is_down = false;

bool fails() {
  if (!network_is_down) return false;
  errno = EHOSTUNREACH;
  return true;
}
}  // namespace

// Replace the functions of the C library in this whole program.
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  return fails() ? -1 : syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
}
extern "C" ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  return fails() ? -1 : syscall(SYS_recvfrom, fd, data, bytes, flags, nullptr, nullptr);
}

namespace tutti::tcp_test {
namespace {

// The parameter: whether the connections are encrypted.
class TcpNetworkError : public testing::TestWithParam<bool> {};

// Rank 0 opens its control connection to rank 1 while the network is down. When the network works again, the
// connection must be opened again, and rank 1 must learn the state of rank 0.
TEST_P(TcpNetworkError, BeforeTheFirstBytesDoesNotEndAControlConnectionForEver) {
  TestJob job(2, "127.0.0.1", kSlots, GetParam());
  network_is_down = true;
  job.ranks[0]->announce_abort();
  network_is_down = false;
  EXPECT_NE(job.ranks[0]->troubles().find("is there a route"), std::string::npos) << job.ranks[0]->troubles();
  EXPECT_TRUE(eventually([&] {
    for (auto& rank : job.ranks) rank->pump();
    return job.ranks[1]->peer_status(0).life == PeerLife::kAborted;
  }));
  EXPECT_EQ(job.ranks[0]->peer_status(1).life, PeerLife::kLive);
  EXPECT_EQ(job.ranks[0]->troubles(), "");
}

INSTANTIATE_TEST_SUITE_P(InClearAndEncrypted, TcpNetworkError, testing::Bool());

}  // namespace
}  // namespace tutti::tcp_test
