// Tests of long all_reduce calls on GPUs of several machines between processes: two processes on each of two machines,
// with a GPU each, on the fake driver.

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "device/native/device_calls.h"
#include "tests/device/calls/jobs_support.h"
#include "tests/device/calls/machines_support.h"
#include "tests/support/patience.h"
#include "tests/support/shared_object.h"

namespace tutti::testing {
namespace {

bool run(const Job::Body& body, std::chrono::milliseconds timeout = kLongTimeout) {
  Job job({0, 1, 2, 3});
  job.set_processes_of_a_machine(2);
  return job.run(body, timeout);
}

TEST(MachinesOfProcesses, RunALongCallInParts) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu&) {
    for (const std::size_t count : {kLong, 3 * kLong + 1}) {
      const RankBuffer buffer(rank, count);
      must(rank.run(buffer.call(), buffer.gpu.options()));
      must(buffer.has_sums(rank), "the sums");
      must(rank.async_status());
    }
    must(detail::calls_on_device(rank) == 2, "the calls did not run in parts");
    must(rank.barrier());
  }));
}

// The GPUs of one machine cannot run the algorithm that TUTTI_TUNE names for two of the parts, because it needs two
// connections between ranks, and these GPUs have one for each of their blocks. Both machines run the call in parts.
TEST(MachinesOfProcesses, WithDifferentGpusRunALongCallInParts) {
  setenv("FAKE_CUDA_DEVICES", "12", 1);
  auto& begun = test::shared_object<std::atomic<int>>();
  Job job({{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  job.set_processes_of_a_machine(1);
  const auto begin = [&] {
    setenv("TUTTI_TUNE", "reduce_scatter=circulant; all_gather=circulant", 1);
    if (begun++ == 0) setenv("TUTTI_DEVICE_BLOCKS", "1", 1);
  };
  const auto body = [](Communicator& rank, const Gpu&) {
    const RankBuffer buffer(rank, kLong + 2);  // a multiple of the 6 ranks
    must(rank.run(buffer.call(), buffer.gpu.options()));
    must(buffer.has_sums(rank), "the sums");
    must(detail::calls_on_device(rank) == 1, "the call did not run in parts");
    must(rank.barrier());
  };
  EXPECT_TRUE(job.run(body, test::scaled(std::chrono::seconds(20)), begin));
}

// The process of rank 3 exits. No other rank waits for ever, or takes a wrong sum for the result. Rank 1, which is on
// its rail, and rank 2, which is on its machine, name it. But if one of them notices it late, it may learn first that
// another rank has already given the call up because of it, and names that rank.
TEST(MachinesOfProcesses, TheDeathOfARankEndsTheCallsOfAll) {
  // The number of ranks that have ended, and of those whose error names rank 3, in memory that all processes share.
  struct Counts {
    std::atomic<int> ended;
    std::atomic<int> named;
  };
  auto& counts = test::shared_object<Counts>();
  const auto body = [&](Communicator& rank, const Gpu&) {
    if (rank.rank() == 3) _exit(0);
    const RankBuffer buffer(rank);
    auto work = rank.start(buffer.call(), buffer.gpu.options());
    const Status status = work.ok() ? work->wait() : Status(work.error());
    must(!status.ok(), "no error");
    if (status.error().rank == 3) ++counts.named;
    const bool told = status.error().rank == 3 || status.error().code == ErrorCode::kAborted;
    must(rank.rank() == 0 || told, to_string(status.error()));
    buffer.gpu.synchronize();
    must(!rank.async_status().ok(), "async_status() does not report the error");
    ++counts.ended;
    must(test::eventually([&] { return counts.ended == 3; }), "another rank waits");
    must(counts.named > 0, "no error names rank 3");
  };
  Job job({0, 1, 2, 3});
  job.set_processes_of_a_machine(2);
  job.may_keep_memory();
  EXPECT_TRUE(job.run(body, test::scaled(std::chrono::seconds(10))));
}

}  // namespace
}  // namespace tutti::testing
