// Tests short calls that bypass the queue. They are mixed with all other ways of making the same call, and with
// ranks that are late, leave, abort, or disagree while a root is ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "base/wait.h"
#include "communicator/single_copy_support.h"
#include "engine/arguments.h"
#include "executor/inline_collective.h"
#include "transports/transport.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;

std::size_t in_blocks(const CollectiveCall& call, std::int32_t rank, std::int32_t ranks) {
  return input_blocks({.kind = call.kind,
                       .ranks = static_cast<std::uint32_t>(ranks),
                       .root = static_cast<std::uint32_t>(call.root)},
                      static_cast<std::uint32_t>(rank))
      .count;
}

std::size_t out_blocks(const CollectiveCall& call, std::int32_t rank, std::int32_t ranks) {
  return output_blocks({.kind = call.kind,
                        .ranks = static_cast<std::uint32_t>(ranks),
                        .root = static_cast<std::uint32_t>(call.root)},
                       static_cast<std::uint32_t>(rank))
      .count;
}

// Element `i` of a rank's input in the given round.
std::int32_t word_of(int round, std::int32_t rank, std::size_t i) {
  return round * 1000 + rank * 7 + static_cast<std::int32_t>(i % 97);
}

// The expected element `i` of a rank's output.
std::int32_t expected_of(const CollectiveCall& call, int round, std::int32_t rank, std::int32_t ranks, std::size_t i) {
  const std::size_t in_block = i % call.count;
  const auto block = static_cast<std::uint32_t>(i / call.count);
  // The element's index in the input of each rank that contributes to it.
  const bool all_in = row_of(call.kind).input == BlockSet::kAll;
  const std::size_t at = all_in ? static_cast<std::size_t>(rank) * call.count + in_block : in_block;
  if (!reduces(call.kind)) {
    const std::uint32_t from =
        contributor_of(call.kind, static_cast<std::uint32_t>(ranks), static_cast<std::uint32_t>(call.root),
                       static_cast<std::uint32_t>(rank), block);
    return word_of(round, static_cast<std::int32_t>(from), at);
  }
  std::int32_t sum = 0;
  for (std::int32_t r = 0; r < ranks; ++r) sum += word_of(round, r, at);
  return sum;
}

// Makes the call in one of several ways: asynchronously (0), in a group (1), or directly.
Status make_call(Communicator& rank, const CollectiveCall& call, const CallOptions& options, std::uint32_t way) {
  if (way == 0) {
    auto work = rank.start(call, options);
    return work.ok() ? work->wait() : Status(work.error());
  }
  if (way == 1) {
    Group group;
    Status added = group.add(rank, call, options);
    return added.ok() ? group.run() : added;
  }
  return rank.run(call, options);
}

// True if the algorithm has no plan for this collective. This is the same on all ranks, and the call has had no
// effect.
bool algorithm_is_none(const Status& status) {
  return status.error().code == ErrorCode::kInvalidArgument &&
         status.error().message.find("is not one that has a plan") != std::string::npos;
}

class ShortCalls : public testing::TestWithParam<JobConfiguration> {};

