// Tests agree(), and shrink() without a list, with ranks as processes that are killed before the call, killed at a
// random time during the call, or stopped.
#include <sys/prctl.h>

#include <ostream>
#include <random>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t kSize = 4;

struct JobSetting {
  const char* name;
  const char* transport;
  bool two_nodes;  // ranks 0 and 1 are on one machine, ranks 2 and 3 on another
  friend void PrintTo(const JobSetting& setting, std::ostream* out) { *out << setting.name; }
};
constexpr JobSetting kJobSettings[] = {{"Shm", "auto", false}, {"Tcp", "tcp", false}, {"Mixed", "auto", true}};

// The outcome of agree() on one rank. It is in shared memory, so that the test can compare the outcomes of all
// ranks.
struct AgreeOutcome {
  std::atomic<int> ended;  // 1: success, 2: error
  std::uint32_t survivors;
  std::uint64_t last_operation;
  std::int64_t value;
  std::int64_t took_ms;

  bool operator==(const AgreeOutcome& other) const {
    return survivors == other.survivors && last_operation == other.last_operation && value == other.value;
  }
};
struct Report {
  std::atomic<int> ready;
  std::atomic<int> go;
  AgreeOutcome outcome[kSize];
};

bool agree(Communicator& rank, std::int32_t me, const AgreeOptions& options, Report& report) {
  const std::int64_t start_ms = now_ms();
  const auto agreement = rank.agree(options);
  AgreeOutcome& outcome = report.outcome[me];
  outcome.took_ms = now_ms() - start_ms;
  if (!agreement.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(agreement.error()).c_str());
  if (agreement.ok()) {
    for (const std::int32_t one : agreement->survivors) outcome.survivors |= 1u << one;
    outcome.last_operation = agreement->last_operation;
    outcome.value = agreement->value;
  }
  outcome.ended = agreement.ok() ? 1 : 2;
  return agreement.ok();
}

class AgreeProcesses : public testing::TestWithParam<JobSetting> {
 protected:
  std::vector<pid_t> start_all(const std::function<int(Communicator&, std::int32_t)>& body,
                               milliseconds setup_timeout = patience()) {
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      children.push_back(start([=] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CommunicatorOptions options = job(rank, kSize, port);
        options.transport = GetParam().transport;
        options.setup_timeout = setup_timeout;
        if (GetParam().two_nodes) options.node_id = rank < 2 ? "a" : "b";
        auto communicator = Communicator::create(options);
        if (!communicator.ok()) {
          std::fprintf(stderr, "rank %d: %s\n", rank, to_string(communicator.error()).c_str());
          return 2;
        }
        return body(**communicator, rank);
      }));
    }
    return children;
  }
};

// Runs all_reduce until one fails, and returns the number of those that succeeded.
std::int64_t sum_until_broken(Communicator& rank, Report& report) {
  std::vector<float> data(1 << 16, 1.0f);
  std::int64_t done = 0;
  while (rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax).ok()) {
    if (++done == 3) ++report.ready;
  }
  return done;
}

TEST_P(AgreeProcesses, AllSurvivorsKnowTheSameAfterAKill) {
  for (const std::vector<std::size_t>& dead : {std::vector<std::size_t>{2}, {0}, {0, 1}, {1, 3}, {0, 1, 2}}) {
    Report& report = shared_object<Report>();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      const std::int64_t done = sum_until_broken(rank, report);
      if (!agree(rank, me, {.value = done}, report)) return 3;
      // A call of this length is one operation, so that both numbers count the same calls.
      const auto operations = static_cast<std::uint64_t>(done);
      return report.outcome[me].last_operation <= operations && report.outcome[me].value <= done ? 0 : 4;
    });
    wait_for(report.ready, kSize);
    std::uint32_t survivors = (1u << kSize) - 1;
    for (const std::size_t rank : dead) {
      kill(children[rank], SIGKILL);
      survivors &= ~(1u << rank);
    }
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      EXPECT_EQ(status_of(children[rank]), (survivors >> rank & 1) != 0 ? 0 : 128 + SIGKILL) << "rank " << rank;
    }
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      if ((survivors >> rank & 1) == 0) continue;
      EXPECT_EQ(report.outcome[rank].survivors, survivors);
      EXPECT_EQ(report.outcome[rank].last_operation, static_cast<std::uint64_t>(report.outcome[rank].value));
      EXPECT_LT(report.outcome[rank].took_ms, patience().count())
          << "the documented limit is one second on an idle machine";
      for (std::size_t other = 0; other < rank; ++other) {
        EXPECT_TRUE((survivors >> other & 1) == 0 || report.outcome[rank] == report.outcome[other])
            << rank << ", " << other;
      }
    }
  }
}

