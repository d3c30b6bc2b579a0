// Calls that end alike on all ranks that live: as many have gone well on each, whoever is killed whenever.
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <random>

#include "runtime/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t kSize = 4;

struct Report {
  std::atomic<std::int64_t> good[kSize];  // calls that have ended well
};

// Broadcasts until one fails; the root, of 16 in a row the same, runs ahead of the others. True: the survivors count
// alike.
bool alike_after_a_kill(bool uniform, const char* transport, std::size_t victim, int after_us) {
  void* memory = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Report& report = *new (memory) Report{};
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t me = 0; me < kSize; ++me) {
    children.push_back(start([&, me] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      CommunicatorOptions options = job(me, kSize, port);
      options.transport = transport;
      options.uniform = uniform;
      auto communicator = Communicator::create(options);
      if (!communicator.ok()) return 2;
      std::vector<float> data(1000, static_cast<float>(me));
      while (true) {
        const auto root =
            static_cast<std::int32_t>(report.good[me] / 16 % kSize);  // who waits for nobody notices nothing
        if (me != root) std::this_thread::sleep_for(std::chrono::microseconds(200));
        const Status status =
            (*communicator)->broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, root);
        if (!status.ok()) break;
        ++report.good[me];
      }
      return 0;
    }));
  }
  const auto all_have_begun = [&] {
    return std::all_of(std::begin(report.good), std::end(report.good), [](const auto& good) { return good > 0; });
  };
  for (int i = 0; i < 8000 && !all_have_begun(); ++i) std::this_thread::sleep_for(milliseconds(5));
  std::this_thread::sleep_for(std::chrono::microseconds(after_us));
  kill(children[victim], SIGKILL);
  bool alike = true;
  std::int64_t first = -1;
  for (std::size_t me = 0; me < kSize; ++me) {
    EXPECT_EQ(status_of(children[me]), me == victim ? 128 + SIGKILL : 0) << "rank " << me;
    if (me == victim) continue;
    if (first < 0) first = report.good[me];
    alike = alike && report.good[me] == first;
  }
  EXPECT_GT(first, 0);
  return alike;
}

class Uniform : public testing::TestWithParam<const char*> {};

TEST_P(Uniform, SurvivorsHaveAsManyGoodCalls) {
  std::mt19937 random(3);
  int plain_alike = 0;
  for (int round = 0; round < 12; ++round) {
    const std::size_t victim = random() % kSize;
    const int after_us = 20'000 + static_cast<int>(random() % 20'000);
    EXPECT_TRUE(alike_after_a_kill(true, GetParam(), victim, after_us)) << "rank " << victim << " was killed";
    plain_alike += alike_after_a_kill(false, GetParam(), victim, after_us) ? 1 : 0;
  }
  // In shared memory what a dead rank has shown stays there, and the others mostly catch up anyway.
  if (std::string_view(GetParam()) == "tcp") {
    EXPECT_LT(plain_alike, 12) << "the test would not notice if nothing were confirmed";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Uniform, testing::Values("auto", "tcp"),
                         [](const auto& way) { return std::string(way.param); });

TEST(Uniform, WorksOnAfterADisagreement) {
  CommunicatorOptions options;
  options.uniform = true;
  options.timeout = std::chrono::seconds(20);
  auto made = Communicator::create_all(3, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [](Communicator& rank) {
    std::vector<float> data(100);
    const std::size_t count = rank.rank() == 2 ? 99 : 100;
    const Status status = rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(sum_is_right(rank, 1000));
    auto child = rank.duplicate();
    ASSERT_TRUE(child.ok());
    EXPECT_TRUE(sum_is_right(**child, 1000));
  });
}

}  // namespace
}  // namespace tutti::test