// The arguments on which the ranks must agree are drawn equally on all ranks. Each rank draws for itself how it
// makes the call and where its memory is, because these must not influence the result.
void mixed_calls(Communicator& rank, int calls, std::uint32_t seed) {
  constexpr std::size_t kMostWords = 80'000;
  const std::int32_t me = rank.rank(), ranks = rank.size();
  std::mt19937 alike(seed);
  std::mt19937 own(seed * 64 + static_cast<std::uint32_t>(me));
  const std::size_t most = kMostWords * static_cast<std::size_t>(ranks) + 16;
  auto registered = rank.allocate(2 * most * sizeof(std::int32_t));
  ASSERT_TRUE(registered.ok());
  std::vector<std::int32_t> plain(2 * most);
  std::optional<CollectiveCall> last;
  for (int round = 0; round < calls; ++round) {
    const auto p = static_cast<std::size_t>(ranks);
    const std::array<std::size_t, 12> sizes{1,    12,   13,   300,   2048 / p, 2048 / p + 1,
                                            2048, 2049, 4000, 16384, 16385,    65536};
    CollectiveCall call;
    call.type = DataType::kInt32;
    call.kind = all_collectives()[alike() % all_collectives().size()];
    call.count = sizes[alike() % sizes.size()];
    call.root = static_cast<std::int32_t>(alike() % p);
    if (alike() % 2 == 0 && last) call = *last;  // a repeated call can use the fast path
    last = call;
    const Algorithm algorithm = all_algorithms()[alike() % all_algorithms().size()];
    const CallOptions options = with(alike() % 6 == 0 ? algorithm : Algorithm::kAuto);
    auto* words = own() % 2 == 0 ? plain.data() : reinterpret_cast<std::int32_t*>(registered->data());
    auto* other = own() % 2 == 0 ? plain.data() : reinterpret_cast<std::int32_t*>(registered->data());
    const std::size_t in = in_blocks(call, me, ranks) * call.count, out = out_blocks(call, me, ranks) * call.count;
    const bool in_place = own() % 3 == 0 && in == out;
    std::int32_t* output = in_place ? words : other + most;
    for (std::size_t i = 0; i < in; ++i) words[i] = word_of(round, me, i);
    if (!in_place) std::fill_n(output, out + 1, -1);
    call.input = words;
    call.output = output;
    for (std::uint32_t i = 0; i < own() % 64 * (own() % 16 == 0 ? 300 : 1); ++i) relax();
    const Status status = make_call(rank, call, options, own() % 8);
    if (!status.ok() && algorithm_is_none(status)) continue;
    ASSERT_TRUE(status.ok()) << round << ": " << to_string(status.error());
    if (call.kind == Kind::kBarrier) continue;
    for (std::size_t i = 0; i < out; ++i) {
      ASSERT_EQ(output[i], expected_of(call, round, me, ranks, i))
          << "call " << round << ", " << to_string(call.kind) << " of " << call.count << ", root " << call.root
          << ", rank " << me << ", element " << i;
    }
    if (!in_place) {
      ASSERT_EQ(output[out], -1) << "call " << round;
      for (std::size_t i = 0; i < in; ++i) ASSERT_EQ(words[i], word_of(round, me, i)) << "call " << round;
    }
  }
}

TEST_P(ShortCalls, GiveTheSameWhicheverWayEachRankMakesThem) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kCalls = 100;
#else
  constexpr int kCalls = 600;
#endif
  for (const std::int32_t size : {2, 3, 5}) {
    Communicators ranks = make_configured_ranks(GetParam(), size);
    on_every_rank(ranks, [](Communicator& rank) { mixed_calls(rank, kCalls, 11); });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShortCalls,
                         testing::Values(kConfigurations[0], kAttachedConfigurations[0], kAttachedConfigurations[1]),
                         [](const auto& world) { return std::string(world.param.name); });

// The fast path must refuse the same calls as the queue, with the same messages.
TEST(ShortCallArguments, AreJudgedAsWhereTheyAreQueued) {
  constexpr std::int32_t kRanks = 2;
  constexpr std::size_t kArena = 1280;  // no buffer is longer than this, including its offset
  Communicators ranks = make_ranks(kRanks);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::byte> arena(2 * kArena);
    std::mt19937 alike(3);
    int refused = 0, taken = 0;
    for (int round = 0; round < 6000; ++round) {
      CollectiveCall call;
      call.kind = static_cast<Kind>(alike() % 40 == 0 ? 9 + alike() % 3 : alike() % 9);
      call.type = static_cast<DataType>(alike() % 40 == 0 ? 99 : alike() % 10);
      call.op = static_cast<ReduceOp>(alike() % 40 == 0 ? 77 : alike() % 6);
      call.root = alike() % 16 == 0 ? static_cast<std::int32_t>(alike() % 5) - 2 : 0;
      call.count = alike() % 16 == 0 ? 0 : 1 + alike() % 64;
      if (alike() % 64 == 0) call.count = ~std::size_t{0} >> alike() % 4;
      CallOptions options;
      if (alike() % 8 == 0) options.algorithm = static_cast<Algorithm>(alike() % 20);
      if (alike() % 64 == 0) options.timeout = std::chrono::milliseconds(-1);
      const std::size_t step = alike() % 8 == 0 ? 1 : 8;
      const std::size_t from = alike() % 16 * step;
      const std::size_t to = alike() % 2 == 0   ? from
                             : alike() % 4 == 0 ? alike() % 16 * step
                                                : kArena + alike() % 4 * step;
      const std::uint32_t nulls = alike() % 32;
      call.input = nulls == 1 ? nullptr : arena.data() + from;
      call.output = nulls == 2 ? nullptr : arena.data() + to;
      const auto right = [&](std::uint32_t at) {
        detail::CheckedCall checked;
        return detail::check_call(checked, call, options, {.rank = at, .ranks = kRanks}).ok();
      };
      if (right(0) != right(1)) continue;  // only one of the ranks would make the call
      std::array<std::string, 2> said;
      std::array<std::vector<std::byte>, 2> after;
      for (const std::uint32_t way : {0u, 2u}) {
        for (std::size_t i = 0; i < arena.size(); ++i) arena[i] = static_cast<std::byte>(i * 13 + i / 256);
        const Status status = make_call(rank, call, options, way);
        said[way / 2] = status.ok() ? "" : to_string(status.error());
        after[way / 2] = arena;
      }
      ASSERT_EQ(said[0], said[1]) << round << ": " << to_string(call.kind);
      ASSERT_EQ(after[0], after[1]) << round << ": " << to_string(call.kind);
      ++(said[0].empty() ? taken : refused);
    }
    EXPECT_GT(refused, 500);
    EXPECT_GT(taken, 500);
  });
}

// Both ranks are roots and only send. Each must detect the other one's call, through its mailbox or through its
// status board. Either rank may be late, and one uses messages.
TEST(ShortCallsApart, TwoRootsAreToldWhenOneSendsMessages) {
  for (const std::int32_t late : {0, 1}) {
    Communicators ranks = make_ranks(2);
    std::atomic<int> told = 0;
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<float> data(8);
      const auto broadcast = [&](std::int32_t root, Algorithm algorithm) {
        return rank.broadcast(data.data(), data.data(), 8, DataType::kFloat32, root, with(algorithm));
      };
      for (int warm_up = 0; warm_up < 3; ++warm_up) {
        ASSERT_TRUE(broadcast(0, Algorithm::kAuto).ok());
        ASSERT_TRUE(rank.barrier().ok());
      }
      if (rank.rank() == late) pause_ms(100);  // any order must give the same result
      const Status status = rank.rank() == 0 ? broadcast(0, Algorithm::kAuto) : broadcast(1, Algorithm::kBinomial);
      if (!status.ok()) {
        EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
        ++told;
      }
      EXPECT_TRUE(rank.barrier().ok());
    });
    EXPECT_GE(told, 1) << "rank " << late << " came late";
  }
}

// The root is so far ahead that its status board no longer shows the call. Its mailbox still shows the disagreement.
TEST(ShortCallsApart, ARootThatNoLongerSaysWhatItMeantIsContradicted) {
  ASSERT_EQ(setenv("TUTTI_SLOTS", "64", 1), 0);
  Communicators ranks = make_ranks(2);
  ASSERT_EQ(unsetenv("TUTTI_SLOTS"), 0);
  std::atomic<bool> is_ahead = false;
  on_every_rank(ranks, [&is_ahead](Communicator& rank) {
    std::vector<float> data(8);
    const auto broadcast = [&](std::int32_t root, Algorithm algorithm) {
      return rank.broadcast(data.data(), data.data(), 8, DataType::kFloat32, root, with(algorithm));
    };
    if (rank.rank() == 0) {
      ASSERT_TRUE(broadcast(0, Algorithm::kAuto).ok());
      for (int ahead = 0; ahead < 40; ++ahead) ASSERT_TRUE(broadcast(0, Algorithm::kBinomial).ok());
      is_ahead = true;
      return;
    }
    EXPECT_TRUE(eventually([&is_ahead] { return is_ahead.load(); }));
    const Status status = broadcast(1, Algorithm::kAuto);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
    EXPECT_EQ(status.error().rank, 0);
  });
}

// Tests each type of disagreement with a root that is ahead. The reader's error must contain what both ranks passed,
// and the next calls must be in step.
TEST(ShortCallsApart, AReaderIsToldOfWhatARootFarAheadMeant) {
  struct Other {
    const char* word;
    CollectiveCall call;
  };
  float data[4] = {};
  const CollectiveCall plain{.kind = Kind::kBroadcast, .count = 2};
  std::vector<Other> others(5, {"", plain});
  others[0] = {"count", plain}, others[0].call.count = 1;
  others[1] = {"int32", plain}, others[1].call.type = DataType::kInt32;
  others[2] = {"root", plain}, others[2].call.root = 1;
  others[3] = {"scatter", plain}, others[3].call.kind = Kind::kScatter;
  others[4] = {"all_reduce", plain}, others[4].call.kind = Kind::kAllReduce;
  for (const Other& other : others) {
    Communicators ranks = make_ranks(2);
    std::atomic<std::size_t> calls_of_root = 0;
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<float> out(8);
      CollectiveCall call = plain;
      call.input = data;
      call.output = out.data();
      for (int warm_up = 0; warm_up < 2; ++warm_up) ASSERT_TRUE(rank.run(call).ok());
      ASSERT_TRUE(rank.barrier().ok());
      if (rank.rank() == 1) {
        EXPECT_TRUE(eventually([&] { return calls_of_root >= kMailboxes - 2; }));
        CollectiveCall wrong = other.call;
        wrong.input = data;
        wrong.output = out.data();
        const Status status = rank.run(wrong);
        ASSERT_FALSE(status.ok()) << other.word;
        EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
        EXPECT_THAT(status.error().message, HasSubstr(other.word));
      }
      for (std::size_t i = rank.rank() == 1 ? 1 : 0; i < kMailboxes + 3; ++i) {
        const Status status = rank.run(call);
        ASSERT_TRUE(status.ok()) << i << ": " << to_string(status.error());
        if (rank.rank() == 0) ++calls_of_root;
      }
      ASSERT_TRUE(rank.barrier().ok());
    });
  }
}

// A root that is ahead as far as possible waits until its timeout, and its error names the reader. Then all ranks
// continue.
TEST(ShortCallsApart, ARootAheadOfALateReaderTimesOutAndGoesOn) {
  Communicators ranks = make_ranks(3);
  std::atomic<int> waiting = 0;
  on_every_rank(ranks, [&waiting](Communicator& rank) {
    const auto meet = [&waiting](int all) {
      for (++waiting; waiting < all;) pause_ms(1);
    };
    int word = 0;
    CallOptions options;
    const auto broadcast = [&](int value) {
      word = rank.rank() == 0 ? value : -1;
      return rank.broadcast(&word, &word, 1, DataType::kInt32, 0, options);
    };
    ASSERT_TRUE(broadcast(1).ok());
    ASSERT_TRUE(rank.barrier().ok());
    if (rank.rank() == 2) meet(3);
    options.timeout = scaled(std::chrono::milliseconds(1000));
    int failed = 0;
    for (int i = 0; i < 10; ++i) {
      const Status status = broadcast(100 + i);
      if (status.ok()) {
        EXPECT_EQ(word, 100 + i);
        continue;
      }
      ++failed;
      EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
      EXPECT_EQ(status.error().rank, 2) << to_string(status.error());
    }
    EXPECT_EQ(failed, 2) << "rank " << rank.rank();  // all calls succeed except those for which no mailbox is free
    if (rank.rank() != 2) meet(3);
    options.timeout = patience();
    for (int i = 0; i < 20; ++i) {
      const Status status = broadcast(200 + i);
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      ASSERT_EQ(word, 200 + i);
    }
  });
}

enum class End : std::uint8_t { kAborts, kLeaves };

// If a peer aborts or leaves, the call of a root that is ahead must end soon.
TEST(ShortCallsApart, APeerThatGoesAwayEndsARootThatIsAhead) {
  for (const End end : {End::kAborts, End::kLeaves}) {
    Communicators ranks = make_ranks(2);
    on_every_rank(ranks, [&](Communicator& rank) {
      int word = 5;
      const auto broadcast = [&] { return rank.broadcast(&word, &word, 1, DataType::kInt32, 0); };
      ASSERT_TRUE(broadcast().ok());
      ASSERT_TRUE(broadcast().ok());
      ASSERT_TRUE(rank.barrier().ok());
      if (rank.rank() == 1) {
        pause_ms(50);  // usually rank 0 waits by now; an earlier end gives the same result
        if (end == End::kAborts) return rank.abort();
        return ranks[1].reset();
      }
      Status status;
      std::size_t made = 0;
      while (made < 100 && (status = broadcast()).ok()) ++made;
      EXPECT_LE(made, kMailboxes);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, end == End::kAborts ? ErrorCode::kAborted : ErrorCode::kPeerLost);
      EXPECT_EQ(status.error().rank, 1);
    });
  }
}

// The values that a root has written stay readable after the root has destroyed its communicator.
TEST(ShortCallsApart, WhatARootHasShownOutlivesIt) {
  for (const std::int32_t root : {0, 1}) {
    Communicators ranks = make_ranks(2);
    on_every_rank(ranks, [&](Communicator& rank) {
      int word = 5;
      const bool sends = rank.rank() == root;
      ASSERT_TRUE(rank.broadcast(&word, &word, 1, DataType::kInt32, root).ok());
      ASSERT_TRUE(rank.barrier().ok());
      if (!sends) pause_ms(150);  // usually the root has left by then; otherwise the test is only weaker
      for (int i = 0; i < static_cast<int>(kMailboxes) - 2; ++i) {
        word = sends ? i : -1;
        const Status status = rank.broadcast(&word, &word, 1, DataType::kInt32, root);
        ASSERT_TRUE(status.ok()) << to_string(status.error());
        ASSERT_EQ(word, i);
      }
      if (sends) ranks[static_cast<std::size_t>(root)].reset();
    });
  }
}

// Some threads of a rank call finalize() or abort() or start work while other threads make short calls. No call may
// hang.
TEST(ShortCallsApart, FinalizeAndAbortBesideRunningCallsEndThem) {
  for (int round = 0; round < 60; ++round) {
    const bool aborts = round % 2 == 0;
    Communicators ranks = make_ranks(2);
    std::atomic<int> timed_out = 0;
    on_every_rank(ranks, [&](Communicator& rank) {
      std::thread ends;
      if (rank.rank() == 0) {
        ends = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(round * 23));
          if (aborts) rank.abort();
          if (!aborts) static_cast<void>(rank.finalize().ok());
        });
      }
      Status status;
      while (status.ok()) {
        std::int64_t one = 1;
        status = rank.all_reduce(&one, &one, 1, DataType::kInt64, ReduceOp::kSum);
      }
      timed_out += status.error().code == ErrorCode::kTimeout ? 1 : 0;
      if (ends.joinable()) ends.join();
    });
    EXPECT_EQ(timed_out, 0) << round;
  }
}

}  // namespace
}  // namespace tutti::test
