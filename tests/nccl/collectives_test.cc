// Tests of every collective, send and receive of nccl.h on host memory: in place and out of place, with every root,
// type and operation. Ranks are threads, or processes, or are all driven by one thread in groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "nccl/elements.h"
#include "nccl/ranks.h"

namespace tutti::nccl_test {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 1000, 100'003};

// The parameters of a collective call. The input values are integers that are small enough to be exact in every
// type.
struct Case {
  std::size_t count;
  int root;
  bool in_place;
};

// Sums of four values are exact. For example, float8 e5m2 can represent the integers up to 8, but not 9.
int input_of(ncclDataType_t type, int rank, std::size_t i) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 3 + i) % (type == ncclFloat8e5m2 ? 2 : 5));
}

Elements filled(ncclDataType_t type, int rank, std::size_t elements) {
  Elements made(type, elements);
  for (std::size_t i = 0; i < elements; ++i) made.set(i, input_of(type, rank, i));
  return made;
}

int sum_of(ncclDataType_t type, int ranks, std::size_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += input_of(type, rank, i);
  return sum;
}

std::string check_all_reduce(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  Elements in = filled(type, rank, one.count);
  Elements out(type, one.count);
  void* to = one.in_place ? in.data() : out.data();
  TUTTI_NCCL_TRY(ncclAllReduce(in.data(), to, one.count, type, ncclSum, comm, nullptr));
  const Elements& result = one.in_place ? in : out;
  for (std::size_t i = 0; i < one.count; ++i) TUTTI_NCCL_WANT(result.get(i) == sum_of(type, ranks, i));
  return {};
}

std::string check_reduce(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  Elements in = filled(type, rank, one.count);
  Elements out(type, one.count);
  const bool root = rank == one.root;
  void* to = one.in_place ? in.data() : root ? out.data() : nullptr;
  TUTTI_NCCL_TRY(ncclReduce(in.data(), to, one.count, type, ncclSum, one.root, comm, nullptr));
  const Elements& result = one.in_place ? in : out;
  for (std::size_t i = 0; root && i < one.count; ++i) TUTTI_NCCL_WANT(result.get(i) == sum_of(type, ranks, i));
  return {};
}

std::string check_broadcast(ncclComm_t comm, int rank, int, ncclDataType_t type, const Case& one) {
  Elements in = filled(type, rank, one.count);
  Elements out(type, one.count);
  if (one.in_place) {
    TUTTI_NCCL_TRY(ncclBcast(in.data(), one.count, type, one.root, comm, nullptr));
    // The input of the other ranks must not be read, so they pass an invalid address.
  } else {
    const void* from = rank == one.root ? in.data() : reinterpret_cast<const void*>(8);
    TUTTI_NCCL_TRY(ncclBroadcast(from, out.data(), one.count, type, one.root, comm, nullptr));
  }
  const Elements& result = one.in_place ? in : out;
  for (std::size_t i = 0; i < one.count; ++i) TUTTI_NCCL_WANT(result.get(i) == input_of(type, one.root, i));
  return {};
}

std::string check_all_gather(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  const std::size_t all = one.count * static_cast<std::size_t>(ranks);
  const std::size_t own = one.count * static_cast<std::size_t>(rank);
  Elements in = filled(type, rank, one.count);
  Elements out(type, all);
  for (std::size_t i = 0; one.in_place && i < one.count; ++i) out.set(own + i, input_of(type, rank, i));
  const void* from = one.in_place ? out.at(own) : in.data();
  TUTTI_NCCL_TRY(ncclAllGather(from, out.data(), one.count, type, comm, nullptr));
  for (std::size_t i = 0; i < all; ++i) {
    TUTTI_NCCL_WANT(out.get(i) == input_of(type, static_cast<int>(i / one.count), i % one.count));
  }
  return {};
}

