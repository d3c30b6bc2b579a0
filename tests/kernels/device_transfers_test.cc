// Tests of sends and receives in device code (kernels/device/transfer.h), run by the emulator: every message arrives,
// whatever the order of the calls and the number of blocks, and deliberate synchronisation bugs are found.
#include "executor/device_transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "executor/device_arena.h"
#include "kernels/device/transfer.h"
#include "tests/device/emulator/emulator.h"
#include "tutti/types.h"

namespace tutti::testing {
namespace {

using emu::Emulator;
using emu::Policy;

using Bytes = std::vector<std::byte>;

struct Message {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t bytes = 0;
};

struct Setting {
  std::uint32_t ranks = 3;
  std::uint32_t blocks = 2;
  std::uint32_t connections = 3;
  std::uint64_t slot_bytes = 256;
  Policy policy = Policy::kRandom;
  bool weak = false;
  std::uint64_t seed = 1;
};

// The ranks of a communicator, with their connections and the buffers of their last call.
class Ranks {
 public:
  explicit Ranks(const Setting& setting)
      : setting_(setting),
        arena_(setting.ranks, {DeviceArena::Connections{.count = 0}, {.count = 0}, {.count = 0}},
               {.count = setting.connections, .slots = 2, .slot_bytes = setting.slot_bytes}),
        random_(setting.seed) {
    std::vector<DeviceArena::ArenaPeer> peers;
    for (std::uint32_t rank = 0; rank < setting.ranks; ++rank) {
      memory_.emplace_back(arena_.bytes() / sizeof(Line) + 1);
      peers.push_back({.arena = reinterpret_cast<std::uintptr_t>(memory_.back().data()), .all_of_memory = true});
    }
    for (std::uint32_t rank = 0; rank < setting.ranks; ++rank) links_.push_back(arena_.transfer_links(rank, peers));
    statuses_.resize(setting.ranks);
  }

  device::FailureWord failure(std::uint32_t rank) const { return device::FailureWord::of(statuses_[rank].failure); }
  std::vector<device::Link>& links(std::uint32_t rank) { return links_[rank]; }
  device::RankStatus& status(std::uint32_t rank) { return statuses_[rank]; }
  void set_timeout(std::uint64_t ns) { timeout_ns_ = ns; }
  // Changes what one rank passes for a message.
  using Change = std::function<void(std::uint32_t rank, Transfer& transfer)>;
  void on_transfer(Change change) { change_ = std::move(change); }

  // Sends all messages in one launch of each rank. Returns true if all launches have ended and everything has arrived.
  template <class Faults = device::NoFaults>
  bool move(const std::vector<Message>& messages) {
    std::vector<Bytes> sent;
    std::vector<Bytes> received;
    std::vector<std::size_t> starts;  // of the data in its buffer, so that buffers have different alignments
    for (const Message& message : messages) {
      starts.push_back(4 * (random_() % 5));
      sent.emplace_back(message.bytes + 64);
      for (std::byte& byte : sent.back()) byte = static_cast<std::byte>(random_());
      received.emplace_back(message.bytes + 64);
    }
    Emulator emulator({.seed = setting_.seed, .policy = setting_.policy, .yield_log2 = 5, .weak = setting_.weak});
    std::vector<DeviceTransfers> packed;
    for (std::uint32_t rank = 0; rank < setting_.ranks; ++rank) {
      packed.push_back(pack_transfers(transfers_of(rank, messages, starts, sent, received), setting_.ranks,
                                      setting_.connections, links_[rank].data()));
    }
    for (std::uint32_t rank = 0; rank < setting_.ranks; ++rank) launch<Faults>(emulator, rank, packed[rank]);
    const bool ended = emulator.run() == Emulator::RunResult::kIdle && emulator.overtaking() == 0;
    bool right = ended;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      Bytes wanted(messages[i].bytes + 64);
      std::copy_n(sent[i].begin() + 16, messages[i].bytes, wanted.begin() + static_cast<std::ptrdiff_t>(starts[i]));
      right = right && received[i] == wanted;
    }
    for (std::uint32_t rank = 0; rank < setting_.ranks; ++rank) right = right && statuses_[rank].failure == 0;
    return right;
  }

 private:
  struct alignas(device::kLineBytes) Line {
    std::byte bytes[device::kLineBytes];
  };

