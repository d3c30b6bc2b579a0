// Tests communicators that are made from other communicators: many of them, destroyed in any order. Also tests
// initialization in the background, and calls from several threads.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class Split : public testing::TestWithParam<JobConfiguration> {
 protected:
  static Communicators world(std::int32_t size) { return make_configured_ranks(GetParam(), size); }
};

TEST_P(Split, GroupsByColourAndOrdersByKey) {
  Communicators ranks = world(6);
  on_every_rank(ranks, [](Communicator& rank) {
    // Even and odd ranks form separate communicators, each in reverse order. Rank 5 gets no new communicator.
    const std::int32_t colour = rank.rank() == 5 ? Communicator::kNoColour : rank.rank() % 2;
    auto child = rank.split(colour, -rank.rank());
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    if (rank.rank() == 5) {
      EXPECT_EQ(*child, nullptr);
      return;
    }
    const std::int32_t size = colour == 0 ? 3 : 2;
    ASSERT_EQ((*child)->size(), size);
    EXPECT_EQ((*child)->rank(), size - 1 - rank.rank() / 2);
    std::vector<std::int32_t> who(static_cast<std::size_t>(size));
    const std::int32_t own = rank.rank();
    ASSERT_TRUE((*child)->all_gather(&own, who.data(), 1, DataType::kInt32).ok());
    EXPECT_EQ(who, colour == 0 ? (std::vector<std::int32_t>{4, 2, 0}) : (std::vector<std::int32_t>{3, 1}));
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(sum_is_right(**child, 10'000));
  });
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 100)); });
}

TEST_P(Split, ChildrenOutliveTheirParentAndSplitAgain) {
  Communicators ranks = world(4);
  std::vector<std::unique_ptr<Communicator>> grandchildren(4);
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    auto child = rank.duplicate();
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    auto grandchild = (*child)->split((*child)->rank() / 2, 0);
    ASSERT_TRUE(grandchild.ok()) << to_string(grandchild.error());
    grandchildren[me] = std::move(*grandchild);
  });
  ranks.clear();  // the parents are destroyed, and by now the children, too
  on_every_rank(grandchildren, [](Communicator& rank) {
    EXPECT_EQ(rank.size(), 2);
    auto memory = rank.allocate(400'000);
    ASSERT_TRUE(memory.ok());
    auto* data = reinterpret_cast<float*>(memory->data());
    std::fill(data, data + 100'000, 1.0f);
    ASSERT_TRUE(rank.all_reduce(data, data, 100'000, DataType::kFloat32, ReduceOp::kSum).ok());
    EXPECT_EQ(data[99'999], 2.0f);
  });
}

TEST_P(Split, CommunicatorsRunAtTheSameTime) {
  Communicators ranks = world(3);
  on_every_rank(ranks, [](Communicator& rank) {
    auto first = rank.duplicate();
    auto second = rank.duplicate();
    ASSERT_TRUE(first.ok() && second.ok());
    // Each rank starts the calls in another order, because different communicators need no common order.
    std::vector<float> a(50'000, 1.0f), b(50'000, 2.0f);
    auto start = [](Communicator& on, std::vector<float>& data) {
      return start_sum(on, data.data(), data.data(), data.size());
    };
    auto x = rank.rank() == 1 ? start(**second, b) : start(**first, a);
    auto y = rank.rank() == 1 ? start(**first, a) : start(**second, b);
    ASSERT_TRUE(x.ok() && y.ok());
    EXPECT_TRUE(x->wait().ok());
    EXPECT_TRUE(y->wait().ok());
    EXPECT_EQ(a[7], 3.0f);
    EXPECT_EQ(b[7], 6.0f);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Split, testing::ValuesIn(kConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

// The other ranks must not wait for a rank that cannot take part. Only the new communicator is lost.
TEST(Split, TellsAllRanksOfANegativeColourAndCostsNothingElse) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    const bool wrong = rank.rank() == 1;
    const auto child = rank.split(wrong ? -7 : 0);
    ASSERT_FALSE(child.ok());
    EXPECT_EQ(child.error().code, wrong ? ErrorCode::kInvalidArgument : ErrorCode::kSystem);
    EXPECT_EQ(child.error().scope, ErrorScope::kCall);
    EXPECT_EQ(child.error().rank, wrong ? -1 : 1);
    EXPECT_THAT(child.error().message,
                StartsWith(wrong ? "split: colour -7 is negative" : "split: set-up failed on rank 1: colour -7"));
    EXPECT_TRUE(sum_is_right(rank, 10));
    EXPECT_TRUE(rank.split(0).ok());
  });
}

TEST(Split, IsNamedWhereARankDoesNotCome) {
  auto ranks = make_ranks(2, std::chrono::milliseconds(200));
  const auto child = ranks[0]->duplicate();
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(child.error().message, AllOf(StartsWith("duplicate: "), HasSubstr("not entered by rank 1")));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(Split, ManyCommunicatorsComeAndGoWithoutLeavingDescriptors) {
  auto ranks = make_ranks(2);
  std::size_t before = 0;
  for (int round = 0; round < 60; ++round) {
    if (round == 10) before = open_descriptors();
    on_every_rank(ranks, [](Communicator& rank) {
      std::vector<std::unique_ptr<Communicator>> children;
      for (int i = 0; i < 5; ++i) children.push_back(rank.duplicate().value());
      for (auto& child : children) EXPECT_TRUE(sum_is_right(*child, 100));
    });
  }
  EXPECT_LE(open_descriptors(), before + 4);
}

TEST(Finalize, WaitsForWhatIsUnderWayAndRefusesWhatComesLater) {
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<float> data(500'000, 1.0f);
    auto work = start_sum(rank, data.data(), data.data(), data.size());
    ASSERT_TRUE(work.ok());
    ASSERT_TRUE(rank.finalize().ok());
    EXPECT_TRUE(work->test());
    EXPECT_TRUE(work->wait().ok());
    EXPECT_EQ(data[0], 2.0f);
    const Status later = rank.barrier();
    ASSERT_FALSE(later.ok());
    EXPECT_THAT(later.error().message, HasSubstr("finalize()"));
  });
}

// Every thread makes collectives on its own communicator, or sends to its own peers. Sends of all threads use one
// communicator.
TEST(Threads, CallFromManyAtOnce) {
  constexpr int kThreads = 4;
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::unique_ptr<Communicator>> own;
    for (int t = 0; t < kThreads; ++t) own.push_back(rank.duplicate().value());
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 30; ++i) EXPECT_TRUE(sum_is_right(*own[static_cast<std::size_t>(t)], 3000));
      });
    }
    std::thread sender([&] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(rank.send(&i, 1, DataType::kInt32, 1 - rank.rank()).ok());
    });
    for (int i = 0; i < 100; ++i) {
      int got = -1;
      const Status status = rank.receive(&got, 1, DataType::kInt32, 1 - rank.rank());
      EXPECT_TRUE(status.ok()) << to_string(status.error());
      EXPECT_EQ(got, i);
    }
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(sum_is_right(rank, 100));
    sender.join();
    for (std::thread& thread : threads) thread.join();
  });
}

