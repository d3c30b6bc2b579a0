// Tests of SegmentExchange: how ranks of one machine find each other, map each other's memory, wake each other, and
// share one exchange among several communicators.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "shm_ranks.h"
#include "test_doorbell.h"
#include "transports/shm/unix_address.h"

namespace tutti {
namespace {

constexpr SegmentShape kShape{.ranks = 2, .slots = 2, .slot_bytes = 4096};
constexpr std::int64_t kSecond = 1'000'000'000;

std::shared_ptr<Mapping> memory(const char* text = "") {
  auto mapping = Mapping::create(4096, false).value();
  std::strcpy(reinterpret_cast<char*>(mapping->data()), text);
  return mapping;
}

std::string text_at(const std::shared_ptr<Mapping>& mapping) {
  return mapping == nullptr ? "nothing" : reinterpret_cast<const char*>(mapping->data());
}

bool readable(const std::vector<int>& descriptors) {
  for (const int fd : descriptors) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, 0) == 1) return true;
  }
  return false;
}

TEST(UnixExchange, PassesMemoryBetweenRanksAndNoticesTheEnd) {
  Exchanges ranks = unix_exchanges(2);
  auto shared = memory("from a");
  const std::uint32_t first = ranks[0]->share(shared, {});
  auto seen = ranks[1]->find(0, first);
  ASSERT_NE(seen, nullptr);
  EXPECT_NE(seen->data(), shared->data());
  EXPECT_EQ(text_at(seen), "from a");
  EXPECT_EQ(ranks[1]->find(0, first + 1), nullptr);
  std::uint32_t last = 0;
  for (int i = 0; i < 600; ++i) last = ranks[0]->share(shared, {});  // more than a socket holds, so some are sent later
  EXPECT_EQ(last, first + 600);
  EXPECT_FALSE(ranks[0]->pump());
  for (int round = 0; round < 50; ++round) {
    ranks[1]->pump();
    ranks[0]->pump();
  }
  EXPECT_TRUE(ranks[0]->pump());
  EXPECT_NE(ranks[1]->find(0, last), nullptr);
  ranks[0]->unshare(last, {});
  ranks[1]->pump();
  EXPECT_EQ(ranks[1]->find(0, last), nullptr);
  EXPECT_FALSE(ranks[1]->peer_gone(0));
  const std::uint32_t parting = ranks[0]->share(memory("parting"), {});
  ranks[0].reset();
  EXPECT_TRUE(ranks[1]->peer_gone(0));
  EXPECT_EQ(text_at(ranks[1]->find(0, parting)), "parting") << "sent before its end";
}

// Parent and child share one epoll instance. A descriptor that the child removed would no longer wake the parent.
TEST(UnixExchange, AForkedCopyDoesNotChangeWhatItsParentWatches) {
  Exchanges ranks = unix_exchanges(2);
  const auto pokes = ranks[0]->create_wake_receiver(1).value();
  const int news = pokes->descriptors().back();
  const auto watched = [news] {
    std::ifstream info("/proc/self/fdinfo/" + std::to_string(news));
    std::size_t count = 0;
    for (std::string line; std::getline(info, line);) count += line.starts_with("tfd:") ? 1 : 0;
    return count;
  };
  ASSERT_EQ(watched(), 2u) << "the peer's socket and its process";
  const pid_t copy = fork();
  if (copy == 0) {
    ranks[0]->peer_gone(1);
    _exit(0);
  }
  ASSERT_EQ(waitpid(copy, nullptr, 0), copy);
  EXPECT_EQ(watched(), 2u);
}

TEST(UnixExchange, AddressesThatCannotBeReadAndAbsentRanksAreNamed) {
  SteadyClock clock;
  auto a = UnixExchange::listen(1, 2).value();
  const Status garbage = a->connect({"zz", ""}, {0, 1}, clock, clock.now_ns());
  ASSERT_FALSE(garbage.ok());
  EXPECT_EQ(garbage.error().rank, 0);
  auto b = UnixExchange::listen(0, 3).value();
  const Status absent = b->connect({"", "", ""}, {0, 1, 2}, clock, clock.now_ns() + kSecond / 5);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kTimeout);
  EXPECT_NE(absent.error().message.find("1, 2"), std::string::npos) << absent.error().message;
}

