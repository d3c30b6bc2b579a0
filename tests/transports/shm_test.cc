// Tests of ShmTransport alone, with two ranks in one process. The tests call both sides by hand.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "shm_ranks.h"
#include "tests/support/patience.h"

namespace tutti {
namespace {

constexpr SegmentShape kShape{.ranks = 2, .slots = 2, .slot_bytes = 4096};

struct Pair {
  std::vector<std::unique_ptr<ShmTransport>> ranks = shm_ranks(kShape, in_process_exchanges(2));
};

TEST(ShmConnection, KeepsOrderAndNeverHoldsMoreThanItsSlots) {
  Pair pair;
  auto send = pair.ranks[0]->open_send(1, 3).value();
  auto receive = pair.ranks[1]->open_receive(0, 3).value();
  const CallTag tag = call(1);
  EXPECT_EQ(receive->arrival(tag), Arrival::kNothing);
  for (int round = 0; round < 100; ++round) {
    send_text(*send, "first", tag);
    send_text(*send, "second", tag);
    EXPECT_FALSE(send->ready()) << "both slots are in use";
    EXPECT_FALSE(send->drained());
    ASSERT_EQ(receive->arrival(tag), Arrival::kMessage);
    EXPECT_EQ(text_of(receive->front()), "first");
    receive->release();
    EXPECT_TRUE(send->ready());
    ASSERT_EQ(receive->arrival(tag), Arrival::kMessage);
    EXPECT_EQ(text_of(receive->front()), "second");
    EXPECT_EQ(receive->front().bytes, 7u);
    receive->release();
    EXPECT_EQ(receive->arrival(tag), Arrival::kNothing);
    EXPECT_TRUE(send->drained());
  }
}

TEST(ShmConnection, DropsWhatAFailedCallLeftAndWaitsWithWhatComesTooEarly) {
  Pair pair;
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send_text(*send, "stale", call(1));
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kMessage) << "call 1 sees the message, then fails without releasing it";
  send_text(*send, "fresh", call(2));
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kMessage);
  ASSERT_EQ(receive->arrival(call(2)), Arrival::kMessage);
  EXPECT_EQ(text_of(receive->front()), "fresh");
  receive->release();
  send_text(*send, "early", call(4));
  EXPECT_EQ(receive->arrival(call(3)), Arrival::kNothing);
  EXPECT_EQ(receive->arrival(call(4)), Arrival::kMessage);
}

TEST(ShmConnection, SaysWhichCallThePeerMeans) {
  Pair pair;
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send_text(*send, "x", call(1, 11));
  ASSERT_EQ(receive->arrival(call(1, 10)), Arrival::kMismatch);
  EXPECT_EQ(receive->mismatched_tag(), call(1, 11));
  // also after the message was found by its own tag
  ASSERT_EQ(receive->arrival(call(1, 11)), Arrival::kMessage);
  EXPECT_EQ(receive->arrival(call(1, 10)), Arrival::kMismatch);
  EXPECT_EQ(receive->arrival(call(1, 11)), Arrival::kMessage);
}

TEST(ShmWindow, IsReadInPlaceByThePeerAndFoundByAddress) {
  Pair pair;
  auto window = pair.ranks[0]->allocate_window(8192).value();
  std::strcpy(reinterpret_cast<char*>(window->data()) + 5000, "in place");
  EXPECT_EQ(pair.ranks[0]->find_window(window->data(), 8193).window, 0u) << "the range is longer than the window";
  EXPECT_EQ(pair.ranks[0]->find_window(&pair, 1).window, 0u);
  const WindowRef place = pair.ranks[0]->find_window(window->data() + 5000, 9);
  ASSERT_NE(place.window, 0u);
  EXPECT_EQ(place.offset, 5000u);
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send->send_published(place, 9, call(1));
  ASSERT_EQ(receive->arrival(call(1)), Arrival::kMessage);
  EXPECT_EQ(receive->front().carrier, Carrier::kPublished);
  EXPECT_EQ(text_of(receive->front()), "in place");
  receive->release();
  EXPECT_TRUE(send->drained());
}

TEST(ShmWindow, APlaceOutsideTheWindowIsRefused) {
  Pair pair;
  auto window = pair.ranks[0]->allocate_window(4096).value();
  const WindowRef place = pair.ranks[0]->find_window(window->data(), 1);
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send->send_published({.window = place.window, .offset = 4090}, 100, call(1));
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kCorrupt);
}

