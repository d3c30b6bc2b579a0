// Tests of RegistrationCache, the cache of user memory that stays registered with a network adapter, and of
// MemoryMonitor, which reports when such memory is unmapped.
#include "transports/verbs/registration_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "transports/rdma/memory_monitor.h"

namespace tutti {
namespace {

// A fake adapter. Registering memory copies its content. So, like a real adapter that has pinned pages which the
// process has since replaced, it continues to send the old content.
class FakeAdapter {
 public:
  RegistrationCache::Register reg() {
    return [this](void* data, std::size_t bytes) -> std::optional<RegistrationCache::Key> {
      if (bytes > most_) return std::nullopt;
      const std::uint32_t key = ++last_;
      pinned_[key].assign(static_cast<char*>(data), static_cast<char*>(data) + bytes);
      return RegistrationCache::Key{.handle = nullptr, .local = key, .remote = key};
    };
  }
  RegistrationCache::Deregister dereg() {
    return [this](const RegistrationCache::Key& key) { pinned_.erase(key.local); };
  }
  char first_byte(const RegistrationCache::Key& key) const { return pinned_.at(key.local).front(); }
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
  FakeAdapter adapter;
};

TEST_F(MonitoredRegistrations, AreFoundAgain) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  const auto first = cache.acquire({memory, kBytes});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(cache.acquire({memory + 100, 50}), first) << "a range inside a registration uses that registration";
  EXPECT_EQ(cache.counts().found, 1u);
  EXPECT_EQ(adapter.pinned(), 1u);
  munmap(memory, kBytes);
}

// The worst error of such caches: memory is freed, other memory is mapped at the same address, and the old content
// is sent.
TEST_F(MonitoredRegistrations, NeverGiveOldDataForNewMemoryAtTheSameAddress) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* memory = map_at(nullptr, 'a');
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'a');
  munmap(memory, kBytes);
  memory = map_at(memory, 'b');
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'b') << "unmapped and mapped again";
  madvise(memory, kBytes, MADV_DONTNEED);
  std::memset(memory, 'c', kBytes);
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'c') << "discarded and touched again";
  map_at(memory, 'd');  // maps new memory over it without munmap()
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'd') << "mapped over";
  std::byte* const other_memory = map_at(nullptr, 'e');
  ASSERT_NE(mremap(other_memory, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory), MAP_FAILED);
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'e') << "other memory moved there";
  EXPECT_GE(cache.counts().gone, 3u);
  munmap(memory, kBytes);
}

// The opposite of the test above: a user that keeps its registration without asking again gets the old content. So
// that test is able to fail.
TEST_F(MonitoredRegistrations, WouldGiveOldDataIfNobodyTold) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* memory = map_at(nullptr, 'a');
  const auto held = cache.acquire({memory, kBytes});  // kept, and not acquired again
  munmap(memory, kBytes);
  memory = map_at(memory, 'b');
  EXPECT_EQ(adapter.first_byte(held->key()), 'a');
  munmap(memory, kBytes);
}

TEST_F(MonitoredRegistrations, EndForTheOwnersWord) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  cache.acquire({memory, kBytes});
  EXPECT_EQ(adapter.pinned(), 1u);
  cache.forget(memory + kBytes / 2, 1);
  EXPECT_EQ(adapter.pinned(), 0u);
  munmap(memory, kBytes);
}

TEST_F(MonitoredRegistrations, AreBounded) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 4 * kBytes, MemoryMonitor::shared());
  std::vector<std::byte*> memory;
  for (int i = 0; i < 8; ++i) {
    memory.push_back(map_at(nullptr, 'a'));
    ASSERT_NE(cache.acquire({memory.back(), kBytes}), nullptr);
    cache.acquire({memory.front(), kBytes});  // stays the most recently used one
  }
  EXPECT_EQ(adapter.pinned(), 4u);
  EXPECT_EQ(cache.counts().bytes, 4 * kBytes);
  EXPECT_EQ(cache.counts().evicted, 4u);
  for (std::byte* const one : memory) munmap(one, kBytes);
}

TEST_F(MonitoredRegistrations, LastAsLongAsTheyAreUsed) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), kBytes, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  std::byte* const other = map_at(nullptr, 'b');
  auto used = cache.acquire({memory, kBytes});
  cache.acquire({other, kBytes});  // evicts the first one from the cache, but that one is still in use
  EXPECT_EQ(adapter.pinned(), 2u);
  used = nullptr;
  EXPECT_EQ(adapter.pinned(), 1u);
  munmap(memory, kBytes);
  munmap(other, kBytes);
}

TEST_F(MonitoredRegistrations, OverlappingOnesBecomeOne) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  cache.acquire({memory, kBytes / 2});
  cache.acquire({memory + kBytes / 4, kBytes / 2});
  EXPECT_EQ(adapter.pinned(), 1u);
  const auto made = cache.counts().made;
  cache.acquire({memory, kBytes / 2});
  cache.acquire({memory + kBytes / 4, kBytes / 2});
  EXPECT_EQ(cache.counts().made, made) << "the merged registration serves both ranges";
  cache.acquire({memory, kBytes});
  EXPECT_EQ(adapter.pinned(), 1u);
  EXPECT_EQ(cache.counts().bytes, kBytes);
  munmap(memory, kBytes);
}

