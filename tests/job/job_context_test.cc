// Tests the rounds of a communicator's set-up when one rank cannot complete them.
#include "job/job_context.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/test_job.h"
#include "tests/support/ports.h"

namespace tutti {
namespace {

// An all-gather of blobs among threads, called once for each round of the set-up.
class Rounds {
 public:
  explicit Rounds(std::size_t ranks) : blobs_(ranks) {}
  std::vector<std::string> gather(std::size_t rank, const std::string& blob) {
    std::unique_lock lock(mutex_);
    blobs_[rank] = blob;
    const std::size_t round = round_;
    if (++there_ == blobs_.size()) {
      there_ = 0;
      ++round_;
      gathered_ = blobs_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ > round; });
    return gathered_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t there_ = 0;
  std::size_t round_ = 0;
  std::vector<std::string> blobs_;
  std::vector<std::string> gathered_;  // result of the last round; valid until all ranks have called gather() again
};

// A DataPath on which the tests send nothing.
class QuietPath final : public DataPath {
 public:
  std::string_view name() const override { return "quiet"; }
  bool reaches(std::uint32_t) const override { return false; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t, std::uint16_t) override { return refusal(); }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t, std::uint16_t) override { return refusal(); }
  void pump() override {}
  bool flush() override { return true; }
  std::optional<std::string> broken(std::uint32_t) override { return std::nullopt; }
  void drain(std::int64_t) override {}
  std::string troubles() override { return ""; }

 private:
  static Error refusal() { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, "nothing is sent here"}; }
};

// A DataPathMaker that fails if has_some is false, like a network card that has no free queue pairs.
class ScarceMaker final : public DataPathMaker {
 public:
  explicit ScarceMaker(bool has_some) : has_some_(has_some) {}
  std::string_view name() const override { return "quiet"; }
  std::string offer() const override { return ""; }
  Result<std::unique_ptr<DataPath>> make(const DataPathHost&, const DataPathOptions&) override {
    if (has_some_) return std::unique_ptr<DataPath>(std::make_unique<QuietPath>());
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "card7 has no more queue pairs"};
  }

 private:
  bool has_some_;
};