// Returns the file from which the page at `address` is mapped, according to /proc/self/maps. Empty for private
// memory.
std::string file_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &start, &end) != 2) continue;
    const auto at = reinterpret_cast<unsigned long>(address);
    if (at < start || at >= end) continue;
    const std::size_t name = line.find('/');
    return name == std::string::npos ? "" : line.substr(name);
  }
  return "nowhere";
}

TEST(ShmWindow, AdoptedMemoryIsPrivateAgainAtOnceThoughAPeerInThisProcessHasMappedIt) {
  Pair pair;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, 16384));
  std::strcpy(reinterpret_cast<char*>(memory), "kept");
  auto window = pair.ranks[0]->adopt_window(memory, 16384).value();
  EXPECT_NE(file_at(memory).find("tutti"), std::string::npos) << file_at(memory);
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send->send_published(pair.ranks[0]->find_window(memory, 5), 5, call(1));
  ASSERT_EQ(receive->arrival(call(1)), Arrival::kMessage);
  EXPECT_EQ(text_of(receive->front()), "kept");
  receive->release();
  window.reset();
  EXPECT_EQ(file_at(memory).find("tutti"), std::string::npos) << file_at(memory);
  EXPECT_STREQ(reinterpret_cast<char*>(memory), "kept");
  std::free(memory);
  receive.reset();  // unmaps the peer's view, which must not touch the freed memory
}

TEST(ShmWindow, ATakenBackWindowIsNeverFound) {
  Pair pair;
  auto window = pair.ranks[0]->allocate_window(4096).value();
  const WindowRef place = pair.ranks[0]->find_window(window->data(), 1);
  window.reset();
  auto send = pair.ranks[0]->open_send(1, 0).value();
  auto receive = pair.ranks[1]->open_receive(0, 0).value();
  send->send_published(place, 1, call(1));
  EXPECT_EQ(receive->arrival(call(1)), Arrival::kNothing);
}

TEST(ShmBoard, OffersAnOutputOnlyDuringItsCall) {
  Pair pair;
  auto window = pair.ranks[1]->allocate_window(4096).value();
  const WindowRef place = pair.ranks[1]->find_window(window->data(), 4096);
  EXPECT_FALSE(pair.ranks[0]->peer_output(1, 1, 4096).has_value())
      << "the peer has not entered the call yet, so the answer is unknown";
  pair.ranks[1]->enter_call(call(1), place);
  EXPECT_EQ(pair.ranks[0]->peer_output(1, 1, 4096), std::optional(window->data()));
  pair.ranks[1]->leave_call(call(1), std::nullopt);
  pair.ranks[1]->enter_call(call(2), place);
  pair.ranks[1]->leave_call(call(2), std::nullopt);
  EXPECT_EQ(pair.ranks[0]->peer_output(1, 2, 4096), std::optional<std::byte*>(nullptr))
      << "the output was withdrawn at the end of the call";
  pair.ranks[1]->enter_call(call(3), place);
  EXPECT_EQ(pair.ranks[0]->peer_output(1, 3, 4097), std::optional<std::byte*>(nullptr))
      << "the output is shorter than this rank needs";
}

TEST(ShmBoard, ShowsCallsFailuresAndLives) {
  Pair pair;
  EXPECT_EQ(pair.ranks[0]->peer_status(1).entered, 0u);
  for (std::uint64_t sequence = 1; sequence <= kCallRecords + 2; ++sequence) {
    pair.ranks[1]->enter_call(call(sequence, sequence * 100), {});
    EXPECT_EQ(pair.ranks[0]->peer_call(1, sequence), call(sequence, sequence * 100));
    EXPECT_FALSE(pair.ranks[0]->peer_call(1, sequence + 1).has_value());
    EXPECT_EQ(pair.ranks[0]->peer_status(1).entered, sequence);
    EXPECT_EQ(pair.ranks[0]->peer_status(1).left, sequence - 1);
    const CallFailure failure{ErrorCode::kMismatch, 1, CallArgument::kCount};
    pair.ranks[1]->leave_call(call(sequence), sequence == 4 ? std::optional(failure) : std::nullopt);
    EXPECT_EQ(pair.ranks[0]->peer_failure(1, sequence), sequence == 4 ? std::optional(failure) : std::nullopt);
  }
  EXPECT_TRUE(pair.ranks[0]->peer_call(1, 3).has_value()) << "the board remembers the last few calls";
  EXPECT_FALSE(pair.ranks[0]->peer_call(1, 1).has_value());
  pair.ranks[1]->announce_abort();
  EXPECT_EQ(pair.ranks[0]->peer_status(1).life, PeerLife::kAborted);
  pair.ranks[0].reset();
  EXPECT_EQ(pair.ranks[1]->peer_status(0).life, PeerLife::kLeft);
}