// Kills a rank at a random time during agree(); often it is the coordinator. The survivors have no earlier sign of
// its death.
TEST_P(AgreeProcesses, AllSurvivorsKnowTheSameWhereverTheKillFalls) {
  std::mt19937 random(7);
  int inside = 0;
  for (int round = 0; round < 12 || (inside == 0 && round < 1000); ++round) {
    Report& report = shared_object<Report>();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      ++report.ready;
      while (report.go == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(300 * ((me + round) % kSize)));
      return agree(rank, me, {.value = me}, report) ? 0 : 3;
    });
    wait_for(report.ready, kSize);
    const std::size_t first = round % 2 == 0 ? 0 : random() % kSize;
    const std::size_t second = random() % 3 == 0 ? random() % kSize : first;
    report.go = 1;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill(children[first], SIGKILL);
    kill(children[second], SIGKILL);
    const AgreeOutcome* outcome = nullptr;
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      const bool victim = rank == first || rank == second;
      const int status = status_of(children[rank]);
      if (victim) inside += report.outcome[rank].ended == 0 ? 1 : 0;
      if (!victim) {
        EXPECT_EQ(status, 0) << "rank " << rank << " of those that lose " << first << ", " << second;
      }
      if (report.outcome[rank].ended != 1) continue;
      if (outcome == nullptr) outcome = &report.outcome[rank];
      EXPECT_TRUE(*outcome == report.outcome[rank])
          << "rank " << rank << ": " << outcome->survivors << " against " << report.outcome[rank].survivors;
      EXPECT_TRUE(report.outcome[rank].survivors >> rank & 1);
    }
  }
  EXPECT_GT(inside, 0);
}

// Stops the lowest rank. The others continue without it, and it gets an error when it is resumed.
TEST_P(AgreeProcesses, GoOnWithoutTheStopped) {
  Report& report = shared_object<Report>();
  const milliseconds limit = scaled(milliseconds(1000));  // time limit for the joins of ranks 1, 2 and 3
  const auto children = start_all([&](Communicator& rank, std::int32_t me) {
    ++report.ready;
    while (report.go == 0) std::this_thread::sleep_for(milliseconds(2));
    const bool agreed = agree(rank, me, {.value = me, .timeout = limit}, report);
    ++report.ready;
    while (me != 0 && report.go < 2) std::this_thread::sleep_for(milliseconds(2));
    return agreed == (me != 0) ? 0 : 3;
  });
  wait_for(report.ready, kSize);
  kill(children[0], SIGSTOP);
  report.go = 1;
  wait_for(report.ready, 2 * kSize - 1);
  for (std::size_t rank = 1; rank < kSize; ++rank) {
    EXPECT_EQ(report.outcome[rank].ended, 1);
    EXPECT_EQ(report.outcome[rank].survivors, 0b1110u);
    EXPECT_EQ(report.outcome[rank].value, 1);
    EXPECT_LT(report.outcome[rank].took_ms, patience().count())
        << "about " << limit.count() << " ms are expected on an idle machine";
  }
  kill(children[0], SIGCONT);
  wait_for(report.ready, 2 * kSize);
  report.go = 2;
  for (std::size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(status_of(children[rank]), 0) << "rank " << rank;
}

// The survivors must have a working communicator within one second after the kill.
TEST_P(AgreeProcesses, ShrinkWithoutAList) {
  for (const std::vector<std::size_t>& dead : {std::vector<std::size_t>{2}, {0}, {0, 3}, {0, 1, 2}}) {
    Report& report = shared_object<Report>();
    std::atomic<std::int64_t>& killed_ms = shared_object<std::atomic<std::int64_t>>();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      sum_until_broken(rank, report);
      auto child = rank.shrink();
      if (!child.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
      if (!child.ok()) return 3;
      if (!sum_is_right(**child, 1000)) return 4;
      report.outcome[me].took_ms = now_ms() - killed_ms;
      if ((*child)->size() != kSize - static_cast<std::int32_t>(dead.size())) return 5;
      return sum_is_right(**child, 300'007) && (*child)->barrier().ok() ? 0 : 6;
    });
    wait_for(report.ready, kSize);
    killed_ms = now_ms();
    for (const std::size_t rank : dead) kill(children[rank], SIGKILL);
    std::int64_t slowest_ms = 0;
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      const bool victim = std::find(dead.begin(), dead.end(), rank) != dead.end();
      EXPECT_EQ(status_of(children[rank]), victim ? 128 + SIGKILL : 0) << "rank " << rank;
      slowest_ms = std::max(slowest_ms, report.outcome[rank].took_ms);
    }
    EXPECT_LT(slowest_ms, patience().count()) << "the documented limit is one second on an idle machine";
    std::printf("%zu of %d ranks killed: a sum on the others' communicator after %lld ms\n", dead.size(), kSize,
                static_cast<long long>(slowest_ms));
  }
}

// Kills ranks while the others shrink, several times. Every survivor must end with a communicator of all survivors.
TEST_P(AgreeProcesses, ShrinkWhereverTheKillFalls) {
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    Report& report = shared_object<Report>();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      ++report.ready;
      while (report.go == 0) std::this_thread::yield();
      auto child = rank.shrink();
      if (!child.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
      if (!child.ok()) return 3;
      while (true) {  // the victim may be killed at any time, so all ranks agree on whether the sum succeeded
        const bool summed = sum_fails(**child, {}).empty();
        const auto all = (*child)->agree({.value = summed ? 1 : 0});
        if (!all.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(all.error()).c_str());
        if (!all.ok()) return 4;
        if (all->value == 1) return (*child)->size() >= kSize - 1 ? 0 : 5;
        auto next = (*child)->shrink();
        if (!next.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(next.error()).c_str());
        if (!next.ok()) return 6;
        child = std::move(next);
      }
    });
    wait_for(report.ready, kSize);
    const std::size_t victim = round % 2 == 0 ? 0 : random() % kSize;
    report.go = 1;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    kill(children[victim], SIGKILL);
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      const int status = status_of(children[rank]);
      EXPECT_EQ(status, rank == victim && status != 0 ? 128 + SIGKILL : 0)
          << "rank " << rank << " of those that lose " << victim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, AgreeProcesses, testing::ValuesIn(kJobSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace tutti::test
