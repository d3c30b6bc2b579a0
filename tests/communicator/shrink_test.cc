// Tests shrink() with ranks as threads: which ranks are excluded, in which order the calls are made, and the state
// of the parent. Also tests which rank an error names if a rank disagrees or does not join.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>

#include "communicator/support.h"
#include "tests/support/patience.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Excluded = std::vector<std::int32_t>;
using Shrunk = Result<std::unique_ptr<Communicator>>;

Communicators make(const JobConfiguration& world, std::int32_t size, milliseconds setup_timeout = patience()) {
  CommunicatorOptions options;
  options.timeout = patience();
  options.setup_timeout = setup_timeout;
  options.transport = world.transport;
  options.attach = world.attach;
  auto made = Communicator::create_all(size, options, std::min(world.nodes, size));
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

// Runs body() for each rank in `who`, on a thread of its own.
void on_ranks(Communicators& ranks, const std::vector<std::size_t>& who,
              const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (const std::size_t rank : who) threads.emplace_back([&, rank] { body(*ranks[rank]); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::int32_t> members_of(Communicator& rank, std::int32_t own_number) {
  std::vector<std::int32_t> who(static_cast<std::size_t>(rank.size()), -1);
  EXPECT_TRUE(rank.all_gather(&own_number, who.data(), 1, DataType::kInt32).ok());
  return who;
}

// Repeats shrink() until it succeeds. On a busy machine, a rank may be too late for an attempt of the others, and
// they for the next attempt of that rank.
Shrunk shrink_until_success(Communicator& rank, const Excluded& excluded) {
  Shrunk child = rank.shrink(excluded);
  const auto latest = std::chrono::steady_clock::now() + patience();
  while (!child.ok() && std::chrono::steady_clock::now() < latest) child = rank.shrink(excluded);
  return child;
}

// Makes a few collectives of different types, with plain and registered memory.
void works(Communicator& rank) {
  for (const std::size_t count : {1u, 1000u, 300'007u}) EXPECT_TRUE(sum_is_right(rank, count));
  const auto size = static_cast<std::size_t>(rank.size());
  std::vector<std::int32_t> to(size), from(size);
  for (std::size_t i = 0; i < size; ++i) to[i] = rank.rank() * 100 + static_cast<std::int32_t>(i);
  ASSERT_TRUE(rank.all_to_all(to.data(), from.data(), 1, DataType::kInt32).ok());
  for (std::size_t i = 0; i < size; ++i) EXPECT_EQ(from[i], static_cast<std::int32_t>(i) * 100 + rank.rank());
  std::int64_t word = rank.rank() == rank.size() - 1 ? 4711 : 0;
  ASSERT_TRUE(rank.broadcast(&word, &word, 1, DataType::kInt64, rank.size() - 1).ok());
  EXPECT_EQ(word, 4711);
  auto memory = rank.allocate(400'000);
  ASSERT_TRUE(memory.ok());
  auto* data = reinterpret_cast<float*>(memory->data());
  std::fill(data, data + 100'000, 1.0f);
  ASSERT_TRUE(rank.all_reduce(data, data, 100'000, DataType::kFloat32, ReduceOp::kSum).ok());
  EXPECT_EQ(data[99'999], static_cast<float>(rank.size()));
  EXPECT_TRUE(rank.barrier().ok());
}

class Shrink : public testing::TestWithParam<JobConfiguration> {};

TEST_P(Shrink, KeepsTheOrderWhileTheExcludedGoOn) {
  Communicators ranks = make(GetParam(), 5);
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1 || rank.rank() == 3) {  // the excluded ranks exchange other messages
      for (int i = 0; i < 50; ++i) {
        int got = -1;
        if (rank.rank() == 1) {
          EXPECT_TRUE(rank.send(&i, 1, DataType::kInt32, 3).ok());
        } else {
          EXPECT_TRUE(rank.receive(&got, 1, DataType::kInt32, 1).ok());
          EXPECT_EQ(got, i);
        }
      }
    } else {
      auto child = rank.shrink(rank.rank() == 0 ? Excluded{3, 1, 3} : Excluded{1, 3});
      ASSERT_TRUE(child.ok()) << to_string(child.error());
      EXPECT_EQ((*child)->size(), 3);
      EXPECT_EQ((*child)->rank(), rank.rank() / 2);
      EXPECT_THAT(members_of(**child, rank.rank()), ElementsAre(0, 2, 4));
      works(**child);
    }
    EXPECT_TRUE(sum_is_right(rank, 1000));  // the parent is still usable
  });
}

TEST_P(Shrink, WorksAfterAbortAndAgainOnTheResult) {
  Communicators ranks = make(GetParam(), 6);
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 1000)); });
  ranks[4]->abort();
  on_ranks(ranks, {0, 1, 2, 3, 5}, [](Communicator& rank) {
    const std::string why = sum_fails(rank, {});
    EXPECT_FALSE(why.empty());
    auto child = rank.shrink(Excluded{4});
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    works(**child);
    EXPECT_FALSE(sum_fails(rank, {}).empty()) << "the parent must stay broken";
    if (rank.rank() == 0) return;
    auto grandchild = (*child)->shrink(Excluded{0});
    ASSERT_TRUE(grandchild.ok()) << to_string(grandchild.error());
    EXPECT_THAT(members_of(**grandchild, rank.rank()), ElementsAre(1, 2, 3, 5));
    auto half = (*grandchild)->split((*grandchild)->rank() / 2, -rank.rank());
    ASSERT_TRUE(half.ok()) << to_string(half.error());
    EXPECT_EQ((*half)->size(), 2);
    works(**half);
  });
}

TEST_P(Shrink, WorksWhereTheAborterTakesPart) {
  Communicators ranks = make(GetParam(), 4);
  on_ranks(ranks, {0, 1, 2}, [](Communicator& rank) {
    if (rank.rank() == 1) rank.abort();
    auto child = rank.shrink(Excluded{3});
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    works(**child);
  });
}

TEST_P(Shrink, OutlivesAParentThatEndsAtOnce) {
  Communicators ranks = make(GetParam(), 4);
  std::vector<std::unique_ptr<Communicator>> children(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      auto child = ranks[i]->shrink(Excluded{3});
      ranks[i].reset();
      ASSERT_TRUE(child.ok()) << to_string(child.error());
      children[i] = std::move(*child);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ranks.clear();
  on_every_rank(children, works);
}

TEST_P(Shrink, ToAllAndToOne) {
  Communicators ranks = make(GetParam(), 3);
  on_every_rank(ranks, [](Communicator& rank) {
    auto all = rank.shrink({});
    ASSERT_TRUE(all.ok()) << to_string(all.error());
    works(**all);
    Excluded others;
    for (std::int32_t other = 0; other < 3; ++other) {
      if (other != rank.rank()) others.push_back(other);
    }
    auto alone = rank.shrink(others);
    ASSERT_TRUE(alone.ok()) << to_string(alone.error());
    EXPECT_EQ((*alone)->size(), 1);
    EXPECT_TRUE(sum_is_right(**alone, 1000));
  });
}

// The order of the calls matters only among the ranks that take part. Rank 3 joins the second shrink() before the
// first one has begun.
TEST_P(Shrink, ManyTimesWithOthers) {
  Communicators ranks = make(GetParam(), 4);
  on_every_rank(ranks, [](Communicator& rank) {
    for (int round = 0; round < 5; ++round) {
      if (rank.rank() != 3) {
        auto first = rank.shrink(Excluded{3});
        ASSERT_TRUE(first.ok()) << to_string(first.error());
        EXPECT_THAT(members_of(**first, rank.rank()), ElementsAre(0, 1, 2));
      }
      if (rank.rank() != 2) {
        auto second = rank.shrink(Excluded{2});
        ASSERT_TRUE(second.ok()) << to_string(second.error());
        EXPECT_THAT(members_of(**second, rank.rank()), ElementsAre(0, 1, 3));
      }
      if (rank.rank() != 0) {
        auto third = rank.shrink(Excluded{0});
        ASSERT_TRUE(third.ok()) << to_string(third.error());
        EXPECT_THAT(members_of(**third, rank.rank()), ElementsAre(1, 2, 3));
      }
    }
  });
}

TEST_P(Shrink, NamesARankWithAnotherListAndWorksAfterwards) {
  Communicators ranks = make(GetParam(), 5);
  on_ranks(ranks, {0, 1, 2, 3}, [](Communicator& rank) {
    const auto child = rank.shrink(rank.rank() == 2 ? Excluded{} : Excluded{4});
    ASSERT_FALSE(child.ok());
    EXPECT_EQ(child.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(child.error().scope, ErrorScope::kCall);
    EXPECT_EQ(child.error().rank, 2);
    EXPECT_THAT(child.error().message,
                AllOf(StartsWith("shrink: "), HasSubstr("rank 0 excludes 4, rank 2 excludes nobody")));
    auto again = rank.shrink(Excluded{4});
    ASSERT_TRUE(again.ok()) << to_string(again.error());
    works(**again);
  });
}

TEST_P(Shrink, NamesARankThatDoesNotComeAndTakesItInLater) {
  Communicators ranks = make(GetParam(), 5, scaled(milliseconds(1000)));
  std::atomic<int> failed = 0;
  std::barrier punctual(3);
  on_ranks(ranks, {0, 1, 2, 3}, [&](Communicator& rank) {
    if (rank.rank() == 2) {  // rank 2 joins after the others have failed once
      EXPECT_TRUE(eventually([&] { return failed == 3; }));
    } else {
      punctual.arrive_and_wait();
      const auto child = rank.shrink(Excluded{4});
      ASSERT_FALSE(child.ok());
      ++failed;
      EXPECT_EQ(child.error().code, ErrorCode::kTimeout) << to_string(child.error());
      EXPECT_EQ(child.error().rank, 2) << to_string(child.error());
      EXPECT_THAT(child.error().message, HasSubstr("rank(s) 2 did not come"));
    }
    Shrunk again = shrink_until_success(rank, Excluded{4});
    ASSERT_TRUE(again.ok()) << to_string(again.error());
    works(**again);
  });
}

TEST_P(Shrink, NamesTheLowestRankWhereItDoesNotCome) {
  Communicators ranks = make(GetParam(), 4, scaled(milliseconds(500)));
  on_ranks(ranks, {1, 2, 3}, [](Communicator& rank) {
    const auto child = rank.shrink({});
    ASSERT_FALSE(child.ok());
    EXPECT_EQ(child.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(child.error().rank, 0);
    EXPECT_THAT(child.error().message, HasSubstr("rank 0 did not come"));
  });
}

// Ranks 0 and 1 exclude each other's coordinator, so they wait for different coordinators.
TEST_P(Shrink, EndsWhereRanksExcludeEachOther) {
  Communicators ranks = make(GetParam(), 4, scaled(milliseconds(500)));
  on_ranks(ranks, {0, 1, 2}, [](Communicator& rank) {
    const auto child = rank.shrink(rank.rank() == 1 ? Excluded{0} : Excluded{3});
    ASSERT_FALSE(child.ok());
    EXPECT_EQ(child.error().code, ErrorCode::kTimeout) << to_string(child.error());
    EXPECT_EQ(child.error().rank, rank.rank() == 1 ? 2 : 1) << to_string(child.error());
  });
}

// Rank 1 is late for the attempt that failed without it, and the others may already be in another attempt. The
// message shows that rank 1 was informed of the failed attempt: it names the missing ranks, and rank 1 is one of
// them.
TEST_P(Shrink, TellsALateRankHowTheAttemptThatItMissedHasEnded) {
  Communicators ranks = make(GetParam(), 4, scaled(milliseconds(1500)));
  std::atomic<int> failed = 0;
  std::barrier punctual(2);
  on_ranks(ranks, {0, 1, 2}, [&](Communicator& rank) {
    if (rank.rank() == 1) {
      EXPECT_TRUE(eventually([&] { return failed == 2; }));
      // Usually the others are in their next attempt by now. If not, the result is the same.
      std::this_thread::sleep_for(milliseconds(200));
    } else {
      punctual.arrive_and_wait();
    }
    const auto child = rank.shrink({});
    ASSERT_FALSE(child.ok());
    ++failed;
    EXPECT_EQ(child.error().code, ErrorCode::kTimeout) << to_string(child.error());
    EXPECT_EQ(child.error().rank, 1);
    EXPECT_THAT(child.error().message, HasSubstr("rank(s) 1, 3 did not come"));
    auto again = shrink_until_success(rank, Excluded{3});
    ASSERT_TRUE(again.ok()) << to_string(again.error());
    works(**again);
  });
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST_P(Shrink, LeavesNoDescriptors) {
  Communicators ranks = make(GetParam(), 4);
  std::size_t before = 0;
  for (int round = 0; round < 110; ++round) {
    if (round == 10) before = open_descriptors();
    on_ranks(ranks, {0, 1, 3}, [](Communicator& rank) {
      auto child = rank.shrink(Excluded{2});
      ASSERT_TRUE(child.ok()) << to_string(child.error());
      EXPECT_TRUE(sum_is_right(**child, 100));
    });
  }
  EXPECT_LE(open_descriptors(), before + 6);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Shrink, testing::ValuesIn(kConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

TEST(Shrink, WorksAfterATimeoutWithoutTheRankThatWasLate) {
  auto ranks = make_ranks(4, scaled(milliseconds(2000)));
  on_ranks(ranks, {0, 1, 3}, [](Communicator& rank) {
    EXPECT_THAT(sum_fails(rank, {}), HasSubstr("rank 2"));
    auto child = rank.shrink(Excluded{2});
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    works(**child);
  });
}

TEST(Shrink, RefusesWhatCannotBeRightAndTellsNobody) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    for (const auto& [excluded, words] :
         {std::pair(Excluded{3}, "excluded rank 3 is outside 0..2"), std::pair(Excluded{-1}, "rank -1 is outside"),
          std::pair(Excluded{rank.rank()}, "is excluded itself")}) {
      const auto child = rank.shrink(excluded);
      ASSERT_FALSE(child.ok());
      EXPECT_EQ(child.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(child.error().scope, ErrorScope::kCall);
      EXPECT_THAT(child.error().message, AllOf(StartsWith("shrink: "), HasSubstr(words)));
    }
    auto child = rank.shrink({});
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    EXPECT_TRUE(sum_is_right(**child, 10));
  });
}

}  // namespace
}  // namespace tutti::test