// A peer may write any number into the memory that it shares. A rank uses such a number as an enumerator or an index
// only after it has checked its range.
TEST(ShmBoard, NumbersThatNoSoundRankWritesAreNotPassedOn) {
  const Exchanges exchanges = in_process_exchanges(2);
  const auto ranks = shm_ranks(kShape, exchanges);
  ranks[1]->enter_call(call(1), {});
  ranks[1]->leave_call(call(1), CallFailure{ErrorCode::kMismatch, 1, CallArgument::kCount});
  auto mapping = exchanges[0]->find(1, 1);  // the first mapping that the peer has shared
  ASSERT_NE(mapping, nullptr);
  Board& board = Segment::open(mapping, kShape, 1).value().board();
  FailureRecord& record = board.failures[1];
  ASSERT_EQ(record.sequence.load(), 1u);
  record.packed_fields = record.packed_fields | 0xff;
  EXPECT_EQ(ranks[0]->peer_failure(1, 1), std::optional(CallFailure{.code = ErrorCode::kRefused}));
  record.packed_fields = 0xff00;
  EXPECT_EQ(ranks[0]->peer_failure(1, 1), std::optional(CallFailure{.code = ErrorCode::kRefused}));
  board.life = 200;
  EXPECT_EQ(ranks[0]->peer_status(1).life, PeerLife::kLost);
}

TEST(Doorbell, ARingBetweenArmingAndSleepingIsNotLost) {
  Pair pair;
  Doorbell& bell = pair.ranks[0]->doorbell();
  auto send = pair.ranks[1]->open_send(0, 0).value();
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < 50; ++round) {
    bell.arm();
    std::thread ringer([&] { bell.ring(); });
    ringer.join();
    bell.sleep(std::chrono::nanoseconds(2 * test::patience()).count());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, test::patience());
}

TEST(Segment, AStrangersMemoryIsRefused) {
  auto good = Segment::create(kShape, 1);
  ASSERT_TRUE(good.ok());
  EXPECT_FALSE(Segment::open(good->mapping(), kShape, 0).ok()) << "the segment belongs to another rank";
  SegmentShape other = kShape;
  other.slots = 3;
  auto wrong_shape = Segment::open(good->mapping(), other, 1);
  ASSERT_FALSE(wrong_shape.ok());
  EXPECT_EQ(wrong_shape.error().code, ErrorCode::kMismatch);
  auto garbage = Mapping::create(1 << 16, false);
  ASSERT_TRUE(garbage.ok());
  EXPECT_EQ(Segment::open(*garbage, kShape, 1).error().code, ErrorCode::kRefused);
  auto tiny = Mapping::create(16, false);
  ASSERT_TRUE(tiny.ok());
  EXPECT_EQ(Segment::open(*tiny, kShape, 1).error().code, ErrorCode::kRefused);
}

TEST(Mapping, OnlySealedMemoryOfAPeerIsMapped) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC);
  ASSERT_GE(unsealed, 0);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_FALSE(Mapping::map(unsealed).ok()) << "its owner could shrink it while it is mapped here";
  EXPECT_FALSE(Mapping::map(open("/dev/null", O_RDWR)).ok());
  EXPECT_FALSE(Mapping::map(-1).ok());
}

// The first page of a large mapping of a peer is mapped twice. Both views must show the same memory, and both must
// be unmapped at the end.
TEST(Mapping, TheFirstPageOfALargeOneIsSeenTwice) {
  const auto mappings_of_memfds = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != std::string::npos ? 1 : 0;
    return count;
  };
  const auto own = Mapping::create(std::size_t{512} << 20, false).value();
  EXPECT_EQ(own->first_page(), own->data()) << "the owner needs no second view";
  const int before = mappings_of_memfds();
  auto peers = Mapping::map(dup(own->fd())).value();
  EXPECT_NE(peers->first_page(), peers->data());
  own->data()[1] = std::byte{7};
  EXPECT_EQ(peers->first_page()[1], std::byte{7});
  peers->first_page()[1] = std::byte{9};
  EXPECT_EQ(peers->data()[1], std::byte{9});
  EXPECT_EQ(mappings_of_memfds(), before + 2);
  peers.reset();
  EXPECT_EQ(mappings_of_memfds(), before);
}

