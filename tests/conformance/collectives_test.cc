// Tests every collective with every algorithm, root, position of buffers and type of memory, in every configuration.
#include <algorithm>
#include <random>
#include <tuple>

#include "conformance/suite.h"

namespace tutti::test {
namespace {

using Param = std::tuple<JobConfiguration, std::int32_t>;

class Collectives : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { skip_unless_possible(std::get<0>(GetParam())); }
  static std::int32_t ranks() { return std::get<1>(GetParam()); }
  static Communicators world() { return make_configured_ranks(std::get<0>(GetParam()), ranks()); }
  static std::vector<std::int32_t> roots(CollectiveKind kind) {
    const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
                        kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
    if (!rooted) return {0};
    std::vector<std::int32_t> some = {0, ranks() / 2, ranks() - 1};
    some.erase(std::unique(some.begin(), some.end()), some.end());
    return some;
  }
};

std::string name_of(const testing::TestParamInfo<Param>& info) {
  return std::string(std::get<0>(info.param).name) + std::to_string(std::get<1>(info.param));
}

// Runs all cases in the same order on every rank. If one rank fails a case, the others fail at their deadline.
void run_all(Communicators& ranks, const std::vector<Case>& cases) {
  on_every_rank(ranks, [&](Communicator& rank) {
    for (const Case& each : cases) {
      run_case(rank, each);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST_P(Collectives, GiveTheirResultByEveryAlgorithm) {
  Communicators all = world();
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    std::vector<Algorithm> algorithms = algorithms_of(kind);
    algorithms.push_back(Algorithm::kAuto);
    for (const Algorithm algorithm : algorithms) {
      for (const std::int32_t root : roots(kind)) {
        for (const bool in_place : {false, true}) {
          for (const bool registered : {false, true}) {
            for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4099}}) {
              cases.push_back({.kind = kind,
                               .count = kind == CollectiveKind::kBarrier ? 0 : count,
                               .root = root,
                               .in_place = in_place,
                               .registered = registered,
                               .algorithm = algorithm});
            }
          }
        }
      }
    }
  }
  run_all(all, cases);
}

// The messages are longer than a slot, so that there are several tiles, and have odd lengths.
TEST_P(Collectives, CutLongMessagesIntoTiles) {
  Communicators all = world();
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.kind = kind,
                         .count = kind == CollectiveKind::kBarrier ? 0u : 300'007u / static_cast<unsigned>(ranks()),
                         .root = ranks() - 1,
                         .in_place = in_place,
                         .registered = in_place,
                         .algorithm = algorithm});
      }
    }
  }
  run_all(all, cases);
}

TEST_P(Collectives, TakeEveryTypeAndOperation) {
  Communicators all = world();
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    const bool adds = row_of(kind).reduces;
    if (kind == CollectiveKind::kBarrier) continue;
    for (const DataType type : all_data_types()) {
      for (const ReduceOp op : all_reduce_ops()) {
        if (!adds && op != ReduceOp::kSum) continue;
        cases.push_back({.kind = kind, .count = 1003, .type = type, .op = op, .root = ranks() / 2});
        if (adds) {
          cases.push_back({.kind = kind,
                           .count = 37,
                           .type = type,
                           .op = op,
                           .in_place = true,
                           .algorithm = algorithms_of(kind).front()});
        }
      }
    }
  }
  run_all(all, cases);
}

// Calls of random types, sizes and algorithms follow each other directly. A call must not leave anything behind that
// affects the next one.
TEST_P(Collectives, FollowEachOtherInAnyOrder) {
  Communicators all = world();
  std::mt19937 random(static_cast<std::uint32_t>(ranks()));
  std::vector<Case> cases;
  for (int i = 0; i < 150; ++i) {
    const CollectiveKind kind = all_collectives()[random() % all_collectives().size()];
    const std::vector<Algorithm> algorithms = algorithms_of(kind);
    cases.push_back({.kind = kind,
                     .count = kind == CollectiveKind::kBarrier ? 0
                              : random() % 3 == 0              ? random() % 50'000
                                                               : random() % 100,
                     .type = all_data_types()[random() % all_data_types().size()],
                     .root = roots(kind)[random() % roots(kind).size()],
                     .in_place = random() % 2 == 0,
                     .registered = random() % 2 == 0,
                     .algorithm = algorithms[random() % algorithms.size()]});
  }
  run_all(all, cases);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         testing::Combine(testing::ValuesIn(configurations()), testing::Values(1, 2, 3, 4, 6)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(UcxWorlds, Collectives,
                         testing::Combine(testing::ValuesIn(kUcxConfigurations), testing::Values(2, 3, 4)), name_of);
INSTANTIATE_TEST_SUITE_P(ChecksumWorlds, Collectives,
                         testing::Combine(testing::ValuesIn(kChecksumConfigurations), testing::Values(2, 3, 4)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(AttachedWorlds, Collectives,
                         testing::Combine(testing::ValuesIn(kAttachedConfigurations), testing::Values(2, 3, 6)),
                         name_of);

}  // namespace
}  // namespace tutti::test
