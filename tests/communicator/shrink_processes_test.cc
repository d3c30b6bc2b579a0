// Tests shrink() with ranks as processes that are killed before the call, killed during the call, or stopped.
#include <sys/prctl.h>

#include <filesystem>
#include <ostream>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using Excluded = std::vector<std::int32_t>;

constexpr std::int32_t kSize = 4;

struct JobSetting {
  const char* name;
  const char* transport;
  bool two_nodes;  // ranks 0 and 1 are on one machine, ranks 2 and 3 on another
  friend void PrintTo(const JobSetting& setting, std::ostream* out) { *out << setting.name; }
};
constexpr JobSetting kJobSettings[] = {{"Shm", "auto", false}, {"Tcp", "tcp", false}, {"Mixed", "auto", true}};

// Shared memory through which the ranks report to the test.
struct Report {
  std::atomic<int> ready;
  std::atomic<std::int64_t> shrunk_ms[kSize];
};

class ShrinkProcesses : public testing::TestWithParam<JobSetting> {
 protected:
  // Runs body(communicator, rank) in one process for each rank.
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

int works(Communicator& rank) {
  for (const std::size_t count : {1u, 1000u, 300'007u}) {
    if (!sum_is_right(rank, count)) return 4;
  }
  auto memory = rank.allocate(400'000);
  if (!memory.ok()) return 5;
  auto* data = reinterpret_cast<float*>(memory->data());
  std::fill(data, data + 100'000, 1.0f);
  if (!rank.all_reduce(data, data, 100'000, DataType::kFloat32, ReduceOp::kSum).ok()) return 6;
  if (data[99'999] != static_cast<float>(rank.size())) return 7;
  auto half = rank.split(rank.rank() % 2);
  if (!half.ok() || !sum_is_right(**half, 1000)) return 8;
  return rank.barrier().ok() ? 0 : 9;
}

// Runs all_reduce until one fails. Then it shrinks without the ranks in `dead`.
int sum_until_broken_and_shrink(Communicator& rank, std::int32_t me, const Excluded& dead, Report& report) {
  std::vector<float> data(1 << 16, 1.0f);
  ++report.ready;
  while (rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax).ok()) continue;
  const std::int64_t start_ms = now_ms();
  auto child = rank.shrink(dead);
  report.shrunk_ms[me] = now_ms() - start_ms;
  if (!child.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
    return 3;
  }
  const int worked = works(**child);
  if (worked != 0 || (*child)->size() != kSize - static_cast<std::int32_t>(dead.size())) return worked + 10;
  if ((*child)->size() == 2) return 0;
  // Shrinks again, without the last rank.
  if (me == kSize - 1) return 0;
  auto grandchild = (*child)->shrink(Excluded{(*child)->size() - 1});
  if (!grandchild.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(grandchild.error()).c_str());
  return grandchild.ok() ? works(**grandchild) : 30;
}

TEST_P(ShrinkProcesses, GoOnWithoutTheKilled) {
  for (const Excluded& dead : {Excluded{2}, Excluded{0}, Excluded{0, 3}, Excluded{1, 2}}) {
    Report& report = shared_object<Report>();
    const auto children = start_all(
        [&](Communicator& rank, std::int32_t me) { return sum_until_broken_and_shrink(rank, me, dead, report); });
    wait_for(report.ready, kSize);
    for (const std::int32_t rank : dead) kill(children[static_cast<std::size_t>(rank)], SIGKILL);
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      const bool killed = std::find(dead.begin(), dead.end(), rank) != dead.end();
      EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), killed ? 128 + SIGKILL : 0) << "rank " << rank;
      if (killed) continue;
      EXPECT_LT(report.shrunk_ms[rank], patience().count()) << "the documented limit is one second on an idle machine";
      RecordProperty("shrink_ms", static_cast<int>(report.shrunk_ms[rank]));
    }
  }
}

// The ranks must not need the stopped process, neither to create the new communicator nor to use it.
TEST_P(ShrinkProcesses, GoOnWithoutTheStopped) {
  Report& report = shared_object<Report>();
  Report& done = shared_object<Report>();
  const auto children = start_all([&](Communicator& rank, std::int32_t me) {
    ++report.ready;
    if (me == 1) {
      while (true) pause();
    }
    while (report.ready < kSize + 1) std::this_thread::sleep_for(milliseconds(5));
    auto child = rank.shrink(Excluded{1});
    if (!child.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(child.error()).c_str());
    const int result = child.ok() ? works(**child) : 3;
    ++done.ready;
    // the destruction of the parent communicator is not tested here
    while (done.ready < kSize) std::this_thread::sleep_for(milliseconds(5));
    return result;
  });
  wait_for(report.ready, kSize);
  kill(children[1], SIGSTOP);
  ++report.ready;
  wait_for(done.ready, kSize - 1);
  kill(children[1], SIGKILL);
  ++done.ready;
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(status_of(children[rank]), rank == 1 ? 128 + SIGKILL : 0) << "rank " << rank;
  }
}

// Two ranks wait for a third one, and one of the two is killed. The other one must get an error that names it at
// once. Then it shrinks without that rank.
TEST_P(ShrinkProcesses, NameTheRankThatEndsMeanwhile) {
  for (const std::int32_t victim : {0, 2}) {
    Report& report = shared_object<Report>();
    const auto children = start_all([&](Communicator& rank, std::int32_t me) {
      ++report.ready;
      if (me == 3) {
        while (true) pause();
      }
      const std::int64_t start_ms = now_ms();
      auto child = rank.shrink({});
      report.shrunk_ms[me] = now_ms() - start_ms;
      if (child.ok() || child.error().code != ErrorCode::kPeerLost || child.error().rank != victim) {
        std::fprintf(stderr, "rank %d: %s\n", me, child.ok() ? "no error" : to_string(child.error()).c_str());
        return 3;
      }
      auto again = rank.shrink(Excluded{victim, 3});
      if (!again.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(again.error()).c_str());
      return again.ok() ? works(**again) : 4;
    });
    wait_for(report.ready, kSize);
    // usually during shrink(); an earlier kill must give the same result
    std::this_thread::sleep_for(milliseconds(100));
    kill(children[static_cast<std::size_t>(victim)], SIGKILL);
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), rank == victim ? 128 + SIGKILL : 0)
          << "rank " << rank << " of those that lose " << victim;
      EXPECT_LT(report.shrunk_ms[rank], patience().count());
    }
    kill(children[3], SIGKILL);
    EXPECT_EQ(status_of(children[3]), 128 + SIGKILL);
  }
}