TEST(UnixExchange, ConnectsAGroupAfterEverybodyHasProbedEverybody) {
  SteadyClock clock;
  std::vector<std::unique_ptr<UnixExchange>> ranks;
  std::vector<std::string> addresses;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks.push_back(UnixExchange::listen(rank, 5).value());
    addresses.push_back(ranks.back()->address());
    EXPECT_LT(addresses.back().size(), 128u);
  }
  addresses.emplace_back("zz");
  ranks[3].reset();
  const std::vector<std::string> candidates = {addresses[0], "", addresses[2], addresses[3], addresses[4]};
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(ranks[0]->probe(candidates).value(),
              (std::vector{Reach::kReached, Reach::kNotTried, Reach::kReached, Reach::kAbsent, Reach::kFailed}));
    EXPECT_EQ(ranks[2]->probe(candidates).value()[0], Reach::kReached);
  }
  std::thread other([&] {
    EXPECT_TRUE(ranks[2]->connect(addresses, {0, 2}, clock, clock.now_ns() + 5 * kSecond).ok());
  });
  EXPECT_TRUE(ranks[0]->connect(addresses, {0, 2}, clock, clock.now_ns() + 5 * kSecond).ok());
  other.join();
  const std::uint32_t id = ranks[2]->share(memory("two"), {});
  EXPECT_EQ(text_at(ranks[0]->find(2, id)), "two");
  EXPECT_EQ(ranks[0]->find(1, id), nullptr) << "rank 1 is outside the group";
  EXPECT_FALSE(ranks[0]->peer_gone(1));
}

// More ranks probe a listener than its accept queue holds (small net.core.somaxconn). Ranks must not wait for space
// in the queue: the listener accepts only in its own connect(), so all would wait forever.
TEST(UnixExchange, AnOverrunListenerCountsAsReachedAndLetsItsPeersInLater) {
  SteadyClock clock;
  auto listener = UnixExchange::listen(0, 2).value();  // the queue holds 20 connections
  auto peer = UnixExchange::listen(1, 2).value();
  const std::vector<std::string> addresses = {listener->address(), peer->address()};
  const std::vector both = {Reach::kReached, Reach::kReached};
  for (int i = 0; i < 40; ++i) EXPECT_EQ(peer->probe(addresses).value(), both) << i;
  EXPECT_EQ(wait_and_dial(*UnixAddress::parse(addresses[0]), clock, clock.now_ns() + kSecond / 20).error, EAGAIN);
  const std::int64_t deadline_ns = clock.now_ns() + 20 * kSecond;
  // If the set-up has failed, the peer does not wait for a place in the queue.
  EXPECT_EQ(peer->connect(addresses, {0, 1}, clock, deadline_ns, [] { return true; }).error(), set_up_has_failed(0));
  std::thread other([&] { EXPECT_TRUE(peer->connect(addresses, {0, 1}, clock, deadline_ns).ok()); });
  EXPECT_TRUE(listener->connect(addresses, {0, 1}, clock, deadline_ns).ok());
  other.join();
}

// Returns how a child, moved by prepare() to another namespace or user, appears to us; nullopt if it cannot be moved.
std::optional<Reach> probe_child(const std::function<bool()>& prepare) {
  int ready[2];
  int stop[2];
  EXPECT_EQ(pipe(ready), 0);
  EXPECT_EQ(pipe(stop), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(stop[1]);
    std::string address;
    if (prepare()) {
      auto listening = UnixExchange::listen(0, 2);
      if (listening) address = (*listening)->address();
      if (write(ready[1], address.data(), address.size()) < 0) _exit(1);
      close(ready[1]);
      char byte = 0;
      if (read(stop[0], &byte, 1) < 0) _exit(1);
    }
    _exit(0);
  }
  close(ready[1]);
  close(stop[0]);
  char text[128] = {};
  const ssize_t length = read(ready[0], text, sizeof(text));
  std::optional<Reach> reach;
  if (length > 0) {
    auto self = UnixExchange::listen(1, 2).value();
    reach = self->probe({std::string(text, static_cast<std::size_t>(length)), ""}).value()[0];
  }
  close(ready[0]);
  close(stop[1]);
  waitpid(child, nullptr, 0);
  return reach;
}

