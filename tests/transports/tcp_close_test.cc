// Tests of close frames on sockets that are almost full: the system takes only a part of the frame at once.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "tcp_support.h"

namespace {
// send() takes at most this many bytes in one call, and each second call of it takes none.
std::atomic<std::size_t> most_at_once = ~std::size_t{0};
std::atomic<unsigned> limited_calls = 0;
}  // namespace

// Replaces the C library's send() in this whole program.
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  const std::size_t most = most_at_once;
  if (most < bytes && ++limited_calls % 2 == 0) {
    errno = EAGAIN;
    return -1;
  }
  return syscall(SYS_sendto, fd, data, std::min(bytes, most), flags, nullptr, 0);
}

namespace tutti::tcp_test {
namespace {

class TcpClose : public testing::TestWithParam<bool> {};

// The parameter is true if the connections are destroyed before the transport, as in the runtime.
TEST_P(TcpClose, AFrameThatASocketTakesInPartsArrivesWhole) {
  TestJob job;
  auto send = job.send(0, 1);
  auto receive = job.receive(0, 1);
  job.ranks[0]->enter_call(call(1), {});
  send->send_from(nullptr, 0, call(1));
  ASSERT_TRUE(job.flushed(0));
  job.ranks[0]->leave_call(call(1), std::nullopt);
  ASSERT_EQ(await(*receive, call(1)), Arrival::kMessage);
  receive->release();
  if (GetParam()) send = nullptr;
  most_at_once = 10;
  job.ranks[0] = nullptr;
  most_at_once = ~std::size_t{0};
  EXPECT_GT(limited_calls.exchange(0), 1u) << "the limit had no effect";
  job.endpoints[0] = nullptr;  // the process has ended, so rank 1 can learn of the end only from this connection
  EXPECT_EQ(life_of(job, 1, 0, PeerLife::kLeft), PeerLife::kLeft);
  EXPECT_TRUE(job.ranks[1]->peer_has_left(0, 1));
}

INSTANTIATE_TEST_SUITE_P(ConnectionsDestroyedFirst, TcpClose, testing::Bool());

}  // namespace
}  // namespace tutti::tcp_test