std::string check_reduce_scatter(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  const std::size_t own = one.count * static_cast<std::size_t>(rank);
  Elements in = filled(type, rank, one.count * static_cast<std::size_t>(ranks));
  Elements out(type, one.count);
  void* to = one.in_place ? in.at(own) : out.data();
  TUTTI_NCCL_TRY(ncclReduceScatter(in.data(), to, one.count, type, ncclSum, comm, nullptr));
  for (std::size_t i = 0; i < one.count; ++i) {
    TUTTI_NCCL_WANT((one.in_place ? in.get(own + i) : out.get(i)) == sum_of(type, ranks, own + i));
  }
  return {};
}

std::string check_all_to_all(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  const std::size_t all = one.count * static_cast<std::size_t>(ranks);
  Elements in = filled(type, rank, all);
  Elements out(type, all);
  void* to = one.in_place ? in.data() : out.data();
  TUTTI_NCCL_TRY(ncclAlltoAll(in.data(), to, one.count, type, comm, nullptr));
  const Elements& result = one.in_place ? in : out;
  for (std::size_t i = 0; i < all; ++i) {
    const std::size_t there = static_cast<std::size_t>(rank) * one.count + i % one.count;
    TUTTI_NCCL_WANT(result.get(i) == input_of(type, static_cast<int>(i / one.count), there));
  }
  return {};
}

std::string check_gather(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  const std::size_t all = one.count * static_cast<std::size_t>(ranks);
  const std::size_t own = one.count * static_cast<std::size_t>(rank);
  const bool root = rank == one.root;
  Elements in = filled(type, rank, one.count);
  Elements out(type, root ? all : 0);
  for (std::size_t i = 0; root && i < one.count; ++i) out.set(own + i, input_of(type, rank, i));
  const void* from = root && one.in_place ? out.at(own) : in.data();
  TUTTI_NCCL_TRY(ncclGather(from, root ? out.data() : nullptr, one.count, type, one.root, comm, nullptr));
  for (std::size_t i = 0; root && i < all; ++i) {
    TUTTI_NCCL_WANT(out.get(i) == input_of(type, static_cast<int>(i / one.count), i % one.count));
  }
  return {};
}

std::string check_scatter(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  const std::size_t own = one.count * static_cast<std::size_t>(rank);
  const bool root = rank == one.root;
  Elements in = filled(type, one.root, root ? one.count * static_cast<std::size_t>(ranks) : 0);
  Elements out(type, one.count);
  const bool in_place = root && one.in_place;
  TUTTI_NCCL_TRY(ncclScatter(root ? in.data() : nullptr, in_place ? in.at(own) : out.data(), one.count, type, one.root,
                             comm, nullptr));
  for (std::size_t i = 0; i < one.count; ++i) {
    TUTTI_NCCL_WANT((in_place ? in.get(own + i) : out.get(i)) == input_of(type, one.root, own + i));
  }
  return {};
}

std::string check_ring_of_transfers(ncclComm_t comm, int rank, int ranks, ncclDataType_t type, const Case& one) {
  Elements in = filled(type, rank, one.count);
  Elements out(type, one.count);
  const int to = (rank + 1) % ranks;
  const int from = (rank + ranks - 1) % ranks;
  TUTTI_NCCL_TRY(ncclGroupStart());
  TUTTI_NCCL_TRY(ncclSend(in.data(), one.count, type, to, comm, nullptr));
  TUTTI_NCCL_TRY(ncclRecv(out.data(), one.count, type, from, comm, nullptr));
  TUTTI_NCCL_TRY(ncclGroupEnd());
  for (std::size_t i = 0; i < one.count; ++i) TUTTI_NCCL_WANT(out.get(i) == input_of(type, from, i));
  return {};
}

using Check = std::string (*)(ncclComm_t, int, int, ncclDataType_t, const Case&);
constexpr Check kChecks[] = {check_all_reduce, check_reduce,         check_broadcast,
                             check_all_gather, check_reduce_scatter, check_all_to_all,
                             check_gather,     check_scatter,        check_ring_of_transfers};

