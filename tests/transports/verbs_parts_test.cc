// What the verbs transport is made of and needs no device: the choice of addresses, the offers of ports, registrations
// and the monitor of memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "transports/rdma/memory_monitor.h"
#include "transports/verbs/gid.h"
#include "transports/verbs/offer.h"
#include "transports/verbs/registrations.h"
#include "transports/verbs/wanted.h"

namespace tutti {
namespace {

Gid ipv4(std::uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
Gid ipv6(std::uint8_t last) { return {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }
Gid link_local(std::uint8_t last) { return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }

std::int32_t chosen(const std::vector<GidEntry>& entries, bool ethernet = true,
                    std::optional<std::int32_t> wanted = {}) {
  std::string reason;
  const auto choice = choose_gid(entries, ethernet, wanted, reason);
  EXPECT_FALSE((choice ? choice->reason : reason).empty());
  return choice ? choice->entry.index : -1;
}

TEST(VerbsGid, IsChosenByRule) {
  const GidEntry v1{.index = 0, .gid = ipv4(1), .type = GidType::kRoceV1};
  const GidEntry link{.index = 1, .gid = link_local(1), .type = GidType::kRoceV2};
  const GidEntry six{.index = 2, .gid = ipv6(1), .type = GidType::kRoceV2};
  const GidEntry four{.index = 3, .gid = ipv4(1), .type = GidType::kRoceV2};
  const GidEntry four_too{.index = 5, .gid = ipv4(2), .type = GidType::kRoceV2};
  EXPECT_EQ(chosen({v1, link, six, four, four_too}), 3);
  EXPECT_EQ(chosen({four_too, four, six}), 3) << "the lowest of equal ones, however they stand";
  EXPECT_EQ(chosen({v1, link, six}), 2);
  EXPECT_EQ(chosen({v1, link}), 1);
  EXPECT_EQ(chosen({v1}), 0);
  EXPECT_EQ(chosen({v1, link, six, four}, true, 1), 1) << "the user's";
  EXPECT_EQ(chosen({v1, four}, true, 7), -1);
  EXPECT_EQ(chosen({}), -1);
  EXPECT_EQ(chosen({{.index = 0, .gid = link_local(9), .type = GidType::kInfiniBand}}, false), 0);
}

VerbsPort port(const std::string& device, const Gid& gid, bool ethernet = true) {
  VerbsPort made;
  made.device = device;
  made.number = 2;
  made.ethernet = ethernet;
  made.mbps = 400'000;
  made.mtu = 5;
  made.lid = 77;
  made.gid = gid;
  return made;
}

TEST(VerbsOffer, ComesBackAsItWas) {
  const std::vector<VerbsPort> ports = {port("mlx5_0", ipv4(1)), port("mlx5_1", ipv6(200), false)};
  const auto parsed = parse_offer(print_offer(ports));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed->size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*parsed)[i].device, ports[i].device);
    EXPECT_EQ((*parsed)[i].number, ports[i].number);
    EXPECT_EQ((*parsed)[i].ethernet, ports[i].ethernet);
    EXPECT_EQ((*parsed)[i].mbps, ports[i].mbps);
    EXPECT_EQ((*parsed)[i].mtu, ports[i].mtu);
    EXPECT_EQ((*parsed)[i].lid, ports[i].lid);
    EXPECT_EQ((*parsed)[i].gid, ports[i].gid);
  }
  EXPECT_TRUE(parse_offer("")->empty());
}

TEST(VerbsOffer, IsRefusedWhereItCannotBeRead) {
  const std::string good = print_offer({port("mlx5_0", ipv4(1))});
  for (std::size_t length = 1; length < good.size(); ++length) {
    const auto parsed = parse_offer(good.substr(0, length));
    EXPECT_TRUE(!parsed.ok() || parsed->empty()) << good.substr(0, length);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    text[random() % text.size()] = static_cast<char>(random() % 256);
    const auto parsed = parse_offer(text);  // must not crash, and what it takes is sound
    if (!parsed.ok()) continue;
    for (const VerbsPort& one : *parsed) {
      EXPECT_TRUE(one.mtu >= 1 && one.mtu <= 5);
      EXPECT_GT(one.number, 0);
    }
  }
  std::string many = "verbs1";
  for (int i = 0; i < 40; ++i) many += good.substr(6);
  EXPECT_FALSE(parse_offer(many).ok()) << "more ports than any machine has";
}

TEST(VerbsOffer, RailsStayApart) {
  const std::vector<VerbsPort> two = {port("a", ipv4(1)), port("b", ipv4(2))};
  const std::vector<VerbsPort> mixed = {port("c", ipv6(1)), port("d", ipv4(3)), port("e", ipv4(4))};
  using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(match_rails(two, two), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(match_rails(two, mixed), (Pairs{{1, 1}}));
  EXPECT_EQ(match_rails(two, {}), Pairs{});
  EXPECT_EQ(match_rails({port("a", ipv4(1), false)}, two), Pairs{}) << "InfiniBand does not speak to Ethernet";
}

TEST(VerbsDevices, AreTakenAsTheUserLikes) {
  EXPECT_TRUE(is_wanted("", "mlx5_0", 1));
  EXPECT_TRUE(is_wanted("mlx5_0", "mlx5_0", 2)) << "all ports";
  EXPECT_TRUE(is_wanted("mlx5_1,mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(is_wanted("mlx5_1,mlx5_0:2", "mlx5_0", 1));
  EXPECT_FALSE(is_wanted("mlx5_1", "mlx5_10", 1)) << "a name is whole";
  EXPECT_TRUE(is_wanted("mlx5_1*", "mlx5_10", 1));
  EXPECT_TRUE(is_wanted("mlx5*:1", "mlx5_10", 1));
  EXPECT_FALSE(is_wanted("mlx5*:1", "mlx5_10", 2));
  EXPECT_FALSE(is_wanted("^mlx5_0", "mlx5_0", 1));
  EXPECT_TRUE(is_wanted("^mlx5_0", "mlx5_1", 1));
  EXPECT_FALSE(is_wanted("none", "mlx5_1", 1));
  EXPECT_EQ(place_in("mlx5_2,mlx5_0*", "mlx5_2", 1), 0u);
  EXPECT_EQ(place_in("mlx5_2,mlx5_0*", "mlx5_03", 1), 1u) << "rails come in the user's order";
  EXPECT_GT(place_in("mlx5_2", "mlx5_0", 1), 1u);
}

// A card that copies what it was shown when it was registered, as one does that has pinned the old pages.
class FakeCard {
 public:
  Registrations::Register reg() {
    return [this](void* data, std::size_t bytes) -> std::optional<Registrations::Key> {
      if (bytes > most_) return std::nullopt;
      const std::uint32_t key = ++last_;
      pinned_[key].assign(static_cast<char*>(data), static_cast<char*>(data) + bytes);
      return Registrations::Key{.handle = nullptr, .local = key, .remote = key};
    };
  }
  Registrations::Deregister dereg() {
    return [this](const Registrations::Key& key) { pinned_.erase(key.local); };
  }
  char first_byte(const Registrations::Key& key) const { return pinned_.at(key.local).front(); }
  std::size_t pinned() const { return pinned_.size(); }
  void limit(std::size_t bytes) { most_ = bytes; }

 private:
  std::map<std::uint32_t, std::string> pinned_;
  std::uint32_t last_ = 0;
  std::size_t most_ = ~std::size_t{0};
};

constexpr std::size_t kBytes = 1 << 16;

std::byte* map_at(void* place, char content) {
  void* const memory = mmap(place, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0), -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  std::memset(memory, content, kBytes);
  return static_cast<std::byte*>(memory);
}

class MonitoredRegistrations : public testing::Test {
 protected:
  void SetUp() override {
    if (MemoryMonitor::shared() == nullptr) GTEST_SKIP() << "this system has no userfaultfd, or does not permit it";
  }
  FakeCard card;
};

TEST_F(MonitoredRegistrations, AreFoundAgain) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  const auto first = cache.acquire({memory, kBytes});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(cache.acquire({memory + 100, 50}), first) << "a part of it";
  EXPECT_EQ(cache.counts().found, 1u);
  EXPECT_EQ(card.pinned(), 1u);
  munmap(memory, kBytes);
}

// The field's worst fault of such caches: memory is freed, other memory comes at the same address, and the old is sent.
TEST_F(MonitoredRegistrations, NeverGiveOldDataForNewMemoryAtTheSameAddress) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* memory = map_at(nullptr, 'a');
  EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'a');
  munmap(memory, kBytes);
  memory = map_at(memory, 'b');
  EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'b') << "unmapped and mapped again";
  madvise(memory, kBytes, MADV_DONTNEED);
  std::memset(memory, 'c', kBytes);
  EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'c') << "discarded and touched again";
  map_at(memory, 'd');  // over it, without unmapping first
  EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'd') << "mapped over";
  std::byte* const elsewhere = map_at(nullptr, 'e');
  ASSERT_NE(mremap(elsewhere, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory), MAP_FAILED);
  EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'e') << "other memory moved there";
  EXPECT_GE(cache.counts().gone, 3u);
  munmap(memory, kBytes);
}