  // The transfers of one rank in a random order, in which those of the same peer and direction keep theirs.
  std::vector<Transfer> transfers_of(std::uint32_t rank, const std::vector<Message>& messages,
                                     const std::vector<std::size_t>& starts, std::vector<Bytes>& sent,
                                     std::vector<Bytes>& received) {
    std::map<std::pair<std::uint32_t, bool>, std::vector<Transfer>> pairs;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Message& message = messages[i];
      if (message.from != rank && message.to != rank) continue;
      const bool sends = message.from == rank;
      Transfer transfer;
      transfer.direction = sends ? Direction::kSend : Direction::kReceive;
      transfer.peer = sends ? message.to : message.from;
      transfer.data = sends ? sent[i].data() + 16 : received[i].data() + starts[i];
      transfer.bytes = message.bytes;
      const bool words = message.bytes % 4 == 0;
      transfer.tag = {.count = words ? message.bytes / 4 : message.bytes,
                      .type = static_cast<std::uint8_t>(words ? DataType::kFloat32 : DataType::kUint8)};
      if (change_) change_(rank, transfer);
      pairs[{transfer.peer, sends}].push_back(transfer);
    }
    std::vector<Transfer> all;
    while (!pairs.empty()) {
      auto next = pairs.begin();
      std::advance(next, random_() % pairs.size());
      all.push_back(next->second.front());
      next->second.erase(next->second.begin());
      if (next->second.empty()) pairs.erase(next);
    }
    return all;
  }

  template <class Faults>
  void launch(Emulator& emulator, std::uint32_t rank, const DeviceTransfers& packed) {
    device::TransferLaunch launch;
    launch.status = &statuses_[rank];
    launch.timeout_ns = timeout_ns_;
    launch.queue_count = static_cast<std::uint32_t>(packed.queues.size());
    if (packed.queues.size() <= device::kInlineQueues && packed.parts.size() <= device::kInlineParts) {
      std::ranges::copy(packed.queues, launch.inline_queues);
      std::ranges::copy(packed.parts, launch.inline_parts);
    } else {
      launch.queues = packed.queues.data();
      launch.parts = packed.parts.data();
    }
    emulator.launch(rank, setting_.blocks, 32, [launch] { device::transfer<Faults>(launch); });
  }

  const Setting setting_;
  const DeviceArena arena_;
  std::mt19937_64 random_;
  std::vector<std::vector<Line>> memory_;         // the arenas, indexed by rank
  std::vector<std::vector<device::Link>> links_;  // indexed by rank
  std::vector<device::RankStatus> statuses_;      // indexed by rank
  std::uint64_t timeout_ns_ = device::kForever;
  Change change_;
};

std::vector<Message> random_messages(std::uint32_t ranks, std::size_t count, std::mt19937_64& random) {
  constexpr std::uint64_t kLengths[] = {1, 3, 64, 255, 256, 257, 1'000, 4'099, 70'004};
  std::vector<Message> messages;
  while (messages.size() < count) {
    const Message message{static_cast<std::uint32_t>(random() % ranks), static_cast<std::uint32_t>(random() % ranks),
                          kLengths[random() % std::size(kLengths)]};
    if (message.from != message.to) messages.push_back(message);
  }
  return messages;
}

TEST(DeviceTransfers, ArriveInWhateverOrderTheyAreMade) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 random(seed);
    const Setting setting{.ranks = static_cast<std::uint32_t>(2 + random() % 4),
                          .blocks = static_cast<std::uint32_t>(1 + random() % 4),
                          .connections = static_cast<std::uint32_t>(1 + random() % 3),
                          .policy = seed % 2 == 0 ? Policy::kRandom : Policy::kPriority,
                          .weak = seed % 3 == 0,
                          .seed = seed};
    Ranks ranks(setting);
    for (int call = 0; call < 3; ++call) {
      EXPECT_TRUE(ranks.move(random_messages(setting.ranks, 1 + random() % 12, random))) << "seed " << seed;
    }
  }
}

// More than fit into the parameters of the kernel.
TEST(DeviceTransfers, MayBeMany) {
  std::mt19937_64 random(7);
  Ranks ranks({.ranks = 4});
  std::vector<Message> messages;
  for (int i = 0; i < 200; ++i) messages.push_back({.from = 0, .to = 1, .bytes = 1 + random() % 300});
  EXPECT_TRUE(ranks.move(messages));
}

