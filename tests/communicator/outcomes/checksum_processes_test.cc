// Tests calls with a checksum in processes of which one is killed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <random>
#include <vector>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

constexpr std::int32_t kRanks = 3;

struct Progress {
  std::atomic<int> begun;       // number of ranks that have begun the first call with a checksum
  std::atomic<int> successful;  // number of survivors on which it succeeded
};

// Makes calls with checksums until one fails, and then a communicator of the surviving ranks. Returns 0, or the number
// of the step that went wrong.
int run_rank(CommunicatorOptions options, Progress& progress, bool is_victim) {
  options.setup_timeout = 2 * patience();
  auto made = Communicator::create(options);
  if (!made.ok()) return 2;
  std::vector<float> data(1000, 1.0F);
  CallOptions asking;
  asking.checksum = true;
  const auto start = std::chrono::steady_clock::now();
  ++progress.begun;
  bool first = true;
  while ((*made)->all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax, asking).ok()) {
    if (first && !is_victim) ++progress.successful;
    first = false;
  }
  auto smaller = (*made)->shrink();
  if (!smaller.ok() || (*smaller)->size() != kRanks - 1) return 3;
  if (std::chrono::steady_clock::now() - start > patience()) return 4;
  const Status sum =
      (*smaller)->all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum, asking);
  return sum.ok() && data[999] == kRanks - 1 ? 0 : 5;
}

// Kills a rank at a random time during the first call with a checksum, which makes a second communicator, or soon after
// it.
TEST(ChecksumProcesses, ADeathInTheFirstCallEndsItOnAllRanks) {
  std::mt19937 random(11);
  for (const char* transport : {"auto", "tcp"}) {
    int during = 0;  // number of jobs in which the first call failed on a survivor
    for (int round = 0; round < 10 || (during < 2 && round < 100); ++round) {
      Progress& progress = shared_object<Progress>();
      const std::int32_t victim = static_cast<std::int32_t>(random() % kRanks);
      const std::uint16_t port = free_port();
      std::vector<pid_t> children;
      for (std::int32_t me = 0; me < kRanks; ++me) {
        children.push_back(start([&, me] {
          prctl(PR_SET_PDEATHSIG, SIGKILL);
          CommunicatorOptions options = job(me, kRanks, port);
          options.transport = transport;
          return run_rank(options, progress, me == victim);
        }));
      }
      ASSERT_TRUE(eventually([&] { return progress.begun == kRanks; }));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 8'000));
      kill(children[static_cast<std::size_t>(victim)], SIGKILL);
      for (std::int32_t me = 0; me < kRanks; ++me) {
        EXPECT_EQ(status_of(children[static_cast<std::size_t>(me)]), me == victim ? 128 + SIGKILL : 0)
            << fmt::format("{}, round {}: rank {}, rank {} was killed", transport, round, me, victim);
      }
      during += progress.successful < kRanks - 1 ? 1 : 0;
    }
    EXPECT_GE(during, 2) << "over " << transport;
  }
}

}  // namespace
}  // namespace tutti::test
