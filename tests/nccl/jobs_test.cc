// Tests of jobs of communicators (run_jobs()), and of calls in progress, in a program whose allocations can fail.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "communicator/work.h"
#include "nccl/api.h"
#include "nccl/comm.h"
#include "support/failing_allocations.h"
#include "tests/support/patience.h"

namespace tutti::nccl {
namespace {

// Makes communicators, and for each of them a job that makes it ready.
std::vector<Job> set_ups(std::int32_t count, bool blocking) {
  Settings settings;
  settings.blocking = blocking;
  std::vector<Job> jobs;
  for (std::int32_t rank = 0; rank < count; ++rank) {
    const auto comm = std::make_shared<Comm>(rank, count, RankDevice(), settings);
    jobs.push_back({.comm = comm, .parent = nullptr, .body = [comm] {
                      const std::scoped_lock lock(comm->mutex);
                      comm->phase = Phase::kReady;
                      return ncclSuccess;
                    }});
  }
  return jobs;
}

bool has_job(Comm& comm) {
  const std::scoped_lock lock(comm.mutex);
  return comm.jobs_running > 0;
}

// Runs `call`, in which the allocation with this number fails (1: the first one). Returns whether there was one.
bool with_failed_allocation(std::int64_t number, const std::function<void()>& call) {
  test::failing_allocations::set_counted(0);
  test::failing_allocations::fail_after(number, false);
  call();
  const bool failed = test::failing_allocations::counted() >= number;
  test::failing_allocations::fail_after(0, false);
  return failed;
}

// Fails each allocation of run_jobs() once. The process must survive that, and each communicator must be ready or have
// failed, without a job that seems to be running.
void expect_jobs_end(bool blocking) {
  constexpr std::int32_t kComms = 3;
  std::int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    const std::vector<Job> jobs = set_ups(kComms, blocking);
    std::vector<Job> copy = jobs;
    ncclResult_t result = ncclSuccess;
    failed = with_failed_allocation(failures + 1, [&] { result = guarded([&] { return run_jobs(std::move(copy)); }); });
    int ready = 0;
    for (const Job& job : jobs) {
      EXPECT_TRUE(test::eventually([&job] { return !has_job(*job.comm); })) << "allocation " << failures + 1;
      const std::scoped_lock lock(job.comm->mutex);
      EXPECT_NE(job.comm->phase, Phase::kCreating) << "allocation " << failures + 1;
      EXPECT_EQ(job.comm->failure.has_value(), job.comm->phase == Phase::kFailed) << "allocation " << failures + 1;
      ready += job.comm->phase == Phase::kReady ? 1 : 0;
    }
    if (result == ncclSuccess || result == ncclInProgress) {
      EXPECT_EQ(ready, kComms) << "allocation " << failures + 1;
    }
    if (!failed) {
      EXPECT_EQ(result, blocking ? ncclSuccess : ncclInProgress);
    }
  }
  EXPECT_GT(failures, kComms);
}

TEST(NcclJobs, OfBlockingCommunicatorsEndWithoutMemory) { expect_jobs_end(true); }

TEST(NcclJobs, OfNonblockingCommunicatorsEndWithoutMemory) { expect_jobs_end(false); }

// The body of a set-up throws, so it stores no failure itself.
TEST(NcclJobs, ASetUpThatThrowsHasFailed) {
  std::vector<Job> jobs = set_ups(1, false);
  jobs[0].body = []() -> ncclResult_t { throw std::bad_alloc(); };
  EXPECT_EQ(run_jobs(jobs), ncclInProgress);
  EXPECT_TRUE(test::eventually([&] { return !has_job(*jobs[0].comm); }));
  EXPECT_EQ(jobs[0].comm->state(), ncclSystemError);
}

// A split in which this rank passes NCCL_SPLIT_NOCOLOR makes no communicator. ncclCommAbort() may come before its end.
TEST(NcclJobs, ASplitThatMakesNothingMayBeAborted) {
  Comm comm(-1, 0, RankDevice(), Settings());
  comm.abort();
  EXPECT_EQ(comm.take(std::unique_ptr<Communicator>()), ncclSuccess);
}

// Fails each allocation of a call in a group once. The group must then fail as a whole: without this call, this rank
// would make other calls than its peers.
TEST(NcclGroup, ACallWithoutMemoryFailsItsGroup) {
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  std::int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    float value = 1;
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ncclResult_t called = ncclSuccess;
    failed = with_failed_allocation(
        failures + 1, [&] { called = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr); });
    EXPECT_EQ(ncclGroupEnd(), called) << "allocation " << failures + 1;
    EXPECT_EQ(called, failed ? ncclSystemError : ncclSuccess) << "allocation " << failures + 1;
  }
  EXPECT_GT(failures, 1);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// ncclCommGetAsyncError() must not block. So it must not use the engine of a call, as Work::test() does: the engine
// opens connections and, after an error, waits for peers.
TEST(NcclJobs, ACallInProgressIsAskedForWithoutItsEngine) {
  const auto operation = std::make_shared<Operation>();
  const detail::WorkImpl work({{.engine = nullptr, .operation = operation}});
  EXPECT_FALSE(work.has_ended());
  operation->done = true;
  EXPECT_TRUE(work.has_ended());
}

}  // namespace
}  // namespace tutti::nccl
