// Tests of the set-up on one machine when programs that are not ranks connect to a rank's Unix socket.
#include "transports/shm/unix_greetings.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/patience.h"
#include "transports/shm/unix_exchange.h"

namespace tutti {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// A thread that connects to a listener again and again until the object is destroyed.
class RepeatedConnector {
 public:
  // `kept`: how many connections stay open without sending anything. The others are closed immediately.
  RepeatedConnector(const std::string& address, std::size_t kept) {
    where_.sun_family = AF_UNIX;
    const std::string name = UnixAddress::parse(address).value().name;
    std::memcpy(where_.sun_path + 1, name.data(), name.size());
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    thread_ = std::thread([this, kept] {
      std::vector<int> open;
      while (!stopped_) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
        if (connect(fd, reinterpret_cast<sockaddr*>(&where_), length_) == 0) ++attempts_;
        if (open.size() < kept) {
          open.push_back(fd);
        } else {
          close(fd);
        }
        sched_yield();
      }
      for (const int fd : open) close(fd);
    });
  }
  ~RepeatedConnector() {
    stopped_ = true;
    thread_.join();
  }
  std::size_t attempts() const { return attempts_; }

 private:
  sockaddr_un where_{};
  socklen_t length_ = 0;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::size_t> attempts_ = 0;
  std::thread thread_;
};

TEST(UnixGreetings, StrangersThatKeepComingDoNotMoveTheDeadline) {
  for (const std::size_t kept : {0u, 8u}) {
    SteadyClock clock;
    auto listener = UnixExchange::listen(0, 2).value();
    std::optional<RepeatedConnector> strangers(std::in_place, listener->address(), kept);
    std::atomic<bool> ended = false;
    std::thread call([&] {
      const Status absent = listener->connect({"", ""}, {0, 1}, clock, clock.now_ns() + kSecond / 5);
      ended = true;
      ASSERT_FALSE(absent.ok());
      EXPECT_EQ(absent.error().code, ErrorCode::kTimeout);
      EXPECT_EQ(absent.error().rank, 1);
    });
    EXPECT_TRUE(test::eventually([&] { return ended.load(); })) << kept << " connections stay open";
    EXPECT_GT(strangers->attempts(), 0u);
    strangers.reset();
    call.join();
  }
}

TEST(UnixGreetings, APeerIsLetInBesideStrangersThatStaySilent) {
  SteadyClock clock;
  auto listener = UnixExchange::listen(0, 2).value();
  auto other = UnixExchange::listen(1, 2).value();
  const std::vector<std::string> addresses = {listener->address(), other->address()};
  const RepeatedConnector strangers(listener->address(), 200);
  ASSERT_TRUE(test::eventually([&] { return strangers.attempts() >= 16; }))
      << "they must be in the queue before the peer";
  const std::int64_t deadline_ns =
      clock.now_ns() + std::int64_t{test::scaled(std::chrono::seconds(5)).count()} * 1'000'000;
  std::thread right([&] { EXPECT_TRUE(other->connect(addresses, {0, 1}, clock, deadline_ns).ok()); });
  EXPECT_TRUE(listener->connect(addresses, {0, 1}, clock, deadline_ns).ok())
      << "the listener must not wait for a silent connection";
  right.join();
}

int connect_silently(const UnixAddress& address) {
  SteadyClock clock;
  return wait_and_dial(address, clock, clock.now_ns() + kSecond).fd;
}

// Unknown processes hold all descriptors that this process has left. The peer's connection is behind theirs in the
// queue.
TEST(UnixGreetings, SilentConnectionsMakeRoomWhenDescriptorsRunOut) {
  SteadyClock clock;
  auto listener = UnixExchange::listen(0, 2).value();
  auto other = UnixExchange::listen(1, 2).value();
  const std::vector<std::string> addresses = {listener->address(), other->address()};
  std::vector<OwnedDescriptor> open;
  for (int i = 0; i < 12; ++i) open.emplace_back(connect_silently(UnixAddress::parse(addresses[0]).value()));
  const std::int64_t deadline_ns = clock.now_ns() + std::chrono::nanoseconds(test::patience()).count();
  ASSERT_TRUE(other->connect(addresses, {0, 1}, clock, deadline_ns).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit lower{.rlim_cur = static_cast<rlim_t>(open.back().get()) + 60, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  const std::size_t used = open.size();
  for (int fd = dup(STDIN_FILENO); fd >= 0; fd = dup(STDIN_FILENO)) open.emplace_back(fd);
  EXPECT_EQ(errno, EMFILE);
  ASSERT_GT(open.size(), used + 3);
  for (int i = 0; i < 3; ++i) open.pop_back();  // leaves three descriptors free
  const Status connected = listener->connect(addresses, {0, 1}, clock, deadline_ns);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(connected.ok()) << connected.error().message;
}

// The first packet of the oldest connection arrives while another connection is being accepted.
TEST(UnixGreetings, AConnectionIsReadOnceMoreBeforeItIsClosed) {
  const UnixAddress address = UnixAddress::random().value();
  const OwnedDescriptor listener(listen_at(address, 8).value());
  const OwnedDescriptor slow(connect_silently(address));
  const OwnedDescriptor quick(connect_silently(address));
  ASSERT_EQ(send(quick.get(), "quick", 5, 0), 5);
  std::vector<std::string> packets;
  UnixGreetings greetings(listener.get(), 0, 16, [&](int, pid_t, std::span<const std::byte> packet) {
    packets.emplace_back(reinterpret_cast<const char*>(packet.data()), packet.size());
    if (packets.size() == 1) send(slow.get(), "slow", 4, 0);
    return false;
  });
  ASSERT_TRUE(greetings.accept_some().ok());
  greetings.receive_packets();
  EXPECT_EQ(packets, (std::vector<std::string>{"quick", "slow"}));
}

}  // namespace
}  // namespace tutti