// The blocks of a long buffer that does not start at a page boundary are like this. Each block has its own
// registration.
TEST_F(MonitoredRegistrations, NeighboursMayShareAPage) {
  constexpr std::size_t kBlocks = 8, kBlock = kBytes / kBlocks;
  static_assert(kBlock >= 8192);
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  const auto all = [&] {
    for (std::size_t i = 0; i + 1 < kBlocks; ++i)
      ASSERT_NE(cache.acquire({memory + i * kBlock + 100, kBlock}), nullptr);
  };
  all();
  EXPECT_EQ(cache.counts().made, kBlocks - 1);
  EXPECT_EQ(cache.counts().bytes, (kBlocks - 1) * (kBlock + 4096));
  all();
  EXPECT_EQ(cache.counts().made, kBlocks - 1) << "all registrations are reused";
  madvise(memory + 2 * kBlock, 4096, MADV_DONTNEED);  // the page that blocks 1 and 2 share
  std::memset(memory + 2 * kBlock, 'b', 4096);
  EXPECT_EQ(adapter.first_byte(cache.acquire({memory + 2 * kBlock + 100, 8})->key()), 'b');
  EXPECT_EQ(adapter.pinned(), kBlocks - 2) << "the registrations of both blocks must end";
  cache.acquire({memory, kBytes});
  EXPECT_EQ(adapter.pinned(), 1u) << "one registration replaces the ones inside it";
  EXPECT_EQ(cache.counts().bytes, kBytes);
  munmap(memory, kBytes);
}

// Counts the lines of /proc/self/maps. A watched range has a line of its own.
std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::size_t count = 0;
  while (std::getline(maps, line)) ++count;
  return count;
}

// Watched ranges split the mappings of the process, and by default the kernel allows only 65,530 of them. So a range
// must no longer be watched once every cache has dropped it, but as long as any cache holds it, it must be watched.
TEST_F(MonitoredRegistrations, AreWatchedNoLongerThanAnyCacheKnowsThem) {
  constexpr std::size_t kPages = 4000;
  const std::size_t before = mappings();
  auto* const memory =
      static_cast<std::byte*>(mmap(nullptr, kPages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  RegistrationCache other(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  ASSERT_NE(other.acquire({memory, 4096}), nullptr);
  {
    RegistrationCache cache(adapter.reg(), adapter.dereg(), 64 * 4096, MemoryMonitor::shared());
    for (std::size_t page = 0; page < kPages; page += 2) {
      std::memset(memory + page * 4096, 'a', 4096);
      ASSERT_NE(cache.acquire({memory + page * 4096, 4096}), nullptr);
    }
    EXPECT_LT(mappings(), before + 300) << "evicted registrations must not be watched";
    cache.acquire({memory, 4096});
  }
  EXPECT_LT(mappings(), before + 50) << "a destroyed cache must not leave watched ranges";
  madvise(memory, 4096, MADV_DONTNEED);
  std::memset(memory, 'z', 4096);
  EXPECT_EQ(adapter.first_byte(other.acquire({memory, 4096})->key()), 'z') << "the other cache still needs this range";
  munmap(memory, kPages * 4096);
}

// The kernel frees the address before the monitor's thread has read the event. So another thread may get the address
// first.
TEST_F(MonitoredRegistrations, NeverGiveOldDataToAnotherThreadThatGotTheAddress) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  int times = 0;
  for (int i = 0; i < 200; ++i) {
    std::byte* const memory = map_at(nullptr, 'a');
    ASSERT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), 'a');
    std::atomic<bool> begun = false;
    std::atomic<bool> unmapped = false;
    std::thread other([&] {
      begun = true;
      munmap(memory, kBytes);
      unmapped = true;
    });
    while (!begun) {
    }
    // Map the address as soon as it is free, whether munmap() has returned or not. Give up this round if another
    // thread of the process got the address.
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
    EXPECT_EQ(adapter.first_byte(cache.acquire({static_cast<std::byte*>(got), kBytes})->key()), 'b') << i;
    other.join();
    munmap(got, kBytes);
  }
  EXPECT_GT(times, 0);
}

// Some threads map and unmap memory while another thread uses the cache.
TEST_F(MonitoredRegistrations, HoldWhileOthersUnmap) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
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
    EXPECT_EQ(adapter.first_byte(cache.acquire({memory, kBytes})->key()), content);
    munmap(memory, kBytes);
  }
  stop = true;
  other.join();
}

TEST_F(MonitoredRegistrations, AreForgottenOneByOne) {
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
  std::byte* const memory = map_at(nullptr, 'a');
  auto held = cache.acquire({memory, kBytes});
  auto other = cache.acquire({memory, kBytes});
  ASSERT_EQ(held, other);
  cache.forget(held);
  cache.forget(other);  // the same registration
  held.reset();
  EXPECT_EQ(adapter.pinned(), 1u) << "`other` still uses it";
  const auto fresh = cache.acquire({memory, kBytes});
  EXPECT_NE(fresh, other);
  other.reset();
  EXPECT_EQ(adapter.pinned(), 1u) << "only the new registration is left";
  munmap(memory, kBytes);
}

TEST(RegistrationCache, TakeNothingThatNobodyWatches) {
  FakeAdapter adapter;
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, nullptr);
  std::byte* const memory = map_at(nullptr, 'a');
  EXPECT_EQ(cache.acquire({memory, kBytes}), nullptr);
  EXPECT_EQ(adapter.pinned(), 0u);
  munmap(memory, kBytes);
}

TEST(RegistrationCache, SayWhereTheSystemRefuses) {
  FakeAdapter adapter;
  adapter.limit(kBytes / 2);
  RegistrationCache cache(adapter.reg(), adapter.dereg(), 1 << 30, MemoryMonitor::shared());
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
  EXPECT_TRUE(monitor->gone_since(cursor, [](std::uintptr_t, std::uintptr_t) {}))
      << "the cursor must work again after an overflow";
}

}  // namespace
}  // namespace tutti