// Runs the set-up on every rank and returns the errors, indexed by rank. The data path of rank `poor` cannot be
// created; if `poor` is not less than `ranks`, every rank succeeds.
std::vector<std::optional<Error>> set_up(std::uint32_t ranks, std::uint32_t poor) {
  Rounds rounds(ranks);
  std::vector<std::optional<Error>> errors(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Gather gather = [&](const std::string& blob) -> Result<std::vector<std::string>> {
        return rounds.gather(rank, blob);
      };
      Config config;
      config.transport = TransportPolicy::kTcp;
      auto job_context = make_job_context(config, rank, ranks, "127.0.0.1", Key{7}, 20'000, gather,
                                          std::shared_ptr<detail::RankDevice>());
      ASSERT_TRUE(job_context.ok()) << to_string(job_context.error());
      (*job_context)->path_maker = std::make_shared<ScarceMaker>(rank != poor);
      std::vector<std::uint32_t> members(ranks);
      for (std::uint32_t r = 0; r < ranks; ++r) members[r] = r;
      const auto environment = make_environment(*job_context, members, rank, 1, gather);
      if (!environment) errors[rank] = environment.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(SetUp, AWayThatOneRankCannotMakeFailsAllAndNamesIt) {
  const auto errors = set_up(3, 1);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(errors[rank].has_value()) << rank;
    EXPECT_NE(errors[rank]->message.find("card7 has no more queue pairs"), std::string::npos) << errors[rank]->message;
    if (rank != 1) {
      EXPECT_EQ(errors[rank]->rank, 1) << errors[rank]->message;
    }
  }
}

// One rank failed, and the ranks before and after it timed out waiting for it. The common error must name the
// failed rank and its own message. The first character of a blob is '!' for a failed rank and '?' for a rank that
// timed out.
TEST(SetUp, WhatFailedOnARankCountsForMoreThanThatOthersWaitedForIt) {
  const auto round = [](std::vector<std::string> others) {
    return gather_or_fail(
        [&](const std::string& own) -> Result<std::vector<std::string>> {
          others.push_back(own);
          return others;
        },
        std::string("fine"));
  };
  const Error failed = round({"?1|rank 1 did not connect", "!no descriptors", "?1|rank 1 did not connect"}).error();
  EXPECT_EQ(failed.rank, 1);
  EXPECT_EQ(failed.message, "set-up failed on rank 1: no descriptors");
  const Error waited = round({"+", "?2|rank 2 did not connect", "+"}).error();
  EXPECT_EQ(waited.rank, 2);
  EXPECT_EQ(waited.message, "set-up failed on rank 1: rank 2 did not connect");
  EXPECT_EQ(round({"?77|nonsense"}).error().rank, -1);
  EXPECT_EQ(round({"+a", "+"}).value(), (std::vector<std::string>{"a", "", "fine"}));
  const Error own{ErrorCode::kTimeout, ErrorScope::kCommunicator, 3, "rank 3 did not connect"};
  std::string said;
  EXPECT_EQ(gather_or_fail(
                [&](const std::string& blob) -> Result<std::vector<std::string>> {
                  said = blob;
                  return std::vector<std::string>{blob};
                },
                own)
                .error(),
            own);
  EXPECT_EQ(said, "?3|rank 3 did not connect");
}

// A step of rank 0 has failed because of rank 2. Whatever its code, only the report of rank 2 is the cause.
TEST(SetUp, AnErrorThatNamesAnotherRankIsNoFaultOfThisRank) {
  std::string sent;
  const auto round = [&](ErrorCode code, std::int32_t rank, std::string of_rank_2) {
    const auto gather = [&](const std::string& own) -> Result<std::vector<std::string>> {
      sent = own;
      return std::vector<std::string>{own, "+", of_rank_2};
    };
    return gather_or_fail(gather, Error{code, ErrorScope::kCommunicator, rank, "no memory"}, 0).error();
  };
  EXPECT_EQ(round(ErrorCode::kDevice, 2, "!no GPU").message, "set-up failed on rank 2: no GPU");
  EXPECT_EQ(sent, "?2|no memory");
  const Error lost = round(ErrorCode::kDevice, 2, "+");
  EXPECT_EQ(lost, (Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, 2, "no memory"}));
  EXPECT_EQ(round(ErrorCode::kTimeout, 2, "+").code, ErrorCode::kTimeout)
      << "kTimeout already means that another rank is at fault, so it stays";
  for (const std::int32_t own : {-1, 0}) {
    EXPECT_EQ(round(ErrorCode::kDevice, own, "!no GPU").code, ErrorCode::kDevice);
    EXPECT_EQ(sent, "!no memory");
  }
}

// Rank 0 has lost rank 2 in a step, and the round that follows knows more: rank 2 ended because of rank 1.
TEST(SetUp, TheRoundCountsForMoreThanALostRank) {
  const auto error_of = [](ErrorCode code, std::int32_t rank, std::string message) {
    return Error{code, ErrorScope::kCommunicator, rank, std::move(message)};
  };
  const Error lost = error_of(ErrorCode::kPeerLost, 2, "rank 2 ended during set-up");
  const Error late = error_of(ErrorCode::kTimeout, 2, "rank 2 did not connect");
  const Error cause = error_of(ErrorCode::kPeerLost, 1, "rank 1 ended during set-up");
  const Error own = error_of(ErrorCode::kSystem, -1, "no descriptors");
  const auto after = [](const Gather::Blobs& result, const Error& step) {
    return gather_or_fail([&](const std::string&) { return result; }, step).error();
  };
  const Error over = error_of(ErrorCode::kTimeout, 0, "rank(s) 0, 2 did not answer in time");
  const Error ended = error_of(ErrorCode::kPeerLost, -1, "the process that made the unique id ended");
  const Error aborted = error_of(ErrorCode::kAborted, 0, "set-up was given up");
  for (const Error& step : {lost, late}) {
    EXPECT_EQ(after(cause, step), cause);
    EXPECT_EQ(after(aborted, step), aborted);
    for (const Error& round : {over, ended}) {
      EXPECT_EQ(after(round, step), error_of(step.code, 2, step.message + "; " + round.message))
          << "only this rank knows which rank is late";
    }
    EXPECT_EQ(after(std::vector<std::string>{"?2|x", "!no memory", "+"}, step).message,
              "set-up failed on rank 1: no memory");
    EXPECT_EQ(after(std::vector<std::string>{"?2|x", "?1|x", "+"}, step), step) << "nobody knows more than this rank";
  }
  // A wait that was ended early says nothing about the rank for which it waited, unless time was over.
  const Error early = set_up_has_failed(2);
  EXPECT_EQ(after(cause, early), cause);
  EXPECT_EQ(after(ended, early), ended);
  EXPECT_EQ(after(aborted, early), aborted);
  EXPECT_EQ(after(over, early), error_of(ErrorCode::kTimeout, 2, over.message + "; this rank waited for rank 2"));
  EXPECT_EQ(after(over, set_up_has_failed(-1)), over);
  const Error nobody = error_of(ErrorCode::kTimeout, -1, "a peer does not receive");
  EXPECT_EQ(after(over, nobody), over);
  EXPECT_EQ(after(ended, nobody), ended);
  EXPECT_EQ(after(cause, own), own);
  EXPECT_EQ(after(std::vector<std::string>{"!x", "!no memory", "+"}, own), own);
}