// The same without a monitor that knows: the test above can fail.
TEST_F(MonitoredRegistrations, WouldGiveOldDataIfNobodyTold) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* memory = map_at(nullptr, 'a');
  const auto held = cache.acquire({memory, kBytes});  // a user who does not ask again
  munmap(memory, kBytes);
  memory = map_at(memory, 'b');
  EXPECT_EQ(card.first_byte(held->key()), 'a');
  munmap(memory, kBytes);
}

TEST_F(MonitoredRegistrations, EndForTheOwnersWord) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  cache.acquire({memory, kBytes});
  EXPECT_EQ(card.pinned(), 1u);
  cache.forget(memory + kBytes / 2, 1);
  EXPECT_EQ(card.pinned(), 0u);
  munmap(memory, kBytes);
}

TEST_F(MonitoredRegistrations, AreBounded) {
  Registrations cache(card.reg(), card.dereg(), 4 * kBytes, MemoryMonitor::shared());
  std::vector<std::byte*> memory;
  for (int i = 0; i < 8; ++i) {
    memory.push_back(map_at(nullptr, 'a'));
    ASSERT_NE(cache.acquire({memory.back(), kBytes}), nullptr);
    cache.acquire({memory.front(), kBytes});  // used all the time
  }
  EXPECT_EQ(card.pinned(), 4u);
  EXPECT_EQ(cache.counts().bytes, 4 * kBytes);
  EXPECT_EQ(cache.counts().evicted, 4u);
  for (std::byte* const one : memory) munmap(one, kBytes);
}

