// Tests the tuner, which predicts the duration of each algorithm for a call.
#include "model/tuner.h"

#include <gtest/gtest.h>

#include <chrono>

#include "algorithms/algorithms.h"

namespace tutti {
namespace {

std::vector<Candidate> all_of(CollectiveKind kind) {
  std::vector<Candidate> candidates;
  for (const Algorithm one : algorithms_of(kind)) candidates.push_back({.algorithm = one});
  return candidates;
}

// Only messages have a cost, 10 us and 1 GB/s, so that times can be computed by hand.
Parameters plain_parameters() {
  Parameters p;
  for (const Level level : {Level::kMemory, Level::kNic, Level::kSpine}) {
    p.cost(level, Protocol::kSimple) = {.latency_us = 10, .gbytes_per_s = 1};
  }
  p.slot_bytes = 128 * 1024;
  return p;
}

TEST(Tuner, APredictionIsThePlansTime) {
  const auto tuner = Tuner::create({.parameters = plain_parameters(), .ranks = 2});
  ASSERT_TRUE(tuner.ok()) << tuner.error().message;
  const Collective broadcast{.kind = CollectiveKind::kBroadcast, .ranks = 2};
  const auto predicted = tuner->predict(broadcast, 100'000, {.algorithm = Algorithm::kChain});
  ASSERT_TRUE(predicted.ok()) << predicted.error().message;
  EXPECT_NEAR(predicted->total_us(), 110, 0.1) << "one message: 10 us, and 100,000 bytes at 1 GB/s";
  EXPECT_NEAR(predicted->latency_us, 10, 0.1);
}

TEST(Tuner, FewRoundsWinShortCallsAndFewBytesLongOnes) {
  std::vector<std::uint32_t> nodes{0, 1, 2, 3, 4, 5, 6, 7};
  const auto tuner = Tuner::create({.parameters = plain_parameters(), .ranks = 8, .nodes = nodes});
  ASSERT_TRUE(tuner.ok()) << tuner.error().message;
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 8, .nodes = nodes};
  const auto candidates = std::vector<Candidate>{{Algorithm::kRing}, {Algorithm::kRecursiveDoubling}};
  const auto brief = tuner->predict_all(all_reduce, 8, candidates);
  const auto lengthy = tuner->predict_all(all_reduce, 16 << 20, candidates);
  ASSERT_EQ(brief.size(), 2u);
  EXPECT_EQ(brief.front().candidate.algorithm, Algorithm::kRecursiveDoubling) << "3 rounds against 14";
  EXPECT_NEAR(brief.front().total_us(), 30, 1);
  EXPECT_NEAR(brief.back().total_us(), 140, 2);
  EXPECT_EQ(lengthy.front().candidate.algorithm, Algorithm::kRing) << "1.75 of the bytes against 3 times";
}

// 8 ranks on two cores, over sockets. A circulant all_reduce has two halves, and in each a rank writes 7/8 of the data
// to sockets. The prediction must count the bytes of all chunks of a message, and not only those of one.
TEST(Tuner, CountsTheWorkOfAllChunksOfAMessage) {
  Parameters p = plain_parameters();
  p.cores = 2;
  const auto tuner = Tuner::create({.parameters = p, .ranks = 8, .memory = false});
  ASSERT_TRUE(tuner.ok()) << tuner.error().message;
  const std::uint64_t bytes = 128 * 1024;
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 8};
  ASSERT_EQ(messages_for(all_reduce, bytes, {p.slot_bytes, false}), Messages::kRuns);
  const auto predicted = tuner->predict(all_reduce, bytes, {.algorithm = Algorithm::kCirculant});
  ASSERT_TRUE(predicted.ok()) << predicted.error().message;
  const double written_us = 8 * 2 * 7.0 / 8 * static_cast<double>(bytes) / 1000 / p.cores;
  EXPECT_GT(predicted->total_us(), written_us) << "at 1 GB/s";
}

TEST(Tuner, RanksThatShareACoreTakeTurns) {
  Parameters p = default_host_parameters(8);
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 8};
  const auto with_cores = [&](std::uint32_t cores, Candidate candidate) {
    p.cores = cores;
    const auto tuner = Tuner::create({.parameters = p, .ranks = 8});
    return tuner->predict(all_reduce, 1 << 20, candidate)->total_us();
  };
  for (const Candidate one : {Candidate{Algorithm::kRing}, Candidate{Algorithm::kTwoShot, ExecutionMethod::kByMemory},
                              Candidate{Algorithm::kOneShot, ExecutionMethod::kByMailbox}}) {
    EXPECT_GT(with_cores(2, one), 1.5 * with_cores(8, one)) << to_string(one.algorithm);
    EXPECT_GE(with_cores(1, one), with_cores(2, one)) << to_string(one.algorithm);
  }
}