// A user plan must run like a built-in one. If ranks have different plans, they must get an error.
UserPlan star(std::uint32_t ranks, std::uint32_t centre) {
  PlanBuilder plan({.name = "star", .collective = CollectiveKind::kAllReduce, .ranks = ranks, .slots = 1});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto channel = plan.channel(rank);
    if (rank != centre) {
      channel.step().local(Space::kInput, 0).send(centre);
      channel.step().receive(centre).store(Space::kOutput, 0);
      continue;
    }
    auto step = channel.step();
    for (std::uint32_t peer = 0; peer < ranks; ++peer) {
      if (peer != centre) step.receive(peer);
    }
    step.local(Space::kInput, 0).store(Space::kOutput, 0).completes();
    for (std::uint32_t peer = 0; peer < ranks; ++peer) {
      if (peer != centre) step.send(peer);
    }
  }
  auto built = plan.build();
  EXPECT_TRUE(built.ok()) << to_string(built.error());
  return *built;
}

TEST_P(Split, RunsACallersPlanForItsSizes) {
  Communicators ranks = world(4);
  const UserPlan plan = star(4, 2);
  on_every_rank(ranks, [&](Communicator& rank) {
    EXPECT_FALSE(sum_fails(rank, with(Algorithm::kUser)).empty()) << "no plan is set yet";
    ASSERT_TRUE(rank.use_plan(plan, {.min_bytes = 1000, .max_bytes = 2'000'000}).ok());
    for (const std::size_t count : {10u, 250u, 100'000u, 600'000u}) EXPECT_TRUE(sum_is_right(rank, count));
    EXPECT_TRUE(sum_is_right(rank, 3, with(Algorithm::kUser)));
  });
}

// Rank 1 has another plan, or only rank 1 has a plan.
TEST(UserPlans, ThatDifferBetweenRanksAreTold) {
  const UserPlan a = star(3, 0), b = star(3, 1);
  for (const bool all_have_one : {true, false}) {
    auto ranks = make_ranks(3);
    on_every_rank(ranks, [&](Communicator& rank) {
      if (all_have_one || rank.rank() == 1) {
        ASSERT_TRUE(rank.use_plan(rank.rank() == 1 ? b : a).ok());
      }
      std::vector<float> data(10);
      const Status status = rank.all_reduce(data.data(), data.data(), 10, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
      EXPECT_EQ(status.error().rank, 1);
      EXPECT_THAT(status.error().message, AllOf(HasSubstr(all_have_one ? "rank 1 passed plan with digest "
                                                                       : "rank 1 passed algorithm user (a plan"),
                                                HasSubstr("; call use_plan() alike on all ranks")));
    });
  }
}

TEST(UserPlans, ThatDoNotFitAreRefusedByName) {
  auto ranks = make_ranks(3);
  const auto refusal = [&](const UserPlan& plan) {
    const Status refused = ranks[0]->use_plan(plan);
    return refused.ok() ? "" : refused.error().message;
  };
  EXPECT_THAT(refusal(star(4, 0)), HasSubstr("use_plan \"star\": the plan is for 4 ranks"));
  std::string hungry = star(3, 0).to_json();
  hungry.replace(hungry.find("\"slots\": 1"), 10, "\"slots\": 9");
  EXPECT_THAT(refusal(*UserPlan::parse_json(hungry)),
              AllOf(StartsWith("use_plan \"star\": the user plan of all_reduce needs 9 slots"),
                    HasSubstr("has 4; set TUTTI_SLOTS=9 on all ranks")));
}

TEST(Barrier, LooksAtNoOtherField) {
  auto ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    for (int i = 0; i < 3; ++i) {  // from the second call on, the fast path for short calls is used
      CollectiveCall call;
      call.kind = CollectiveKind::kBarrier;
      call.type = all_data_types()[static_cast<std::size_t>(rank.rank() + i)];
      call.count = static_cast<std::size_t>(rank.rank());
      call.op = rank.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      const Status met = rank.rank() == 2 ? rank.barrier() : rank.run(call);
      EXPECT_TRUE(met.ok()) << to_string(met.error());
    }
  });
}

}  // namespace
}  // namespace tutti::test