TEST(UnixExchange, ProbesTellOtherNamespacesAndOtherUsersFromNeighbours) {
  EXPECT_EQ(probe_child([] { return true; }), Reach::kReached);
  const auto elsewhere =
      probe_child([] { return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0; });
  const auto stranger = probe_child([] { return setuid(65534) == 0; });
  if (!elsewhere && !stranger) GTEST_SKIP() << "this process may neither create namespaces nor change its user";
  EXPECT_EQ(elsewhere.value_or(Reach::kAbsent), Reach::kAbsent);
  EXPECT_EQ(stranger.value_or(Reach::kOtherUser), Reach::kOtherUser);
}

// A process of another user has found the listener's name and even its nonce. The listener must refuse it, and must
// not wait for it.
TEST(UnixExchange, AnotherUserIsNotLetInWhateverItKnows) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  SteadyClock clock;
  auto listener = UnixExchange::listen(0, 2).value();
  auto other = UnixExchange::listen(1, 2).value();
  const UnixAddress address = UnixAddress::parse(listener->address()).value();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(2 * kLostNs / kSecond));  // so that no child outlives a broken test
    if (setuid(65534) != 0) _exit(1);
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    std::memcpy(where.sun_path + 1, address.name.data(), address.name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.name.size());
    const struct {  // the hello message of rank 1
      std::uint32_t magic = 0x5455584d, operation = 1, rank = 1, reserved = 0;
      std::array<std::uint8_t, 16> nonce;
      std::uint64_t channel = 0;
    } hello{.nonce = address.nonce};
    for (int i = 0; i < 10; ++i) {  // the first one sends the hello; the others send nothing and stay connected
      const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&where), length) != 0) _exit(2);
      if (i == 0 && send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) _exit(3);
    }
    if (write(ready[1], "x", 1) != 1) _exit(4);
    pause();
  }
  char byte = 0;
  close(ready[1]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the other user could not connect";
  const std::vector<std::string> addresses = {listener->address(), other->address()};
  const std::int64_t since_ns = clock.now_ns();
  std::thread right([&] { EXPECT_TRUE(other->connect(addresses, {0, 1}, clock, clock.now_ns() + 20 * kSecond).ok()); });
  EXPECT_TRUE(listener->connect(addresses, {0, 1}, clock, clock.now_ns() + 20 * kSecond).ok());
  right.join();
  EXPECT_LT(clock.now_ns() - since_ns, 10 * kSecond) << "connect() must not wait for a process that is refused";
  const std::uint32_t id = other->share(memory("one"), {});
  EXPECT_EQ(text_at(listener->find(1, id)), "one") << "the real rank 1 is connected";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
}

class AnyExchange : public ::testing::TestWithParam<bool> {
 protected:
  static Exchanges exchanges(std::uint32_t ranks) {
    return GetParam() ? unix_exchanges(ranks) : in_process_exchanges(ranks);
  }
};

TEST_P(AnyExchange, AViewTranslatesRanksAndReachesItsMembersOnly) {
  Exchanges all = exchanges(3);
  SubExchange two(all[2], {2, 0});
  SubExchange zero(all[0], {2, 0});
  const auto shared = memory("from two");
  const std::uint32_t id = two.share(shared, {});
  EXPECT_EQ(text_at(zero.find(0, id)), "from two");
  EXPECT_EQ(text_at(all[0]->find(2, id)), "from two");
  EXPECT_NE(two.share(shared, {}), id) << "ids are never reused";
  EXPECT_NE(all[2]->share(shared, {}), id + 1) << "the parent does not reuse the id either";
  two.unshare(id, {});
  zero.pump();
  EXPECT_EQ(zero.find(0, id), nullptr);
  EXPECT_TRUE(two.pump());
  EXPECT_FALSE(zero.peer_gone(0));
}