// A chain with one tile takes three hops of the whole message. With four tiles it takes three hops of a quarter, and
// then three more quarters.
TEST(Tuner, ShorterChunksFillAChainSooner) {
  Parameters p = default_host_parameters(0);
  p.step_us = p.launch_us = p.copy_gbytes_per_s = 0;
  p.slot_bytes = 1 << 20;
  p.cost(Level::kNic, Protocol::kSimple) = {.latency_us = 10, .gbytes_per_s = 1};
  const std::vector<std::uint32_t> nodes{0, 1, 2, 3};
  const auto tuner = Tuner::create({.parameters = p, .ranks = 4, .nodes = nodes});
  ASSERT_TRUE(tuner.ok()) << tuner.error().message;
  const Collective broadcast{.kind = CollectiveKind::kBroadcast, .ranks = 4, .nodes = nodes};
  const auto us = [&](std::uint64_t chunk_bytes) {
    return tuner->predict(broadcast, 100 << 10, {.algorithm = Algorithm::kChain, .chunk_bytes = chunk_bytes})
        ->total_us();
  };
  EXPECT_NEAR(us(0), 3 * (10 + 102.4), 1);
  EXPECT_NEAR(us(28 << 10), 3 * 10 + 102.4 + 2 * 25.6, 8) << "tiles differ by the last one";
}

TEST(Tuner, OverSocketsRanksOfAMachineDoNotHaveItsMemory) {
  const Parameters p = default_host_parameters(0);
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 4};
  const auto memory = Tuner::create({.parameters = p, .ranks = 4})->predict(all_reduce, 1 << 20, {Algorithm::kRing});
  const auto sockets =
      Tuner::create({.parameters = p, .ranks = 4, .memory = false})->predict(all_reduce, 1 << 20, {Algorithm::kRing});
  EXPECT_GT(sockets->total_us(), 2 * memory->total_us());
}

TEST(Tuner, EveryAlgorithmThatHasAPlanIsPredicted) {
  for (const std::uint32_t machines : {1u, 4u}) {
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t rank = 0; rank < 8 && machines > 1; ++rank) nodes.push_back(rank / 2);
    const auto tuner = Tuner::create({.parameters = default_host_parameters(2), .ranks = 8, .nodes = nodes});
    ASSERT_TRUE(tuner.ok()) << tuner.error().message;
    for (const CollectiveKind kind : all_collectives()) {
      const Collective collective{.kind = kind, .ranks = 8, .nodes = nodes};
      for (const Candidate candidate : all_of(kind)) {
        for (const std::uint64_t bytes : {0ull, 8ull, 100'000ull, 1ull << 26}) {
          if (!find_generator(collective, candidate.algorithm)) continue;
          const auto predicted = tuner->predict(collective, bytes, candidate);
          ASSERT_TRUE(predicted.ok()) << to_string(kind) << " " << to_string(candidate.algorithm) << ": "
                                      << predicted.error().message;
          EXPECT_GT(predicted->total_us(), 0);
          EXPECT_LT(predicted->total_us(), 1e8);
          EXPECT_GE(predicted->bandwidth_us, 0);
        }
      }
    }
  }
}

TEST(Tuner, SaysTheSameEveryTime) {
  const TunerOptions options{.parameters = default_host_parameters(2), .ranks = 6, .memory = false};
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 6};
  const auto candidates = all_of(CollectiveKind::kAllReduce);
  EXPECT_EQ(Tuner::create(options)->predict_all(all_reduce, 12'345, candidates),
            Tuner::create(options)->predict_all(all_reduce, 12'345, candidates));
}

TEST(Tuner, RefusesWhatItCannotSee) {
  EXPECT_EQ(Tuner::create({.ranks = 3, .nodes = {0, 0, 1}}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(Tuner::create({.ranks = 4, .nodes = {0, 1, 0, 1}}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(Tuner::create({.ranks = kMostTunedRanks + 1}).error().code, ErrorCode::kUnsupported);
}

// The first call of a size waits for all predictions. They must take much less time than the set-up of a
// communicator.
TEST(Tuner, IsQuick) {
  for (const std::uint32_t ranks : {8u, 64u}) {
    const auto tuner = Tuner::create({.parameters = default_host_parameters(2), .ranks = ranks, .memory = false});
    const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = ranks};
    const auto start = std::chrono::steady_clock::now();
    const auto predictions = tuner->predict_all(all_reduce, 64 << 20, all_of(CollectiveKind::kAllReduce));
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    RecordProperty("ms_" + std::to_string(ranks), std::to_string(ms));
    std::printf("%u ranks: %zu predictions in %.2f ms\n", ranks, predictions.size(), ms);
    EXPECT_LT(ms, 5000);
  }
}

}  // namespace
}  // namespace tutti