// Rank 3 has exited before the others call shrink(), and they do not list it. On the same machine its exit is
// detected at once.
TEST_P(ShrinkProcesses, NameTheRankThatHasEndedBefore) {
  Report& report = shared_object<Report>();
  const auto children = start_all(
      [&](Communicator& rank, std::int32_t me) {
        ++report.ready;
        if (me == 3) {
          while (true) pause();
        }
        while (report.ready < kSize + 1) std::this_thread::sleep_for(milliseconds(5));
        auto child = rank.shrink({});
        const bool seen = !GetParam().two_nodes;  // from another machine, the ranks see only that it does not join
        const bool said = !child.ok() && child.error().rank == 3 &&
                          child.error().code == (seen ? ErrorCode::kPeerLost : ErrorCode::kTimeout);
        if (!said)
          std::fprintf(stderr, "rank %d: %s\n", me, child.ok() ? "no error" : to_string(child.error()).c_str());
        auto again = rank.shrink(Excluded{3});
        if (!again.ok()) std::fprintf(stderr, "rank %d: %s\n", me, to_string(again.error()).c_str());
        return !said ? 3 : again.ok() ? works(**again) : 4;
      },
      GetParam().two_nodes ? scaled(milliseconds(3000)) : patience());
  wait_for(report.ready, kSize);
  kill(children[3], SIGKILL);
  EXPECT_EQ(status_of(children[3]), 128 + SIGKILL);
  ++report.ready;
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(status_of(children[rank]), 0) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(Ways, ShrinkProcesses, testing::ValuesIn(kJobSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace tutti::test