TEST_P(AnyExchange, CommunicatorsOfOneExchangeLiveAndEndByThemselves) {
  Exchanges all = exchanges(2);
  auto parent = shm_ranks(kShape, all);
  auto child = shm_ranks(kShape, {std::make_shared<SubExchange>(all[1], std::vector{1u, 0u}),
                                  std::make_shared<SubExchange>(all[0], std::vector{1u, 0u})});
  auto window = child[0]->allocate_window(4096).value();
  auto other = parent[1]->allocate_window(4096).value();  // child rank 0 is parent rank 1
  std::strcpy(reinterpret_cast<char*>(window->data()), "child's");
  EXPECT_NE(child[0]->find_window(window->data(), 1).window, parent[1]->find_window(other->data(), 1).window);
  EXPECT_EQ(parent[1]->find_window(window->data(), 1).window, 0u) << "registered with the child communicator only";
  all.clear();
  parent[0]->announce_abort();
  EXPECT_EQ(parent[1]->peer_status(0).life, PeerLife::kAborted);
  EXPECT_EQ(child[0]->peer_status(1).life, PeerLife::kLive) << "each communicator has its own status";
  parent.clear();
  const WindowRef place = child[0]->find_window(window->data(), 8);
  auto send = child[0]->open_send(1, 0).value();
  auto receive = child[1]->open_receive(0, 0).value();
  send->send_published(place, 8, call(1));
  ASSERT_EQ(receive->arrival(call(1)), Arrival::kMessage);
  EXPECT_EQ(text_of(receive->front()), "child's");
  child[1].reset();
  EXPECT_EQ(child[0]->peer_status(1).life, PeerLife::kLeft);
}

TEST_P(AnyExchange, AChildMayEndBeforeItsParent) {
  Exchanges all = exchanges(2);
  auto parent = shm_ranks(kShape, all);
  {
    const Exchanges views = {std::make_shared<SubExchange>(all[0], std::vector{0u, 1u}),
                             std::make_shared<SubExchange>(all[1], std::vector{0u, 1u})};
    auto child = shm_ranks(kShape, views);
    EXPECT_EQ(child[0]->peer_status(1).life, PeerLife::kLive);
  }
  auto send = parent[0]->open_send(1, 0).value();
  auto receive = parent[1]->open_receive(0, 0).value();
  send_text(*send, "still here", call(1));
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kMessage);
  EXPECT_EQ(parent[0]->peer_status(1).life, PeerLife::kLive);
}

INSTANTIATE_TEST_SUITE_P(Between, AnyExchange, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "Processes" : "Threads"; });

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

TEST(SubExchange, ASplitCostsOneDescriptorARank) {
  Exchanges all = unix_exchanges(4);
  auto parent = shm_ranks({.ranks = 4, .slots = 2, .slot_bytes = 4096}, all);
  const std::ptrdiff_t before = open_descriptors();
  Exchanges views;
  for (const auto& exchange : all) {
    views.push_back(std::make_shared<SubExchange>(exchange, std::vector{0u, 1u, 2u, 3u}));
  }
  auto child = shm_ranks({.ranks = 4, .slots = 2, .slot_bytes = 4096}, views);
  EXPECT_EQ(open_descriptors() - before, 4);
}

TEST(SubExchange, OthersOfTheParentGetNothing) {
  Exchanges all = unix_exchanges(3);
  SubExchange view(all[0], {0, 1});
  const std::uint32_t id = view.share(memory("ours"), {});
  EXPECT_EQ(text_at(all[1]->find(0, id)), "ours");
  EXPECT_EQ(all[2]->find(0, id), nullptr);
}