TEST(DeviceTransfers, OfOtherLengthOrTypeAreRefused) {
  for (const bool other_type : {false, true}) {
    Ranks ranks({.ranks = 2});
    ranks.on_transfer([&](std::uint32_t rank, Transfer& transfer) {
      if (rank != 1) return;
      if (other_type)
        transfer.tag.type = static_cast<std::uint8_t>(DataType::kInt32);
      else
        transfer.tag.count = 24;
    });
    ranks.set_timeout(1'000'000);
    EXPECT_FALSE(ranks.move({{.from = 0, .to = 1, .bytes = 100}}));
    EXPECT_EQ(ranks.failure(1).cause, device::Failure::kMismatch);
    EXPECT_EQ(ranks.failure(1).peer, 0u);
  }
}

TEST(DeviceTransfers, WithoutAPartnerTimeOut) {
  for (const std::uint32_t absent : {0u, 1u}) {
    Ranks ranks({.ranks = 3});
    ranks.on_transfer([&](std::uint32_t rank, Transfer& transfer) {
      if (rank == absent) transfer.peer = 2;
    });
    ranks.set_timeout(1'000'000);
    // more than the slots hold, so that the sender waits, too
    EXPECT_FALSE(ranks.move({{.from = 0, .to = 1, .bytes = 4'000}}));
    EXPECT_EQ(ranks.failure(1 - absent).cause, device::Failure::kTimedOut);
    EXPECT_EQ(ranks.failure(1 - absent).peer, absent);
  }
}

TEST(DeviceTransfers, OnAConnectionThatIsInUseAreRefused) {
  Ranks ranks({.ranks = 2});
  for (device::Link& link : ranks.links(1)) link.running = 1;
  ranks.set_timeout(1'000'000);
  EXPECT_FALSE(ranks.move({{.from = 0, .to = 1, .bytes = 4'000}}));
  EXPECT_EQ(ranks.failure(1).cause, device::Failure::kMisused);
}

// A rank that has left has posted all of its messages before. Only a queue that waits for more of them fails.
TEST(DeviceTransfers, OfARankThatHasLeftEnd) {
  for (const bool posts : {false, true}) {
    Ranks ranks({.ranks = 3});
    ranks.on_transfer([&](std::uint32_t rank, Transfer& transfer) {
      if (rank == 0 && !posts) transfer.peer = 2;
    });
    ranks.status(1).left = 1;
    EXPECT_EQ(ranks.move({{.from = 0, .to = 1, .bytes = 200}}), posts);
    EXPECT_EQ(ranks.failure(1).cause, posts ? device::Failure::kNone : device::Failure::kLeft);
  }
}

struct MissingBarrier : device::NoFaults {
  static constexpr bool kBarrierBeforePost = false;
};
struct RelaxedForRelease : device::NoFaults {
  static constexpr bool kReleasesTail = false;
};
struct RelaxedCredit : device::NoFaults {
  static constexpr bool kReleasesCredit = false;
};
struct RelaxedTail : device::NoFaults {
  static constexpr bool kAcquiresTail = false;
};
struct OneCreditTooMany : device::NoFaults {
  static constexpr std::uint64_t kExtraCredits = 1;
};

constexpr int kSeeds = 20;

// Returns the number of seeds with which the bug is noticed.
template <class Faults>
int found_by(Setting setting) {
  int found = 0;
  for (setting.seed = 1; setting.seed <= kSeeds; ++setting.seed) {
    Ranks ranks(setting);
    ranks.set_timeout(100'000'000);
    bool right = true;
    for (int call = 0; call < 2; ++call) {
      right = right && ranks.move<Faults>({{0, 1, 4'000}, {1, 2, 4'000}, {0, 2, 3'000}, {2, 0, 5'000}});
    }
    found += right ? 0 : 1;
  }
  return found;
}

template <class Faults>
void expect_found(const Setting& setting) {
  EXPECT_EQ(found_by<device::NoFaults>(setting), 0) << "the kernel without the bug fails";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer would report the deliberate bug";
#endif
  EXPECT_GE(found_by<Faults>(setting), 2) << "of " << kSeeds << " seeds";
}

TEST(TransferMutants, AMissingBarrierIsFound) { expect_found<MissingBarrier>({}); }
TEST(TransferMutants, ARelaxedStoreInPlaceOfAReleaseIsFound) { expect_found<RelaxedForRelease>({.weak = true}); }
TEST(TransferMutants, ACreditThatIsNotReleasedIsFound) { expect_found<RelaxedCredit>({.weak = true}); }
TEST(TransferMutants, AMissingAcquireIsFound) { expect_found<RelaxedTail>({.weak = true}); }
TEST(TransferMutants, OneCreditTooManyIsFound) { expect_found<OneCreditTooMany>({.policy = Policy::kPriority}); }

}  // namespace
}  // namespace tutti::testing