std::string check_everything(ncclComm_t comm, int rank, int ranks) {
  int count = 0;
  TUTTI_NCCL_TRY(ncclCommCount(comm, &count));
  TUTTI_NCCL_WANT(count == ranks);
  int own = -1;
  TUTTI_NCCL_TRY(ncclCommUserRank(comm, &own));
  TUTTI_NCCL_WANT(own == rank);
  for (const Check check : kChecks) {
    for (const std::size_t elements : kCounts) {
      for (const bool in_place : {false, true}) {
        for (int root = 0; root < ranks; ++root) {
          std::string wrong =
              check(comm, rank, ranks, ncclFloat32, {.count = elements, .root = root, .in_place = in_place});
          if (!wrong.empty()) return wrong;
        }
      }
    }
    for (int type = 0; type < ncclNumTypes; ++type) {
      std::string wrong = check(comm, rank, ranks, static_cast<ncclDataType_t>(type),
                                {.count = 50, .root = ranks - 1, .in_place = false});
      if (!wrong.empty()) return wrong + " (type " + std::to_string(type) + ")";
    }
  }
  return {};
}

class NcclCollectives : public ::testing::TestWithParam<int> {};

TEST_P(NcclCollectives, GiveWhatTheyShouldAmongThreads) { as_threads(GetParam(), check_everything); }
TEST_P(NcclCollectives, GiveWhatTheyShouldAmongProcesses) { as_processes(GetParam(), check_everything); }
INSTANTIATE_TEST_SUITE_P(Ranks, NcclCollectives, ::testing::Values(1, 2, 3, 4));

// One thread drives all ranks, as in NCCL's single-process programs. The calls of all ranks are in one group.
TEST(NcclGroups, LetOneThreadDriveAllRanks) {
  constexpr int kRanks = 4;
  std::vector<ncclComm_t> comms(kRanks);
  ASSERT_EQ(ncclCommInitAll(comms.data(), kRanks, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  for (int round = 0; round < 3; ++round) {
    std::vector<Elements> in;
    std::vector<Elements> out;
    std::vector<Elements> all;
    for (int rank = 0; rank < kRanks; ++rank) {
      in.push_back(filled(ncclFloat64, rank, 1000));
      out.emplace_back(ncclFloat64, 1000);
      all.emplace_back(ncclFloat64, 4000);
    }
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(ncclGroupStart(), ncclSuccess);  // a nested group
      EXPECT_EQ(ncclAllReduce(in[rank].data(), out[rank].data(), 1000, ncclFloat64, ncclSum, comms[rank], nullptr),
                ncclSuccess);
      EXPECT_EQ(ncclAllGather(in[rank].data(), all[rank].data(), 1000, ncclFloat64, comms[rank], nullptr), ncclSuccess);
      ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(out[rank].get(i), sum_of(ncclFloat64, kRanks, i));
      for (std::size_t i = 0; i < 4000; ++i)
        ASSERT_EQ(all[rank].get(i), input_of(ncclFloat64, static_cast<int>(i / 1000), i % 1000));
    }
  }
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclGroups, MakeCommunicatorsAndSplitThemInOneThread) {
  constexpr int kRanks = 4;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<ncclComm_t> comms(kRanks);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ncclCommInitRank(&comms[static_cast<std::size_t>(rank)], kRanks, id, rank), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<ncclComm_t> halves(kRanks);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ncclCommSplit(comms[rank], static_cast<int>(rank % 2), 0, &halves[rank], nullptr), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<float> values(kRanks);
  std::iota(values.begin(), values.end(), 1.0F);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, halves[rank], nullptr), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(values, (std::vector<float>{4, 6, 4, 6}));
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (const ncclComm_t comm : halves) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
}

}  // namespace
}  // namespace tutti::nccl_test