TEST(SubExchange, AForkedCopySpeaksForNobody) {
  Exchanges all = unix_exchanges(2);
  auto ranks = shm_ranks(kShape, {std::make_shared<SubExchange>(all[0], std::vector{0u, 1u}),
                                  std::make_shared<SubExchange>(all[1], std::vector{0u, 1u})});
  auto window = ranks[0]->allocate_window(4096).value();
  std::strcpy(reinterpret_cast<char*>(window->data()), "kept");
  const std::uint32_t id = ranks[0]->find_window(window->data(), 1).window;
  std::optional<Share> share(std::in_place, all[0], memory("shared"));
  const pid_t copy = fork();
  if (copy == 0) {
    window.reset();
    share.reset();
    ranks.clear();
    _exit(0);
  }
  waitpid(copy, nullptr, 0);
  all[1]->pump();
  EXPECT_EQ(text_at(all[1]->find(0, share->id())), "shared");
  EXPECT_EQ(ranks[1]->peer_status(0).life, PeerLife::kLive);
  EXPECT_EQ(text_at(all[1]->find(0, id)), "kept");
}

TEST(SubExchange, ADeadProcessIsSeenThroughEveryViewAndWhatItSentBeforeStillCounts) {
  SteadyClock clock;
  const std::int64_t deadline_ns = clock.now_ns() + 10 * kSecond;
  auto listening = UnixExchange::listen(0, 2).value();
  const std::vector<std::string> addresses = {listening->address(), ""};
  const pid_t child = fork();
  if (child == 0) {
    auto other = UnixExchange::listen(1, 2).value();
    if (!other->connect(addresses, {0, 1}, clock, deadline_ns).ok()) _exit(1);
    other->share(memory("last words"), {});
    raise(SIGSTOP);
    _exit(0);
  }
  ASSERT_TRUE(listening->connect(addresses, {0, 1}, clock, deadline_ns).ok());
  const std::shared_ptr<SegmentExchange> exchange = std::move(listening);
  auto pokes = exchange->create_wake_receiver(1).value();
  SubExchange view(exchange, {1, 0});
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(view.peer_gone(0));
  EXPECT_TRUE(exchange->peer_gone(1));
  EXPECT_EQ(text_at(view.find(0, 1)), "last words");
  EXPECT_TRUE(readable(pokes->descriptors())) << "a sleeping rank must wake up";
  pokes->drain();
  EXPECT_FALSE(readable(pokes->descriptors()));
}

TEST(SubExchange, TheEndOfAProcessEndsItForAllItsCommunicators) {
  Exchanges all = unix_exchanges(2);
  SubExchange view(all[0], {1, 0});
  EXPECT_FALSE(view.peer_gone(0));
  all[1].reset();  // without a close frame
  EXPECT_TRUE(view.peer_gone(0));
  EXPECT_TRUE(all[0]->peer_gone(1));
}

TEST_P(AnyExchange, APokeComesOnlyToARankThatAskedForIt) {
  Exchanges all = exchanges(2);
  auto ranks = shm_ranks(kShape, all);
  auto doorbell = ranks[0]->create_descriptor_doorbell().value();
  doorbell->arm();  // consumes the wake-ups of the set-up
  doorbell->disarm();
  auto send = ranks[1]->open_send(0, 0).value();
  send->send_slot(0, call(1));
  EXPECT_FALSE(readable(doorbell->descriptors())) << "a rank that is awake is not woken";
  doorbell->arm();
  send->send_slot(0, call(1));
  EXPECT_TRUE(readable(doorbell->descriptors()));
  doorbell->disarm();
  doorbell->arm();
  EXPECT_FALSE(readable(doorbell->descriptors())) << "wake-ups from before the second sleep must not count";
  ranks[0]->doorbell().ring();
  EXPECT_TRUE(readable(doorbell->descriptors())) << "a rank can wake itself";
}

