// Tests with a system that has no memory for epoll_ctl(). The failure must not look like the end of a process.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "tcp_support.h"

namespace {
std::atomic<bool> refuses_watches = false;
}  // namespace

// Replaces the C library's epoll_ctl() in this whole program.
extern "C" int epoll_ctl(int epoll, int operation, int fd, struct epoll_event* event) noexcept {
  if (refuses_watches && operation == EPOLL_CTL_ADD) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}

namespace tutti::tcp_test {
namespace {

TEST(TcpWatch, AConnectionThatCannotBeWatchedIsKept) {
  TestJob job;
  auto send = job.send(1, 0);
  auto receive = job.receive(1, 0);
  ASSERT_TRUE(send->ready());
  std::memcpy(send->slot(), "text", 5);
  send->send_slot(5, call(1));
  refuses_watches = true;
  const bool arrived = eventually(
      [&] {
        job.ranks[1]->pump();
        job.ranks[0]->pump();
        return receive->arrival(call(1)) == Arrival::kMessage;
      },
      5000);
  refuses_watches = false;
  EXPECT_TRUE(arrived);
  EXPECT_EQ(job.ranks[1]->peer_status(0).life, PeerLife::kLive);
}

// The connection is accepted even if its preamble arrives later.
TEST(TcpWatch, ASilentConnectionThatCannotBeWatchedIsHeardLater) {
  PlaintextJob job;
  RawPeer peer(job.addresses[0]);
  refuses_watches = true;
  for (int look = 0; look < 10; ++look) job.ranks[0]->pump();
  peer.write(peer.preamble(job.options(0), 1));
  peer.write(FrameHeader{.kind = FrameKind::kMessage, .bytes = 0, .tag = call(1, 0)});
  auto receive = job.receive(1, 0);
  const bool arrived = eventually(
      [&] {
        job.ranks[0]->pump();
        return receive->arrival(call(1, 0)) == Arrival::kMessage;
      },
      5000);
  refuses_watches = false;
  EXPECT_TRUE(arrived);
}

std::int64_t ns_of(std::chrono::milliseconds time) { return std::chrono::nanoseconds(time).count(); }

// A socket that cannot be watched still ends a sleep: after a delay while watching fails, and immediately
// afterwards.
TEST(TcpWatch, ASleepEndsByASocketThatCouldNotBeWatched) {
  SteadyClock clock;
  auto doorbell = EpollDoorbell::create().value();
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Socket near(ends[0]);
  const Socket far(ends[1]);
  refuses_watches = true;
  doorbell->watch(near.get());
  for (const bool refused : {true, false}) {
    refuses_watches = refused;
    doorbell->arm();
    ASSERT_EQ(write(far.get(), "x", 1), 1);
    const std::int64_t start_ns = clock.now_ns();
    doorbell->sleep(ns_of(test::patience()));
    EXPECT_LT(clock.now_ns() - start_ns, ns_of(test::patience())) << (refused ? "refused" : "watched");
  }
}

TEST(TcpWatch, AConnectionOfThisRankThatCannotBeWatchedIsMade) {
  TestJob job;
  refuses_watches = true;
  auto send = job.ranks[1]->open_send(0, 0);
  refuses_watches = false;
  ASSERT_TRUE(send.ok()) << send.error().message;
}

}  // namespace
}  // namespace tutti::tcp_test
