// A system that is out of memory for epoll_ctl(): it must not look like the end of a process.
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

// In place of the C library's, for all of this program.
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
  World world;
  auto send = world.send(1, 0);
  auto receive = world.receive(1, 0);
  ASSERT_TRUE(send->ready());
  std::memcpy(send->slot(), "text", 5);
  send->send_slot(5, call(1));
  refuses_watches = true;
  const bool arrived = eventually(
      [&] {
        world.ranks[1]->pump();
        world.ranks[0]->pump();
        return receive->arrival(call(1)) == Arrival::kMessage;
      },
      5000);
  refuses_watches = false;
  EXPECT_TRUE(arrived);
  EXPECT_EQ(world.ranks[1]->peer_status(0).life, PeerLife::kLive);
}

// It is heard also if it says later who it is.
TEST(TcpWatch, ASilentConnectionThatCannotBeWatchedIsHeardLater) {
  ClearWorld world;
  RawPeer peer(world.addresses[0]);
  refuses_watches = true;
  for (int look = 0; look < 10; ++look) world.ranks[0]->pump();
  peer.write(peer.preamble(world.options(0), 1));
  peer.write(FrameHeader{.kind = FrameKind::kMessage, .bytes = 0, .tag = call(1, 0)});
  auto receive = world.receive(1, 0);
  const bool arrived = eventually(
      [&] {
        world.ranks[0]->pump();
        return receive->arrival(call(1, 0)) == Arrival::kMessage;
      },
      5000);
  refuses_watches = false;
  EXPECT_TRUE(arrived);
}

std::int64_t ns_of(std::chrono::milliseconds time) { return std::chrono::nanoseconds(time).count(); }

// Also what cannot be watched ends a sleep: late while that lasts, at once when it is over.
TEST(TcpWatch, ASleepEndsByASocketThatCouldNotBeWatched) {
  SteadyClock clock;
  auto bell = EpollDoorbell::create().value();
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Socket near(ends[0]);
  const Socket far(ends[1]);
  refuses_watches = true;
  bell->watch(near.get());
  for (const bool refused : {true, false}) {
    refuses_watches = refused;
    bell->arm();
    ASSERT_EQ(write(far.get(), "x", 1), 1);
    const std::int64_t start_ns = clock.now_ns();
    bell->sleep(ns_of(test::patience()));
    EXPECT_LT(clock.now_ns() - start_ns, ns_of(test::patience())) << (refused ? "refused" : "watched");
  }
}

TEST(TcpWatch, AConnectionOfThisRankThatCannotBeWatchedIsMade) {
  World world;
  refuses_watches = true;
  auto send = world.ranks[1]->open_send(0, 0);
  refuses_watches = false;
  ASSERT_TRUE(send.ok()) << send.error().message;
}

}  // namespace
}  // namespace tutti::tcp_test
