// Tests the destruction of ranks when allocations fail. The process must continue, and the peers must get the close
// notification.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>

#include "communicator/support.h"
#include "support/failing_allocations.h"

namespace tutti::test {
namespace {

enum Outcome : int { kDestroyed = 0, kNoRanks = 10 };

// Runs body() in a child process. Returns its exit status, or 128 plus the signal that killed it.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int destroy_without_memory(const JobConfiguration& world, std::int64_t first_failure, bool lasting) {
  alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
  Communicators ranks = make_configured_ranks(world, 2);
  std::atomic<bool> good = true;
  std::vector<float> values(2000, 1);
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> total(values.size());
    if (!rank.all_reduce(values.data(), total.data(), values.size(), DataType::kFloat32, ReduceOp::kSum, {}).ok())
      good = false;
  });
  if (!good) return kNoRanks;
  failing_allocations::set_lasting(lasting);
  failing_allocations::fail_after(first_failure, true);
  ranks.clear();
  failing_allocations::fail_after(0, false);
  return kDestroyed;
}

class Destruction : public testing::TestWithParam<JobConfiguration> {};

TEST_P(Destruction, EndsWithoutAnyMemory) {
  EXPECT_EQ(in_process([] { return destroy_without_memory(GetParam(), 1, true); }), kDestroyed);
}

TEST_P(Destruction, EndsWhicheverAllocationFails) {
  constexpr std::int64_t kMost = 24;  // more than the number of allocations of a destruction
  for (std::int64_t n = 1; n <= kMost; ++n) {
    ASSERT_EQ(in_process([n] { return destroy_without_memory(GetParam(), n, false); }), kDestroyed) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Destruction, testing::ValuesIn(kConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

}  // namespace
}  // namespace tutti::test