// Runs make_job_context() on a rank of a job that meets through a rendezvous server. If `leaves`, the rank runs out of
// memory after the second round, and before it connects to the ranks of its machine.
Error failure_in_a_job(std::int32_t rank, std::int32_t ranks, std::uint16_t port, bool leaves) {
  RendezvousOptions options = test::job(rank, ranks, port);
  options.timeout_ms = 600'000;  // longer than the test may take
  auto bootstrap = tcp_bootstrap(options);
  if (!bootstrap) return bootstrap.error();
  int rounds = 0;
  const Gather gather(
      [&](const std::string& blob) {
        auto blobs = (*bootstrap)->all_gather(blob);
        if (leaves && ++rounds == 2) throw std::bad_alloc();
        return blobs;
      },
      [&] { return (*bootstrap)->has_failed(); });
  try {
    auto job_context = make_job_context(Config{}, std::uint32_t(rank), std::uint32_t(ranks), "127.0.0.1", Key{7},
                                        options.timeout_ms, gather, std::shared_ptr<detail::RankDevice>());
    return job_context ? Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, "no failure"} : job_context.error();
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kSystem, ErrorScope::kCommunicator, rank, "out of memory"};
  }
}

// The others wait for rank 2 to connect. They must learn of its failure from the server, not at the deadline.
TEST(SetUp, ARankThatFailsBeforeItConnectsIsNamedAtOnce) {
  const std::uint16_t port = test::free_port();
  std::vector<std::optional<Error>> errors(3);
  test::on_ranks({0, 1, 2},
                 [&](std::int32_t rank) { errors[std::size_t(rank)] = failure_in_a_job(rank, 3, port, rank == 2); });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors[rank]->code, ErrorCode::kPeerLost) << to_string(*errors[rank]);
    EXPECT_EQ(errors[rank]->rank, 2);
    EXPECT_EQ(errors[rank]->message, "rank 2 gave up set-up");
  }
}

// Returns for each rank the lowest rank of its machine, for ranks in one process with these node ids.
std::vector<std::uint32_t> machines_of(const std::vector<std::string>& node_ids) {
  const auto ranks = static_cast<std::uint32_t>(node_ids.size());
  Rounds rounds(ranks);
  std::vector<std::vector<std::uint32_t>> found(ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Gather gather = [&](const std::string& blob) -> Result<std::vector<std::string>> {
        return rounds.gather(rank, blob);
      };
      Config config;
      config.node_id = node_ids[rank];
      const auto job_context = make_job_context(config, rank, ranks, "127.0.0.1", Key{7}, 20'000, gather,
                                                std::shared_ptr<detail::RankDevice>());
      ASSERT_TRUE(job_context.ok()) << to_string(job_context.error());
      found[rank] = (*job_context)->machines;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& machines : found) EXPECT_EQ(machines, found[0]);
  return found[0];
}

// The node id is sent to the other ranks in one text with other values. It may contain the character that separates
// them.
TEST(SetUp, ANodeIdMayContainAnyCharacter) {
  using Machines = std::vector<std::uint32_t>;
  for (const char* id : {"plain", "a|b", "|", "||", "a|", "/", "a=b c"}) {
    EXPECT_EQ(machines_of({id, id}), (Machines{0, 0})) << id;
  }
  EXPECT_EQ(machines_of({"a|1", "a|2", "a|1"}), (Machines{0, 1, 0}));
  EXPECT_EQ(machines_of({"a", "a|", "|a"}), (Machines{0, 1, 2}));
}

TEST(SetUp, GoesThroughWhereAllCan) {
  for (const auto& error : set_up(3, 3)) EXPECT_FALSE(error.has_value()) << error->message;
}

}  // namespace
}  // namespace tutti
