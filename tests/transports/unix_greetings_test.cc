// Set-up on one machine beside programs that connect to a rank's Unix socket and are no ranks.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/patience.h"
#include "transports/shm/unix_exchange.h"

namespace tutti {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Connects to a listener again and again, from a thread, until it ends.
class Knocking {
 public:
  // `kept`: how many connections stay open and silent; the others are closed at once.
  Knocking(const std::string& address, std::size_t kept) {
    where_.sun_family = AF_UNIX;
    const std::string name = UnixAddress::parse(address).value().name;
    std::memcpy(where_.sun_path + 1, name.data(), name.size());
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    thread_ = std::thread([this, kept] {
      std::vector<int> open;
      while (!over_) {
        const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
        if (connect(fd, reinterpret_cast<sockaddr*>(&where_), length_) == 0) ++knocks_;
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
  ~Knocking() {
    over_ = true;
    thread_.join();
  }
  std::size_t knocks() const { return knocks_; }

 private:
  sockaddr_un where_{};
  socklen_t length_ = 0;
  std::atomic<bool> over_ = false;
  std::atomic<std::size_t> knocks_ = 0;
  std::thread thread_;
};

TEST(UnixGreetings, StrangersThatKeepComingDoNotMoveTheDeadline) {
  for (const std::size_t kept : {0u, 8u}) {
    SteadyClock clock;
    auto listener = UnixExchange::listen(0, 2).value();
    std::optional<Knocking> strangers(std::in_place, listener->address(), kept);
    std::atomic<bool> ended = false;
    std::thread call([&] {
      const Status absent = listener->connect({"", ""}, {0, 1}, clock, clock.now_ns() + kSecond / 5);
      ended = true;
      ASSERT_FALSE(absent.ok());
      EXPECT_EQ(absent.error().code, ErrorCode::kTimeout);
      EXPECT_EQ(absent.error().rank, 1);
    });
    EXPECT_TRUE(test::eventually([&] { return ended.load(); })) << kept << " stay open";
    EXPECT_GT(strangers->knocks(), 0u);
    strangers.reset();
    call.join();
  }
}

TEST(UnixGreetings, APeerIsLetInBesideStrangersThatStaySilent) {
  SteadyClock clock;
  auto listener = UnixExchange::listen(0, 2).value();
  auto other = UnixExchange::listen(1, 2).value();
  const std::vector<std::string> addresses = {listener->address(), other->address()};
  const Knocking strangers(listener->address(), 200);
  ASSERT_TRUE(test::eventually([&] { return strangers.knocks() >= 16; })) << "they are in the queue before the peer";
  const std::int64_t deadline_ns =
      clock.now_ns() + std::int64_t{test::scaled(std::chrono::seconds(5)).count()} * 1'000'000;
  std::thread right([&] { EXPECT_TRUE(other->connect(addresses, {0, 1}, clock, deadline_ns).ok()); });
  EXPECT_TRUE(listener->connect(addresses, {0, 1}, clock, deadline_ns).ok());
  right.join();
  EXPECT_LT(clock.now_ns(), deadline_ns) << "each silent connection would cost a second if it were waited for";
}

}  // namespace
}  // namespace tutti
