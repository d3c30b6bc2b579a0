// Who is left, where processes end: killed before, at any moment meanwhile, stopped. And shrink() without a list.
#include <sys/prctl.h>

#include <new>
#include <ostream>
#include <random>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t kSize = 4;

struct Way {
  const char* name;
  const char* transport;
  bool two_nodes;  // ranks 0, 1 and ranks 2, 3
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
};
constexpr Way kWays[] = {{"Shm", "auto", false}, {"Tcp", "tcp", false}, {"Mixed", "auto", true}};

// What a rank was told, for the test to compare: memory that all see.
struct Told {
  std::atomic<int> ended;  // 1: well, 2: with an error
  std::uint32_t survivors;
  std::uint64_t last_operation;
  std::int64_t value;
  std::int64_t took_ms;

  bool operator==(const Told& other) const {
    return survivors == other.survivors && last_operation == other.last_operation && value == other.value;
  }
};
struct Report {
  std::atomic<int> ready;
  std::atomic<int> go;
  Told told[kSize];
};

Report& make_report() {
  void* memory = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) Report{};
}

bool agree(Communicator& rank, std::int32_t me, const AgreeOptions& options, Report& report) {
  const std::int64_t start_ms = now_ms();
  const auto agreement = rank.agree(options);
  Told& told = report.told[me];
  told.took_ms = now_ms() - start_ms;
  if (!agreement.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(agreement.error()).c_str());
  if (agreement.ok()) {
    for (const std::int32_t one : agreement->survivors) told.survivors |= 1u << one;
    told.last_operation = agreement->last_operation;
    told.value = agreement->value;
  }
  told.ended = agreement.ok() ? 1 : 2;
  return agreement.ok();
}

class AgreeProcesses : public testing::TestWithParam<Way> {
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

// Sums until one fails; how many went well.
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
    Report& report = make_report();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      const std::int64_t done = sum_until_broken(rank, report);
      if (!agree(rank, me, {.value = done}, report)) return 3;
      // A call of this length is one operation: the two counts are of the same thing.
      const auto operations = static_cast<std::uint64_t>(done);
      return report.told[me].last_operation <= operations && report.told[me].value <= done ? 0 : 4;
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
      EXPECT_EQ(report.told[rank].survivors, survivors);
      EXPECT_EQ(report.told[rank].last_operation, static_cast<std::uint64_t>(report.told[rank].value));
      EXPECT_LT(report.told[rank].took_ms, patience().count()) << "the promise is one second, on a quiet machine";
      for (std::size_t other = 0; other < rank; ++other) {
        EXPECT_TRUE((survivors >> other & 1) == 0 || report.told[rank] == report.told[other]) << rank << ", " << other;
      }
    }
  }
}

// At a random moment of the agreement itself, the host often among them. Nobody knows of a dead rank beforehand.
TEST_P(AgreeProcesses, AllSurvivorsKnowTheSameWhereverTheKillFalls) {
  std::mt19937 random(7);
  int inside = 0;
  for (int round = 0; round < 12 || (inside == 0 && round < 1000); ++round) {
    Report& report = make_report();
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
    const Told* told = nullptr;
    for (std::size_t rank = 0; rank < kSize; ++rank) {
      const bool victim = rank == first || rank == second;
      const int status = status_of(children[rank]);
      if (victim) inside += report.told[rank].ended == 0 ? 1 : 0;
      if (!victim) {
        EXPECT_EQ(status, 0) << "rank " << rank << " of those that lose " << first << ", " << second;
      }
      if (report.told[rank].ended != 1) continue;
      if (told == nullptr) told = &report.told[rank];
      EXPECT_TRUE(*told == report.told[rank])
          << "rank " << rank << ": " << told->survivors << " against " << report.told[rank].survivors;
      EXPECT_TRUE(report.told[rank].survivors >> rank & 1);
    }
  }
  EXPECT_GT(inside, 0);
}

// The lowest rank is stopped: the others go on without it, and it is told when it wakes.
TEST_P(AgreeProcesses, GoOnWithoutTheStopped) {
  Report& report = make_report();
  const milliseconds limit = scaled(milliseconds(1000));  // within which ranks 1, 2 and 3 must all come
  const auto children = start_all([&](Communicator& rank, std::int32_t me) {
    ++report.ready;
    while (report.go == 0) std::this_thread::sleep_for(milliseconds(2));
    const bool agreed = agree(rank, me, {.value = me, .patience = limit}, report);
    ++report.ready;
    while (me != 0 && report.go < 2) std::this_thread::sleep_for(milliseconds(2));
    return agreed == (me != 0) ? 0 : 3;
  });
  wait_for(report.ready, kSize);
  kill(children[0], SIGSTOP);
  report.go = 1;
  wait_for(report.ready, 2 * kSize - 1);
  for (std::size_t rank = 1; rank < kSize; ++rank) {
    EXPECT_EQ(report.told[rank].ended, 1);
    EXPECT_EQ(report.told[rank].survivors, 0b1110u);
    EXPECT_EQ(report.told[rank].value, 1);
    EXPECT_LT(report.told[rank].took_ms, patience().count()) << "about " << limit.count() << " on a quiet machine";
  }
  kill(children[0], SIGCONT);
  wait_for(report.ready, 2 * kSize);
  report.go = 2;
  for (std::size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(status_of(children[rank]), 0) << "rank " << rank;
}

// The promise: a working communicator of the survivors within a second, from the kill on.
TEST_P(AgreeProcesses, ShrinkWithoutAList) {
  for (const std::vector<std::size_t>& dead : {std::vector<std::size_t>{2}, {0}, {0, 3}, {0, 1, 2}}) {
    Report& report = make_report();
    std::atomic<std::int64_t>& killed_ms = *new (
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<std::int64_t>{0};
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      sum_until_broken(rank, report);
      auto child = rank.shrink();
      if (!child.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
      if (!child.ok()) return 3;
      if (!sum_is_right(**child, 1000)) return 4;
      report.told[me].took_ms = now_ms() - killed_ms;
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
      slowest_ms = std::max(slowest_ms, report.told[rank].took_ms);
    }
    EXPECT_LT(slowest_ms, patience().count()) << "the promise is one second, on a quiet machine";
    std::printf("%zu of %d ranks killed: a sum on the others' communicator after %lld ms\n", dead.size(), kSize,
                static_cast<long long>(slowest_ms));
  }
}

// Ranks die while the others shrink, again and again: every survivor ends with one communicator of all survivors.
TEST_P(AgreeProcesses, ShrinkWhereverTheKillFalls) {
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    Report& report = make_report();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      ++report.ready;
      while (report.go == 0) std::this_thread::yield();
      auto child = rank.shrink();
      if (!child.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
      if (!child.ok()) return 3;
      while (true) {  // the victim may die at any time yet; what all think of the sum decides
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

INSTANTIATE_TEST_SUITE_P(Ways, AgreeProcesses, testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace tutti::test