TEST(Pokes, ArmingMakesRoomForMoreOfThem) {
  Exchanges all = unix_exchanges(2);
  auto ranks = shm_ranks(kShape, all);
  auto doorbell = ranks[0]->create_descriptor_doorbell().value();
  TestDoorbell sleeper(Trigger::kEdge);
  for (const int fd : doorbell->descriptors()) ASSERT_TRUE(sleeper.add_wait_source(fd).ok());
  for (int i = 0; i < 5000; ++i) all[1]->wake_peer(0, 66);  // fills the socket; these edges are consumed below
  sleeper.arm();
  doorbell->arm();
  ranks[1]->announce_abort();
  const auto start = std::chrono::steady_clock::now();
  sleeper.sleep(kLostNs);
  EXPECT_LT(std::chrono::steady_clock::now() - start, test::patience());
}

TEST(Pokes, ThatFindTheSocketFullAreNotLostThoughAnotherCommunicatorEmptiesIt) {
  Exchanges all = unix_exchanges(2);
  auto mine = all[0]->create_wake_receiver(77).value();
  const int own_event = mine->descriptors().front();
  for (int i = 0; i < 5000; ++i) all[1]->wake_peer(0, 66);
  all[1]->wake_peer(0, 77);  // does not fit into the socket
  EXPECT_FALSE(readable({own_event}));
  all[0]->pump();  // as another communicator of this process would do
  EXPECT_TRUE(readable({own_event}));
}

TEST(Pokes, APeerThatHasEndedWakesOnceAndThenIsSilent) {
  Exchanges all = unix_exchanges(3);
  auto pokes = all[0]->create_wake_receiver(1).value();
  EXPECT_FALSE(readable(pokes->descriptors()));
  all[1].reset();
  EXPECT_TRUE(readable(pokes->descriptors()));
  pokes->drain();
  EXPECT_FALSE(readable(pokes->descriptors()));
  EXPECT_TRUE(all[0]->peer_gone(1));
  EXPECT_FALSE(all[0]->peer_gone(2));
  all[2]->wake_peer(0, 1);
  EXPECT_TRUE(readable(pokes->descriptors()));
}

// Two communicators of the same two processes, with a sleeping thread for each rank of each. All wake-ups arrive on one
// common socket. Whichever communicator reads it, each wake-up must reach the right one.
TEST_P(AnyExchange, TwoCommunicatorsSleepWithoutTakingEachOthersPokes) {
  constexpr std::uint32_t kRounds = 3000;
  Exchanges all = exchanges(2);
  auto parent = shm_ranks(kShape, all);
  auto child = shm_ranks(kShape, {std::make_shared<SubExchange>(all[1], std::vector{1u, 0u}),
                                  std::make_shared<SubExchange>(all[0], std::vector{1u, 0u})});
  std::vector<std::thread> threads;
  for (const auto* communicator : {&parent, &child}) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&self = *(*communicator)[rank], rank] {
        auto doorbell = self.create_descriptor_doorbell().value();
        TestDoorbell sleeper(rank == 0 ? Trigger::kLevel : Trigger::kEdge);
        for (const int fd : doorbell->descriptors()) ASSERT_TRUE(sleeper.add_wait_source(fd).ok());
        auto send = self.open_send(1 - rank, 0).value();
        auto receive = self.open_receive(1 - rank, 0).value();
        for (std::uint32_t round = 1; round <= kRounds; ++round) {
          if (rank == 0) send->send_slot(0, call(round));
          const auto start = std::chrono::steady_clock::now();
          while (receive->arrival(call(round)) != Arrival::kMessage) {
            sleeper.arm();
            doorbell->arm();
            if (receive->arrival(call(round)) != Arrival::kMessage) sleeper.sleep(kLostNs);
            doorbell->disarm();
          }
          ASSERT_LT(std::chrono::steady_clock::now() - start, test::patience()) << "round " << round;
          receive->release();
          if (rank == 1) send->send_slot(0, call(round));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti
