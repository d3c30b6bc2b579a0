// Tests sends, receives, groups of them and of collectives, and the v-variants, which are implemented as such
// groups.
#include "tutti/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

// Contents of the k-th message from rank `from` to rank `to`.
std::vector<std::int32_t> letter(std::int32_t from, std::int32_t to, int k, std::size_t count) {
  std::vector<std::int32_t> words(count);
  std::iota(words.begin(), words.end(), from * 1'000'003 + to * 10'007 + k * 101);
  return words;
}

std::int32_t size_of_world(Communicators& ranks) { return static_cast<std::int32_t>(ranks.size()); }

TEST(SendReceive, CarriesAnyLengthInTheOrderOfTheCalls) {
  auto ranks = make_ranks(2);
  const std::vector<std::size_t> counts = {0, 1, 7, 1000, 32'768, 32'769, 500'000};
  on_every_rank(ranks, [&](Communicator& rank) {
    for (int k = 0; k < static_cast<int>(counts.size()); ++k) {
      const std::size_t count = counts[static_cast<std::size_t>(k)];
      std::vector<std::int32_t> got(count, -1);
      const auto sent = letter(rank.rank(), 1 - rank.rank(), k, count);
      const bool first = rank.rank() == 0;
      if (first) {
        ASSERT_TRUE(rank.send(sent.data(), count, DataType::kInt32, 1).ok());
      }
      ASSERT_TRUE(rank.receive(got.data(), count, DataType::kInt32, 1 - rank.rank()).ok());
      if (!first) {
        ASSERT_TRUE(rank.send(sent.data(), count, DataType::kInt32, 0).ok());
      }
      ASSERT_EQ(got, letter(1 - rank.rank(), rank.rank(), k, count));
    }
  });
}

TEST(SendReceive, DoesNotHoldUpCollectives) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::int32_t> data(200'000);
    Group group;
    Work work;
    if (rank.rank() == 0) {  // rank 0 sends first, and rank 1 receives after the collective
      data = letter(0, 1, 0, data.size());
      ASSERT_TRUE(group.send(rank, data.data(), data.size(), DataType::kInt32, 1).ok());
      work = *group.start();
    }
    EXPECT_TRUE(sum_is_right(rank, 1000));
    if (rank.rank() == 1) {
      ASSERT_TRUE(rank.receive(data.data(), data.size(), DataType::kInt32, 0).ok());
      EXPECT_EQ(data, letter(0, 1, 0, data.size()));
    }
    EXPECT_TRUE(work.wait().ok());
  });
}

// Result of send_in_a_row(). Two ranks have the given timeout. Rank 0 starts several sends at once, and rank 1
// receives them one after the other, so that the last send waits for twice the timeout.
struct SendsInARow {
  std::vector<std::string> errors;            // error messages of the sends that failed
  std::chrono::steady_clock::duration pause;  // the longest time between two receives
};

SendsInARow send_in_a_row(const JobConfiguration& world, std::chrono::milliseconds timeout) {
  constexpr int kSends = 8;
  SendsInARow done{};
  Communicators ranks = make_configured_ranks(world, 2, timeout);
  const std::vector<std::int32_t> data(1 << 20, 7);  // longer than the slots or the socket buffers can hold
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() == 1) {
      std::vector<std::int32_t> got(data.size());
      auto last = std::chrono::steady_clock::now();
      for (int i = 0; i < kSends; ++i) {
        std::this_thread::sleep_for(timeout / 4);
        const bool received = rank.receive(got.data(), got.size(), DataType::kInt32, 0).ok();
        const auto now = std::chrono::steady_clock::now();
        done.pause = std::max(done.pause, now - last);
        last = now;
        if (!received) return;
      }
      return;
    }
    std::vector<Work> works;
    for (int i = 0; i < kSends; ++i) {
      Group group;
      ASSERT_TRUE(group.send(rank, data.data(), data.size(), DataType::kInt32, 1).ok());
      works.push_back(*group.start());
    }
    for (Work& work : works) {
      const Status sent = work.wait();
      if (!sent.ok()) done.errors.push_back(to_string(sent.error()));
    }
  });
  return done;
}

// The timeout of a call limits the time without progress. A send that waits behind others counts as progressing
// while they progress. If the machine is so busy that a rank was delayed too long, the test repeats with a longer
// timeout.
TEST(Group, ASendBehindOthersHasTimeWhileTheyMove) {
  constexpr int kLongest = 4;  // the longest timeout is this many times the shortest one
  const std::chrono::milliseconds shortest = scaled(std::chrono::milliseconds(1000));
  for (const JobConfiguration& world : {kConfigurations[0], kConfigurations[1]}) {
    std::chrono::milliseconds timeout = shortest;
    SendsInARow done = send_in_a_row(world, timeout);
    while (!done.errors.empty() && done.pause > timeout / 2 && timeout < kLongest * shortest) {
      timeout *= 2;
      done = send_in_a_row(world, timeout);
    }
    EXPECT_THAT(done.errors, testing::IsEmpty()) << world.name;
  }
}

TEST(Group, EndsWhateverTheOrderOfItsCalls) {
  constexpr int kLetters = 3;
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u}) {
    auto ranks = make_ranks(4);
    on_every_rank(ranks, [&](Communicator& rank) {
      const std::int32_t size = rank.size();
      std::mt19937 random(seed * 100 + static_cast<std::uint32_t>(rank.rank()));
      struct Slot {
        std::int32_t peer;
        int k;
        std::vector<std::int32_t> out, in;
      };
      std::vector<Slot> slots;
      for (std::int32_t peer = 0; peer < size; ++peer) {
        for (int k = 0; k < kLetters; ++k) {
          const std::size_t count = static_cast<std::size_t>(k) * 40'000 + 5;
          slots.push_back({peer, k, letter(rank.rank(), peer, k, count), std::vector<std::int32_t>(count)});
        }
      }
      // The order of peers and directions is random, but the messages of each pair keep their order.
      std::vector<std::pair<bool, std::int32_t>> calls;
      for (const Slot& slot : slots) {
        calls.emplace_back(true, slot.peer);
        calls.emplace_back(false, slot.peer);
      }
      std::shuffle(calls.begin(), calls.end(), random);
      std::vector<int> sent(static_cast<std::size_t>(size)), received(static_cast<std::size_t>(size));
      std::vector<float> sums(5000, 1.0f);
      Group group;
      bool collective_added = false;
      for (const auto& [sends, peer] : calls) {
        const auto p = static_cast<std::size_t>(peer);
        Slot& slot = slots[p * kLetters + static_cast<std::size_t>(sends ? sent[p]++ : received[p]++)];
        const Status added = sends ? group.send(rank, slot.out.data(), slot.out.size(), DataType::kInt32, peer)
                                   : group.receive(rank, slot.in.data(), slot.in.size(), DataType::kInt32, peer);
        ASSERT_TRUE(added.ok()) << to_string(added.error());
        if (!collective_added && random() % 4 == 0) {
          ASSERT_TRUE(group.add(rank, {.input = sums.data(), .output = sums.data(), .count = sums.size()}).ok());
          collective_added = true;
        }
      }
      if (!collective_added) {
        ASSERT_TRUE(group.add(rank, {.input = sums.data(), .output = sums.data(), .count = sums.size()}).ok());
      }
      const Status status = group.run();
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      for (const Slot& slot : slots) EXPECT_EQ(slot.in, letter(slot.peer, rank.rank(), slot.k, slot.in.size()));
      EXPECT_EQ(sums, std::vector<float>(5000, static_cast<float>(size)));
    });
  }
}

TEST(Group, RunsCollectivesOfSeveralCommunicatorsInAnyOrder) {
  auto a = make_ranks(3);
  auto b = make_ranks(3);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      std::vector<float> x(100'000, 1.0f), y(30'000, 2.0f), z(7, 3.0f);
      Group group;
      const auto add = [&](Communicator& on, std::vector<float>& data) {
        ASSERT_TRUE(group.add(on, {.input = data.data(), .output = data.data(), .count = data.size()}).ok());
      };
      // Each rank uses another order, even for calls on the same communicator.
      if (r == 0) add(*a[r], x), add(*b[r], y), add(*a[r], z);
      if (r == 1) add(*b[r], y), add(*a[r], z), add(*a[r], x);
      if (r == 2) add(*a[r], z), add(*a[r], x), add(*b[r], y);
      const Status status = group.run();
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      EXPECT_EQ(x, std::vector<float>(x.size(), 3.0f));
      EXPECT_EQ(y, std::vector<float>(y.size(), 6.0f));
      EXPECT_EQ(z, std::vector<float>(z.size(), 9.0f));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Group, LeftOpenRefusesOtherCallsAndIsForgottenWhenDropped) {
  auto ranks = make_ranks(2);
  std::vector<float> data(10);
  {
    Group open;
    ASSERT_TRUE(open.add(*ranks[0], {.input = data.data(), .output = data.data(), .count = 10}).ok());
    const Status refused = ranks[0]->barrier();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("Group"));
    Group second;
    EXPECT_FALSE(second.send(*ranks[0], data.data(), 10, DataType::kFloat32, 1).ok());
  }
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 10)); });
}

TEST(Group, HoldsUpNoOtherThread) {
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const std::int32_t other = 1 - rank.rank();
    std::vector<float> data(10, 1.0f), more(20, 2.0f);
    float sent = static_cast<float>(rank.rank()), got = -1.0f;
    Group open;
    ASSERT_TRUE(open.add(rank, {.input = data.data(), .output = data.data(), .count = 10}).ok());
    std::thread([&] {
      Group second;
      ASSERT_TRUE(second.add(rank, {.input = more.data(), .output = more.data(), .count = 20}).ok());
      ASSERT_FALSE(rank.barrier().ok()) << "this thread has an open group";
      ASSERT_TRUE(second.run().ok());
      Work work = *start_send(rank, &sent, 1, DataType::kFloat32, other);
      ASSERT_TRUE(rank.receive(&got, 1, DataType::kFloat32, other).ok());
      ASSERT_TRUE(work.wait().ok());
    }).join();
    EXPECT_FALSE(rank.barrier().ok());
    // another thread may run the group, although this thread opened it
    std::thread([&] { ASSERT_TRUE(open.run().ok()); }).join();
    ASSERT_TRUE(rank.barrier().ok());
    EXPECT_EQ(data, std::vector<float>(10, 2.0f));
    EXPECT_EQ(more, std::vector<float>(20, 4.0f));
    EXPECT_EQ(got, static_cast<float>(other));
  });
}

TEST(Group, SendsToItselfOnlyInPairs) {
  auto ranks = make_ranks(1);
  std::vector<std::int32_t> from = {1, 2, 3}, to(3);
  Group group;
  ASSERT_TRUE(group.send(*ranks[0], from.data(), 3, DataType::kInt32, 0).ok());
  {
    Group half;
    EXPECT_FALSE(half.send(*ranks[0], from.data(), 3, DataType::kInt32, 0).ok()) << "the first group is still open";
  }
  const Status wrong = group.receive(*ranks[0], to.data(), 2, DataType::kInt32, 0);
  EXPECT_FALSE(wrong.ok());
  ASSERT_TRUE(group.receive(*ranks[0], to.data(), 3, DataType::kInt32, 0).ok());
  EXPECT_TRUE(group.run().ok());
  EXPECT_EQ(to, from);
  ASSERT_TRUE(group.send(*ranks[0], from.data(), 3, DataType::kInt32, 0).ok());
  const Status alone = group.run();
  ASSERT_FALSE(alone.ok());
  EXPECT_THAT(alone.error().message, HasSubstr("no counterpart"));
  EXPECT_FALSE(ranks[0]->send(from.data(), 3, DataType::kInt32, 0).ok());
}

TEST(Group, ARefusedCallDoesNotOpenIt) {
  auto ranks = make_ranks(1);
  float x = 1.0f;
  CallOptions wrong;
  wrong.timeout = std::chrono::milliseconds(-1);
  Group group;
  EXPECT_FALSE(group.send(*ranks[0], &x, 1, DataType::kFloat32, 0, wrong).ok());
  EXPECT_TRUE(ranks[0]->barrier().ok()) << "the group holds no call on this communicator";
}

// A call without a timeout of its own has the communicator's, which is longer than that of the other call. The sleep
// only has to be longer than the short timeout; a longer delay does not change the result.
TEST(Group, TheLongestTimeoutCountsAndTheDefaultIsOne) {
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::int32_t first = 1, second = 2;
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_TRUE(rank.send(&first, 1, DataType::kInt32, 0).ok());
      EXPECT_TRUE(rank.send(&second, 1, DataType::kInt32, 0).ok());
      return;
    }
    CallOptions impatient;
    impatient.timeout = std::chrono::milliseconds(10);
    Group group;
    EXPECT_TRUE(group.receive(rank, &first, 1, DataType::kInt32, 1, impatient).ok());
    EXPECT_TRUE(group.receive(rank, &second, 1, DataType::kInt32, 1).ok());
    EXPECT_TRUE(group.run().ok());
  });
}

TEST(SendReceive, NamesThePeerWhoseCountDiffers) {
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<float> data(100);
    if (rank.rank() == 0) {
      EXPECT_TRUE(rank.send(data.data(), 99, DataType::kFloat32, 1).ok());
      EXPECT_TRUE(rank.send(data.data(), 50, DataType::kFloat32, 1).ok());
    } else {
      const Status status = rank.receive(data.data(), 100, DataType::kFloat32, 0);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
      EXPECT_EQ(status.error().rank, 0);
      EXPECT_THAT(status.error().message, HasSubstr("rank 0 sends count 99, this rank (1) expects count 100"));
      EXPECT_TRUE(rank.receive(data.data(), 50, DataType::kFloat32, 0).ok())
          << "the next send and receive must match again";
    }
  });
}

TEST(SendReceive, TimesOutWithTheNameOfTheSilentPeerAndGoesOn) {
  auto ranks = make_ranks(3);
  std::vector<float> data(10);
  CallOptions impatient;
  impatient.timeout = std::chrono::milliseconds(200);
  const Status status = ranks[0]->receive(data.data(), 10, DataType::kFloat32, 2, impatient);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(status.error().rank, 2);
  EXPECT_THAT(status.error().message, HasSubstr("receive #1 of 10 float32 from rank 2"));
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 10)); });
}

TEST(SendReceive, RefusesWhatCannotBeRight) {
  auto ranks = make_ranks(2);
  float x = 0;
  const auto refused = [&](const Status& status, const char* what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(what));
  };
  refused(ranks[0]->send(&x, 1, DataType::kFloat32, 2), "peer 2 is outside 0..1");
  refused(ranks[0]->send(&x, 1, DataType::kFloat32, -1), "peer -1 is outside 0..1");
  refused(ranks[0]->send(nullptr, 1, DataType::kFloat32, 1), "null");
  refused(ranks[0]->send(&x, 1, static_cast<DataType>(77), 1), "type 77");
  refused(ranks[0]->send(&x, SIZE_MAX / 2, DataType::kFloat32, 1), "more than any memory holds");
  refused(ranks[0]->receive(&x, 1, DataType::kFloat32, 0), "itself");
}

// In all_to_all_v(), rank r sends (r + 1) * (q + 1) * 1000 elements to rank q, except that rank 0 sends none to rank
// 1.
std::size_t a2a_count(std::int32_t from, std::int32_t to) {
  if (from == 0 && to == 1) return 0;
  return static_cast<std::size_t>(from + 1) * static_cast<std::size_t>(to + 1) * 1000;
}

TEST(AllToAllV, BringsEveryBlockToItsPlaceWithDisplacements) {
  auto ranks = make_ranks(4);
  on_every_rank(ranks, [&](Communicator& rank) {
    const std::int32_t size = size_of_world(ranks), me = rank.rank();
    std::vector<std::size_t> out_counts, in_counts, out_starts, in_starts;
    std::size_t out_end = 0, in_end = 0;
    for (std::int32_t q = 0; q < size; ++q) {
      out_counts.push_back(a2a_count(me, q));
      in_counts.push_back(a2a_count(q, me));
      out_starts.push_back(out_end += 3);  // leave gaps between the blocks
      in_starts.push_back(in_end += 5);
      out_end += out_counts.back();
      in_end += in_counts.back();
    }
    std::vector<std::int32_t> out(out_end, -1), in(in_end, -2);
    for (std::int32_t q = 0; q < size; ++q) {
      const auto words = letter(me, q, 0, out_counts[static_cast<std::size_t>(q)]);
      std::copy(words.begin(), words.end(),
                out.begin() + static_cast<std::ptrdiff_t>(out_starts[static_cast<std::size_t>(q)]));
    }
    const Status status = rank.all_to_all_v(out.data(), {.counts = out_counts, .displacements = out_starts}, in.data(),
                                            {.counts = in_counts, .displacements = in_starts}, DataType::kInt32);
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    std::size_t untouched = 0;
    for (std::int32_t q = 0; q < size; ++q) {
      const auto begin = in.begin() + static_cast<std::ptrdiff_t>(in_starts[static_cast<std::size_t>(q)]);
      const auto words = letter(q, me, 0, in_counts[static_cast<std::size_t>(q)]);
      EXPECT_TRUE(std::equal(words.begin(), words.end(), begin)) << "from rank " << q;
    }
    untouched = static_cast<std::size_t>(std::count(in.begin(), in.end(), -2));
    EXPECT_EQ(untouched, 20u) << "the gaps must not change";
  });
}

TEST(AllToAllV, NamesTheRankWhoseCountDisagrees) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::size_t> out_counts(3, 4), in_counts(3, 4);
    if (rank.rank() == 2) out_counts[0] = 5;
    std::vector<float> out(16), in(16);
    const Status status =
        rank.all_to_all_v(out.data(), {.counts = out_counts}, in.data(), {.counts = in_counts}, DataType::kFloat32);
    if (rank.rank() != 0) return;
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(status.error().rank, 2);
    EXPECT_THAT(status.error().message, HasSubstr("all_to_all_v"));
    EXPECT_THAT(status.error().message, HasSubstr("rank 2 sends count 5, this rank (0) expects count 4"));
  });
}

TEST(GatherV, AndScatterVMoveUnequalBlocksInPlaceToo) {
  auto ranks = make_ranks(4);
  const std::vector<std::size_t> counts = {3, 0, 70'000, 11};
  const std::vector<std::size_t> starts = {0, 3, 3, 70'003};
  for (const bool in_place : {false, true}) {
    for (const std::int32_t root : {0, 2}) {
      on_every_rank(ranks, [&](Communicator& rank) {
        const auto me = static_cast<std::size_t>(rank.rank());
        std::vector<std::int32_t> whole(70'014, -1), own = letter(rank.rank(), root, 1, counts[me]);
        std::int32_t* block = own.data();
        if (in_place && rank.rank() == root) {
          std::copy(own.begin(), own.end(), whole.begin() + static_cast<std::ptrdiff_t>(starts[me]));
          block = whole.data() + starts[me];
        }
        Status status = rank.gather_v(block, counts[me], whole.data(), {.counts = counts}, DataType::kInt32, root);
        ASSERT_TRUE(status.ok()) << to_string(status.error());
        std::vector<std::int32_t> expected;
        for (std::int32_t r = 0; r < 4; ++r) {
          const auto words = letter(r, root, 1, counts[static_cast<std::size_t>(r)]);
          expected.insert(expected.end(), words.begin(), words.end());
        }
        if (rank.rank() == root) {
          EXPECT_EQ(whole, expected);
        }
        std::fill(own.begin(), own.end(), 0);
        status = rank.scatter_v(whole.data(), {.counts = counts}, block, counts[me], DataType::kInt32, root);
        ASSERT_TRUE(status.ok()) << to_string(status.error());
        const auto mine = letter(rank.rank(), root, 1, counts[me]);
        EXPECT_TRUE(std::equal(mine.begin(), mine.end(), block));
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test