TEST_F(MonitoredRegistrations, LastAsLongAsTheyAreUsed) {
  Registrations cache(card.reg(), card.dereg(), kBytes, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  std::byte* const other = map_at(nullptr, 'b');
  auto used = cache.acquire({memory, kBytes});
  cache.acquire({other, kBytes});  // takes its room
  EXPECT_EQ(card.pinned(), 2u);
  used = nullptr;
  EXPECT_EQ(card.pinned(), 1u);
  munmap(memory, kBytes);
  munmap(other, kBytes);
}

TEST_F(MonitoredRegistrations, OverlappingOnesBecomeOne) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  cache.acquire({memory, kBytes / 2});
  cache.acquire({memory + kBytes / 4, kBytes / 2});
  EXPECT_EQ(card.pinned(), 1u);
  const auto made = cache.counts().made;
  cache.acquire({memory, kBytes / 2});
  cache.acquire({memory + kBytes / 4, kBytes / 2});
  EXPECT_EQ(cache.counts().made, made) << "both are found in it";
  cache.acquire({memory, kBytes});
  EXPECT_EQ(card.pinned(), 1u);
  EXPECT_EQ(cache.counts().bytes, kBytes);
  munmap(memory, kBytes);
}

// The kernel has freed the address before the monitor's thread has read of it: another thread may be given it at once.
TEST_F(MonitoredRegistrations, NeverGiveOldDataToAnotherThreadThatGotTheAddress) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  int times = 0;
  for (int i = 0; i < 200; ++i) {
    std::byte* const memory = map_at(nullptr, 'a');
    ASSERT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), 'a');
    std::atomic<bool> begun = false;
    std::atomic<bool> unmapped = false;
    std::thread other([&] {
      begun = true;
      munmap(memory, kBytes);
      unmapped = true;
    });
    while (!begun) {
    }
    // As soon as the address is free, whether munmap() has returned or not; unless somebody else in this process gets
    // it.
    void* got = MAP_FAILED;
    for (bool last = false; got == MAP_FAILED && !last;) {
      last = unmapped;
      got = mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
    if (got == MAP_FAILED) {
      other.join();
      continue;
    }
    ++times;
    std::memset(got, 'b', kBytes);
    EXPECT_EQ(card.first_byte(cache.acquire({static_cast<std::byte*>(got), kBytes})->key()), 'b') << i;
    other.join();
    munmap(got, kBytes);
  }
  EXPECT_GT(times, 0);
}

