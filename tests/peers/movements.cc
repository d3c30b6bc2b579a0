// Compares collectives that only move data with those of Open MPI. All bits must be equal.
#include <fmt/format.h>

#include <algorithm>

#include "judge.h"

namespace tutti::test {
namespace {

using Value = std::uint64_t;

// All collectives that move blocks of one length, with every algorithm.
class Movements {
 public:
  Movements(Judge& judge, std::size_t count)
      : judge_(judge),
        count_(count),
        all_(count * static_cast<std::size_t>(judge.ranks())),
        input_(random_input<Value>(judge.rank(), all_, static_cast<std::uint32_t>(count))) {}

  void unrooted() {
    compare(CollectiveKind::kAllGather, 0, all_, [&](Value* out) {
      return MPI_Allgather(input_.data(), length(), MPI_UINT64_T, out, length(), MPI_UINT64_T, MPI_COMM_WORLD);
    });
    compare(CollectiveKind::kAllToAll, 0, all_, [&](Value* out) {
      return MPI_Alltoall(input_.data(), length(), MPI_UINT64_T, out, length(), MPI_UINT64_T, MPI_COMM_WORLD);
    });
  }

  void rooted(std::int32_t root) {
    const bool here = judge_.rank() == root;
    compare(CollectiveKind::kBroadcast, root, count_, [&](Value* out) {
      if (here) std::copy_n(input_.data(), count_, out);
      return MPI_Bcast(out, length(), MPI_UINT64_T, root, MPI_COMM_WORLD);
    });
    compare(CollectiveKind::kGather, root, here ? all_ : 0, [&](Value* out) {
      return MPI_Gather(input_.data(), length(), MPI_UINT64_T, out, length(), MPI_UINT64_T, root, MPI_COMM_WORLD);
    });
    compare(CollectiveKind::kScatter, root, count_, [&](Value* out) {
      return MPI_Scatter(input_.data(), length(), MPI_UINT64_T, out, length(), MPI_UINT64_T, root, MPI_COMM_WORLD);
    });
  }

 private:
  template <class Theirs>
  void compare(CollectiveKind kind, std::int32_t root, std::size_t elements, Theirs call_theirs) {
    std::vector<Value> theirs(elements);
    judge_.expect_mpi(call_theirs(theirs.data()), std::string(to_string(kind)));
    std::vector<Algorithm> algorithms = algorithms_of(kind);
    algorithms.push_back(Algorithm::kAuto);
    for (const Algorithm algorithm : algorithms) {
      std::vector<Value> ours(elements);
      CallOptions options;
      options.algorithm = algorithm;
      const std::string what =
          fmt::format("{} of {} from or to {}, {}", to_string(kind), count_, root, to_string(algorithm));
      judge_.expect_ok(judge_.tutti().run({.kind = kind,
                                           .input = input_.data(),
                                           .output = ours.data(),
                                           .count = count_,
                                           .type = DataType::kUint64,
                                           .root = root},
                                          options),
                       what);
      judge_.expect_same_bits(ours, theirs, what);
    }
  }
  int length() const { return static_cast<int>(count_); }

  Judge& judge_;
  std::size_t count_;
  std::size_t all_;
  std::vector<Value> input_;
};

// Blocks of different lengths with gaps between them, in the representations of both libraries.
struct Blocks {
  std::vector<std::size_t> counts, starts;
  std::vector<int> mpi_counts, mpi_starts;
  std::size_t end = 0;

