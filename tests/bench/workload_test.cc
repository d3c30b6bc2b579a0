// Tests of the result checks of the benchmark: a right result passes, and one wrong element anywhere is detected.
#include "bench/compare/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace tutti::compare {
namespace {

// The buffers of all ranks, filled with input, and a reference implementation that only moves and adds elements. It
// does not use the formula for the expected values.
class ReferenceRun {
 public:
  ReferenceRun(CollectiveKind kind, std::uint64_t bytes, int ranks) : workload_(make_workload(kind, bytes, ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      main_.emplace_back(workload_.elements());
      other_.emplace_back(has_other(kind) ? workload_.elements() : 0);
      fill(workload_, rank, buffers(rank));
    }
  }

  Buffers buffers(int rank) { return {.main = main_[at(rank)], .other = other_[at(rank)]}; }
  const Workload& workload() const { return workload_; }
  std::uint64_t wrong(int rank) { return count_wrong(workload_, rank, buffers(rank)); }
  std::uint64_t wrong() {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < workload_.ranks; ++rank) sum += wrong(rank);
    return sum;
  }

  void execute();

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  const Workload workload_;
  std::vector<std::vector<float>> main_;
  std::vector<std::vector<float>> other_;
};

void ReferenceRun::execute() {
  const std::size_t block = workload_.block_elements();
  std::vector<float> sum(workload_.elements());
  for (const std::vector<float>& input : main_) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += input[i];
  }
  const bool gathers = workload_.kind == CollectiveKind::kAllGather || workload_.kind == CollectiveKind::kGather;
  std::vector<float> row(gathers ? workload_.elements() : 0);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = other_[i / block][i % block];
  const std::vector<std::vector<float>> inputs = main_;
  for (int rank = 0; rank < workload_.ranks; ++rank) {
    const std::size_t first = at(rank) * block;
    for (std::size_t i = 0; i < workload_.elements(); ++i) {
      switch (workload_.kind) {
        case CollectiveKind::kAllReduce: main_[at(rank)][i] = sum[i]; break;
        case CollectiveKind::kBroadcast: main_[at(rank)][i] = inputs[0][i]; break;
        case CollectiveKind::kReduce:
          if (rank == 0) other_[0][i] = sum[i];
          break;
        case CollectiveKind::kAllGather: main_[at(rank)][i] = row[i]; break;
        case CollectiveKind::kGather:
          if (rank == 0) main_[0][i] = row[i];
          break;
        case CollectiveKind::kReduceScatter:
          if (i < block) other_[at(rank)][i] = sum[first + i];
          break;
        case CollectiveKind::kScatter:
          if (i < block) other_[at(rank)][i] = inputs[0][first + i];
          break;
        case CollectiveKind::kAllToAll: other_[at(rank)][i] = inputs[i / block][first + i % block]; break;
        default: break;
      }
    }
  }
}

class EveryCollective : public testing::TestWithParam<CollectiveKind> {};

TEST_P(EveryCollective, ItsRightResultPasses) {
  for (const int ranks : {2, 3, 8}) {
    for (const std::uint64_t bytes : {4U, 1000U, 4096U}) {
      ReferenceRun run(GetParam(), bytes, ranks);
      run.execute();
      EXPECT_EQ(run.wrong(), 0U) << ranks << " ranks, " << bytes << " bytes";
    }
  }
}

TEST_P(EveryCollective, BuffersThatNothingWasDoneToFail) {
  ReferenceRun run(GetParam(), 4096, 3);
  EXPECT_GT(run.wrong(), 0U);
}

// Changes each element of a result. The result is in one of the two buffers of the last rank that has one, and may
// fill only a part of it.
TEST_P(EveryCollective, EachWrongElementIsCounted) {
  ReferenceRun run(GetParam(), 4096, 3);
  run.execute();
  const bool at_root = GetParam() == CollectiveKind::kReduce || GetParam() == CollectiveKind::kGather;
  const int rank = at_root ? 0 : 2;
  const Buffers buffers = run.buffers(rank);
  const bool in_other = GetParam() == CollectiveKind::kReduce || GetParam() == CollectiveKind::kReduceScatter ||
                        GetParam() == CollectiveKind::kScatter || GetParam() == CollectiveKind::kAllToAll;
  const bool one_block = GetParam() == CollectiveKind::kReduceScatter || GetParam() == CollectiveKind::kScatter;
  const std::span<float> result = (in_other ? buffers.other : buffers.main)
                                      .first(one_block ? run.workload().block_elements() : run.workload().elements());
  for (float& element : result) {
    const float right = element;
    element += 1;
    ASSERT_EQ(run.wrong(rank), 1U) << "element " << &element - result.data();
    element = right;
  }
  EXPECT_EQ(run.wrong(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Workload, EveryCollective,
                         testing::Values(CollectiveKind::kAllReduce, CollectiveKind::kBroadcast,
                                         CollectiveKind::kReduce, CollectiveKind::kAllGather,
                                         CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
                                         CollectiveKind::kGather, CollectiveKind::kScatter),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

TEST(Workload, BlocksOfOneElementShowTheirSender) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    ReferenceRun run(kind, 12, 3);
    ASSERT_EQ(run.workload().block_elements(), 1U);
    run.execute();
    const std::span<float> result = kind == CollectiveKind::kAllGather ? run.buffers(2).main : run.buffers(2).other;
    std::swap(result[0], result[1]);
    EXPECT_EQ(run.wrong(2), 2U) << to_string(kind);
  }
}

// Rank r's block for rank s must differ from rank s's block for rank r, also if blocks have one element.
TEST(Workload, AnAllToAllThatExchangesNothingIsWrong) {
  ReferenceRun run(CollectiveKind::kAllToAll, 12, 3);
  const Buffers buffers = run.buffers(1);
  std::copy(buffers.main.begin(), buffers.main.end(), buffers.other.begin());
  EXPECT_EQ(run.wrong(1), 2U) << "all blocks but the own one";
}

TEST(Workload, SizesAreWholeElementsAndBlocks) {
  EXPECT_EQ(make_workload(CollectiveKind::kAllReduce, 10, 3).bytes, 8U);
  EXPECT_EQ(make_workload(CollectiveKind::kAllGather, 1024, 3).bytes, 1020U);
  EXPECT_EQ(make_workload(CollectiveKind::kAllGather, 1, 8).bytes, 32U);
  EXPECT_EQ(make_workload(CollectiveKind::kBarrier, 1024, 3).bytes, 0U);
}

}  // namespace
}  // namespace tutti::compare