// Threads that map and unmap while another asks.
TEST_F(MonitoredRegistrations, HoldWhileOthersUnmap) {
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) {
      std::byte* const memory = map_at(nullptr, 'x');
      static_cast<void>(MemoryMonitor::shared()->watch(reinterpret_cast<std::uintptr_t>(memory),
                                                       reinterpret_cast<std::uintptr_t>(memory) + kBytes));
      munmap(memory, kBytes);
    }
  });
  for (int i = 0; i < 300; ++i) {
    const char content = static_cast<char>('a' + i % 26);
    std::byte* const memory = map_at(nullptr, content);
    EXPECT_EQ(card.first_byte(cache.acquire({memory, kBytes})->key()), content);
    munmap(memory, kBytes);
  }
  stop = true;
  other.join();
}

TEST(Registrations, TakeNothingThatNobodyWatches) {
  FakeCard card;
  Registrations cache(card.reg(), card.dereg(), 1 << 30, nullptr);
  std::byte* const memory = map_at(nullptr, 'a');
  EXPECT_EQ(cache.acquire({memory, kBytes}), nullptr);
  EXPECT_EQ(card.pinned(), 0u);
  munmap(memory, kBytes);
}

TEST(Registrations, SayWhereTheSystemRefuses) {
  FakeCard card;
  card.limit(kBytes / 2);
  Registrations cache(card.reg(), card.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  EXPECT_EQ(cache.acquire({memory, kBytes}), nullptr);
  EXPECT_EQ(cache.counts().refused, 1u);
  munmap(memory, kBytes);
}

TEST(MemoryMonitor, TellsWhenTooMuchHasGone) {
  const auto monitor = MemoryMonitor::shared();
  if (monitor == nullptr) GTEST_SKIP() << "this system has no userfaultfd, or does not permit it";
  MemoryMonitor::Cursor cursor = monitor->now();
  for (int i = 0; i < 5000; ++i) {
    std::byte* const memory = map_at(nullptr, 'a');
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    ASSERT_TRUE(monitor->watch(begin, begin + kBytes));
    munmap(memory, kBytes);
  }
  EXPECT_FALSE(monitor->gone_since(cursor, [](std::uintptr_t, std::uintptr_t) {}));
  EXPECT_TRUE(monitor->gone_since(cursor, [](std::uintptr_t, std::uintptr_t) {})) << "from then on it can";
}

}  // namespace
}  // namespace tutti