// The memory has no name in any folder, so other users cannot open it.
TEST(Mapping, HasNoNameInAnyFolder) {
  auto mapping = Mapping::create(4096, false);
  ASSERT_TRUE(mapping.ok());
  struct stat about {};
  ASSERT_EQ(fstat((*mapping)->fd(), &about), 0);
  EXPECT_EQ(about.st_nlink, 0U);
}

// One rank withdraws its output while the other enters the call. Either the first rank sees that the other has
// entered, and waits for it, or the other rank finds no output to store to.
TEST(ShmBoard, AnOutputIsTakenBackOrWhoMayStoreThereIsSeen) {
#if defined(__SANITIZE_THREAD__)  // slow under TSan, and TSan orders memory accesses more strictly than the CPU
  constexpr std::uint64_t kCalls = 20'000;
#else
  constexpr std::uint64_t kCalls = 600'000;
#endif
  Pair pair;
  auto window = pair.ranks[0]->allocate_window(4096).value();
  const WindowRef output = pair.ranks[0]->find_window(window->data(), 4096);
  ASSERT_NE(output.window, 0u);
  std::array<std::atomic<std::uint64_t>, 2> at{};
  const auto meet = [&at](std::size_t me, std::uint64_t place) {
    at[me].store(place);
    for (int polls = 0; at[1 - me].load() < place; ++polls) {
      if (polls % 1000 == 999) std::this_thread::yield();
    }
  };
  const auto delay = [](std::uint64_t turns) {  // for less time than relax() takes
    for (std::uint64_t i = 0; i < turns; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
  };
  std::atomic<bool> seen = false;
  std::atomic<bool> stores = false;
  std::atomic<bool> last = false;
  std::uint64_t unseen = 0;
  std::thread other([&] {
    bool ends = false;
    for (std::uint64_t n = 1; !ends; ++n) {
      meet(1, 3 * n);
      delay(n % 41);
      pair.ranks[1]->enter_call(call(n), {});
      stores = pair.ranks[1]->peer_output(0, n, 4096).value_or(nullptr) != nullptr;
      meet(1, 3 * n + 1);
      ends = last;
      meet(1, 3 * n + 2);
    }
  });
  // If the threads have to share a core with other programs, each meeting may take milliseconds. So the test makes
  // fewer calls if they take more than 10 s, but at least kLeastCalls.
  constexpr std::uint64_t kLeastCalls = 100;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (std::uint64_t n = 1; !last; ++n) {
    pair.ranks[0]->enter_call(call(n), output);
    if (n == kCalls || (n >= kLeastCalls && std::chrono::steady_clock::now() > end)) last = true;
    meet(0, 3 * n);
    delay(n % 37);
    pair.ranks[0]->leave_call(call(n), CallFailure{.code = ErrorCode::kTimeout, .culprit = 1});
    seen = pair.ranks[0]->peer_status(1).entered >= n;
    meet(0, 3 * n + 1);
    if (stores && !seen) ++unseen;
    meet(0, 3 * n + 2);
  }
  other.join();
  EXPECT_EQ(unseen, 0u);
}

// A rank that polls a peer's status while the peer finishes its last call and leaves must always see the finished
// call.
TEST(ShmBoard, WhoHasGoneAfterItsLastCallIsSeenToHaveFinishedIt) {
  constexpr std::size_t kPairs = 300;
  std::vector<Pair> pairs(kPairs);
  std::atomic<std::size_t> watched = 0;
  std::thread goes([&] {
    for (std::size_t i = 0; i < kPairs; ++i) {
      pairs[i].ranks[0]->enter_call(call(1), {});
      while (watched.load() <= i) std::this_thread::yield();
      for (std::size_t wait = 0; wait < i % 61 * 5; ++wait) relax();
      pairs[i].ranks[0]->leave_call(call(1), std::nullopt);
      pairs[i].ranks[0]->announce_leave();
    }
  });
  for (std::size_t i = 0; i < kPairs; ++i) {
    watched = i + 1;
    PeerStatus status;
    do {
      status = pairs[i].ranks[1]->peer_status(0);
    } while (status.life == PeerLife::kLive);
    EXPECT_EQ(status.left, 1u) << "pair " << i;
  }
  goes.join();
}

}  // namespace
}  // namespace tutti