  void add(std::size_t count) {
    constexpr std::size_t kGap = 3;
    counts.push_back(count);
    starts.push_back(end + kGap);
    mpi_counts.push_back(static_cast<int>(count));
    mpi_starts.push_back(static_cast<int>(end + kGap));
    end += kGap + count;
  }
  BlockCounts ours() const { return {.counts = counts, .displacements = starts}; }
};

// The number of elements that rank r sends to rank q. Some are 0.
std::size_t length_between(std::int32_t r, std::int32_t q) {
  const auto from = static_cast<std::size_t>(r), to = static_cast<std::size_t>(q);
  return (from * 7 + to * 3) % 5 * 1013 + to;
}

void judge_rooted_v(Judge& judge, const Blocks& blocks, std::int32_t root) {
  const std::size_t mine = blocks.counts[static_cast<std::size_t>(judge.rank())];
  const bool here = judge.rank() == root;
  const auto own = random_input<Value>(judge.rank(), mine, 11);
  std::vector<Value> ours(here ? blocks.end : 0), theirs = ours;
  judge.expect_mpi(MPI_Gatherv(own.data(), static_cast<int>(mine), MPI_UINT64_T, theirs.data(),
                               blocks.mpi_counts.data(), blocks.mpi_starts.data(), MPI_UINT64_T, root, MPI_COMM_WORLD),
                   "MPI_Gatherv");
  judge.expect_ok(judge.tutti().gather_v(own.data(), mine, ours.data(), blocks.ours(), DataType::kUint64, root),
                  "gather_v");
  judge.expect_same_bits(ours, theirs, "gather_v");

  const auto whole = random_input<Value>(judge.rank(), blocks.end, 12);
  ours.assign(mine, 0);
  theirs = ours;
  judge.expect_mpi(MPI_Scatterv(whole.data(), blocks.mpi_counts.data(), blocks.mpi_starts.data(), MPI_UINT64_T,
                                theirs.data(), static_cast<int>(mine), MPI_UINT64_T, root, MPI_COMM_WORLD),
                   "MPI_Scatterv");
  judge.expect_ok(judge.tutti().scatter_v(whole.data(), blocks.ours(), ours.data(), mine, DataType::kUint64, root),
                  "scatter_v");
  judge.expect_same_bits(ours, theirs, "scatter_v");
}

void judge_all_gather_v(Judge& judge, const Blocks& blocks) {
  const std::size_t mine = blocks.counts[static_cast<std::size_t>(judge.rank())];
  const auto own = random_input<Value>(judge.rank(), mine, 13);
  std::vector<Value> theirs(blocks.end);
  judge.expect_mpi(MPI_Allgatherv(own.data(), static_cast<int>(mine), MPI_UINT64_T, theirs.data(),
                                  blocks.mpi_counts.data(), blocks.mpi_starts.data(), MPI_UINT64_T, MPI_COMM_WORLD),
                   "MPI_Allgatherv");
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllGather)) {
    std::vector<Value> ours(blocks.end);
    CallOptions options;
    options.algorithm = algorithm;
    judge.expect_ok(judge.tutti().all_gather_v(own.data(), ours.data(), blocks.ours(), DataType::kUint64, options),
                    "all_gather_v");
    judge.expect_same_bits(ours, theirs, fmt::format("all_gather_v, {}", to_string(algorithm)));
  }
}

void judge_all_to_all_v(Judge& judge) {
  Blocks to, from;
  for (std::int32_t peer = 0; peer < judge.ranks(); ++peer) {
    to.add(length_between(judge.rank(), peer));
    from.add(length_between(peer, judge.rank()));
  }
  const auto input = random_input<Value>(judge.rank(), to.end, 14);
  std::vector<Value> ours(from.end), theirs = ours;
  judge.expect_mpi(MPI_Alltoallv(input.data(), to.mpi_counts.data(), to.mpi_starts.data(), MPI_UINT64_T, theirs.data(),
                                 from.mpi_counts.data(), from.mpi_starts.data(), MPI_UINT64_T, MPI_COMM_WORLD),
                   "MPI_Alltoallv");
  judge.expect_ok(judge.tutti().all_to_all_v(input.data(), to.ours(), ours.data(), from.ours(), DataType::kUint64),
                  "all_to_all_v");
  judge.expect_same_bits(ours, theirs, "all_to_all_v");
}

void judge_transfers(Judge& judge) {
  constexpr std::size_t kCount = 50'021;
  const std::int32_t ranks = judge.ranks();
  const std::int32_t next = (judge.rank() + 1) % ranks, previous = (judge.rank() + ranks - 1) % ranks;
  const auto input = random_input<Value>(judge.rank(), kCount, 15);
  std::vector<Value> ours(kCount), theirs(kCount);
  judge.expect_mpi(MPI_Sendrecv(input.data(), kCount, MPI_UINT64_T, next, 0, theirs.data(), kCount, MPI_UINT64_T,
                                previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                   "MPI_Sendrecv");
  Group group;
  judge.expect_ok(group.send(judge.tutti(), input.data(), kCount, DataType::kUint64, next), "send");
  judge.expect_ok(group.receive(judge.tutti(), ours.data(), kCount, DataType::kUint64, previous), "receive");
  judge.expect_ok(group.run(), "a group of send and receive");
  judge.expect_same_bits(ours, theirs, "a group of send and receive");
}

}  // namespace

void judge_movements(Judge& judge) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{40'009}}) {
    Movements movements(judge, count);
    movements.unrooted();
    for (std::int32_t root = 0; root < judge.ranks(); ++root) movements.rooted(root);
  }
}

void judge_uneven_movements(Judge& judge) {
  Blocks blocks;
  for (std::int32_t r = 0; r < judge.ranks(); ++r) blocks.add(length_between(r, 0));
  for (std::int32_t root = 0; root < judge.ranks(); ++root) judge_rooted_v(judge, blocks, root);
  judge_all_gather_v(judge, blocks);
  judge_all_to_all_v(judge);
  judge_transfers(judge);
}

}  // namespace tutti::test
