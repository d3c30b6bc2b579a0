// Tests of long all_reduce calls on GPUs of several machines (AcrossMachines), on the fake driver. The machines are
// groups of ranks of this process that share no memory with other groups, so they send to each other by TCP.
#include <algorithm>
#include <array>
#include <cstdint>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/native/device_calls.h"
#include "support/failing_allocations.h"
#include "tests/device/calls/machines_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

// Creates ranks on `machines` machines, rank i on GPU i.
Communicators ranks_on_machines(std::int32_t ranks, std::int32_t machines, CommunicatorOptions options = {}) {
  setenv("FAKE_CUDA_DEVICES", "6", 1);
  driver();
  if (options.devices.empty()) {
    options.devices.resize(static_cast<std::size_t>(ranks));
    std::iota(options.devices.begin(), options.devices.end(), 0);
  }
  auto made = Communicator::create_all(ranks, options, machines);
  EXPECT_TRUE(made.ok()) << error_of(made.ok() ? Status() : Status(made.error()));
  return *std::move(made);
}

// The sum of all ranks' values, in place. The parts run on the GPU, unless `parts` is false.
void expect_sum(Communicator& rank, std::size_t count, bool parts = true) {
  const RankBuffer buffer(rank, count);
  const std::uint64_t before = detail::calls_on_device(rank);
  EXPECT_EQ(error_of(rank.run(buffer.call(), buffer.gpu.options())), "");
  EXPECT_TRUE(buffer.has_sums(rank)) << rank.rank() << ", " << count;
  EXPECT_EQ(detail::calls_on_device(rank) - before, parts ? 1U : 0U) << count;
  EXPECT_EQ(error_of(rank.async_status()), "");
}

TEST(AcrossMachines, ALongCallRunsInPartsOnTheGpus) {
  for (const auto& [ranks, machines] : {std::pair(4, 2), std::pair(6, 2), std::pair(6, 3)}) {
    Communicators all = ranks_on_machines(ranks, machines);
    on_every_rank(all, [](Communicator& rank) {
      EXPECT_EQ(rank.auto_algorithm(CollectiveKind::kAllReduce, kLong, DataType::kInt32, true),
                Algorithm::kHierarchical);
      // With the second and the third count the shares differ in length.
      for (const std::size_t count : {kLong, kLong + 1, kLong * 3 + 5}) expect_sum(rank, count);
    });
  }
}

// Each share of 10 MB is longer than a segment.
TEST(AcrossMachines, ALongShareGivesTheRightSum) {
  Communicators all = ranks_on_machines(4, 2);
  on_every_rank(all, [](Communicator& rank) { expect_sum(rank, 5'000'001); });
}

// Values for which every order of the operations gives the same bits: integers, and floating-point numbers with few
// digits.
template <class T>
void expect_results(Communicator& rank, DataType type, ReduceOp op) {
  const std::size_t count = 256 * 1024 / sizeof(T) + 3;
  const auto input = [&](std::int32_t r, std::size_t i) {
    return static_cast<T>(op == ReduceOp::kProd ? 1 + (i + static_cast<std::size_t>(r)) % 3 : (i * 13 + 5 * r) % 23);
  };
  std::vector<T> mine(count);
  std::vector<T> wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    mine[i] = input(rank.rank(), i);
    T& all = wanted[i];
    all = input(0, i);
    for (std::int32_t r = 1; r < rank.size(); ++r) {
      const T next = input(r, i);
      if (op == ReduceOp::kSum) all = static_cast<T>(all + next);
      if (op == ReduceOp::kProd) all = static_cast<T>(all * next);
      if (op == ReduceOp::kMin) all = std::min(all, next);
      if (op == ReduceOp::kMax) all = std::max(all, next);
    }
  }
  const Gpu gpu(rank.rank());
  const cuda::DeviceMemory in = gpu.allocate(count * sizeof(T));
  const cuda::DeviceMemory out = gpu.allocate(count * sizeof(T));
  gpu.put(in, bytes_of(mine));
  const std::uint64_t before = detail::calls_on_device(rank);
  EXPECT_EQ(error_of(rank.all_reduce(pointer(in), pointer(out), count, type, op, gpu.options())), "");
  EXPECT_TRUE(gpu.get(out) == bytes_of(wanted)) << to_string(type) << " " << to_string(op);
  EXPECT_TRUE(gpu.get(in) == bytes_of(mine)) << "the input has changed";
  EXPECT_EQ(detail::calls_on_device(rank), before + 1);
}

TEST(AcrossMachines, EveryOperationGivesItsResultOutOfPlace) {
  Communicators all = ranks_on_machines(4, 2);
  on_every_rank(all, [](Communicator& rank) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      expect_results<std::uint8_t>(rank, DataType::kUint8, op);
      expect_results<std::int64_t>(rank, DataType::kInt64, op);
      expect_results<float>(rank, DataType::kFloat32, op);
      expect_results<double>(rank, DataType::kFloat64, op);
    }
  });
}

// The result does not depend on the rank, for operands whose sum depends on the order of the additions.
TEST(AcrossMachines, AllRanksGetTheSameBits) {
  Communicators all = ranks_on_machines(6, 3);
  std::vector<Bytes> results(6);
  on_every_rank(all, [&](Communicator& rank) {
    std::vector<float> values(kLong);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1.0F / static_cast<float>(1 + i * static_cast<std::size_t>(3 + rank.rank()));
    const RankBuffer buffer(rank);
    for (int round = 0; round < 2; ++round) {
      buffer.gpu.put(buffer.memory, bytes_of(values));
      EXPECT_EQ(error_of(rank.all_reduce(pointer(buffer.memory), pointer(buffer.memory), kLong, DataType::kFloat32,
                                         ReduceOp::kSum, buffer.gpu.options())),
                "");
      Bytes& result = results[static_cast<std::size_t>(rank.rank())];
      const Bytes got = buffer.gpu.get(buffer.memory);
      EXPECT_TRUE(round == 0 || got == result) << "the second call gives other bits than the first";
      result = got;
    }
  });
  for (const Bytes& result : results) EXPECT_TRUE(result == results.front());
}

TEST(AcrossMachines, OtherCallsRunAsAWholeOnTheHost) {
  Communicators all = ranks_on_machines(4, 2);
  on_every_rank(all, [](Communicator& rank) {
    expect_sum(rank, kLong - 1, false);
    const RankBuffer buffer(rank);
    const std::uint64_t before = detail::calls_on_device(rank);
    void* const memory = pointer(buffer.memory);
    EXPECT_EQ(error_of(rank.run(buffer.call(), buffer.gpu.options(Algorithm::kRing))), "");
    EXPECT_TRUE(buffer.has_sums(rank));
    EXPECT_EQ(error_of(rank.broadcast(memory, memory, kLong, DataType::kInt32, 1, buffer.gpu.options())), "");
    EXPECT_TRUE(buffer.has_sums(rank));
    EXPECT_EQ(error_of(rank.all_reduce(memory, memory, kLong, DataType::kInt32, ReduceOp::kAvg, buffer.gpu.options())),
              "");
    EXPECT_TRUE(buffer.has_sums(rank)) << "the average of equal values";
    EXPECT_EQ(detail::calls_on_device(rank), before);
    std::vector<std::int32_t> on_host(kLong, 1);
    EXPECT_EQ(error_of(rank.all_reduce(on_host.data(), on_host.data(), kLong, DataType::kInt32, ReduceOp::kSum)), "");
    EXPECT_EQ(on_host, std::vector<std::int32_t>(kLong, 4));
  });
}

// Without the same number of ranks on each machine, or with two ranks on one GPU, there are no parts.
TEST(AcrossMachines, OtherPlacementsRunAsAWholeOnTheHost) {
  const auto expect_whole = [](Communicators all) {
    on_every_rank(all, [](Communicator& rank) {
      const Gpu gpu(0);
      EXPECT_EQ(rank.auto_algorithm(CollectiveKind::kAllReduce, kLong, DataType::kInt32, true),
                rank.auto_algorithm(CollectiveKind::kAllReduce, kLong, DataType::kInt32, false));
    });
  };
  expect_whole(ranks_on_machines(3, 2));
  expect_whole(ranks_on_machines(2, 2));
  CommunicatorOptions options;
  options.devices = {0, 1, 0, 1};
  expect_whole(ranks_on_machines(4, 2, options));
  options.devices = {0, 1, 2, CommunicatorOptions::kNoDevice};
  expect_whole(ranks_on_machines(4, 2, options));
  options.devices = {};
  options.device_calls = "staged";
  expect_whole(ranks_on_machines(4, 2, options));
}

TEST(AcrossMachines, CommunicatorsMadeFromOneRunInPartsToo) {
  Communicators all = ranks_on_machines(6, 2);
  on_every_rank(all, [](Communicator& rank) {
    auto copy = rank.duplicate();
    ASSERT_TRUE(copy.ok()) << to_string(copy.error());
    // The first two ranks of each machine; the others make communicators of one machine, or none.
    const bool first = rank.rank() % 3 < 2;
    auto part = rank.split(first ? 0 : rank.rank() == 2 ? 1 : Communicator::kNoColour, 0);
    ASSERT_TRUE(part.ok()) << to_string(part.error());
    expect_sum(**copy, kLong);
    EXPECT_EQ(*part != nullptr && (*part)->auto_algorithm(CollectiveKind::kAllReduce, kLong, DataType::kInt32, true) ==
                                      Algorithm::kHierarchical,
              first);
    if (!first) return;
    const std::int32_t mine = rank.rank();  // the GPU of a rank is that of the first communicator
    const Gpu gpu(mine);
    const cuda::DeviceMemory memory = gpu.allocate(kLong * sizeof(std::int32_t));
    gpu.put(memory, inputs((*part)->rank(), kLong));
    EXPECT_EQ(error_of((*part)->all_reduce(pointer(memory), pointer(memory), kLong, DataType::kInt32, ReduceOp::kSum,
                                           gpu.options())),
              "");
    EXPECT_TRUE(gpu.get(memory) == sums(4, kLong));
    EXPECT_EQ(detail::calls_on_device(**part), 1U);
  });
}

TEST(AcrossMachines, AGroupOfOneThreadMakesTheCallsOfAllRanks) {
  Communicators all = ranks_on_machines(4, 2);
  std::vector<std::unique_ptr<RankBuffer>> buffers;  // two for each rank
  Group group;
  for (const auto& rank : all) {
    for (const std::size_t count : {kLong, 2 * kLong + 1}) {
      buffers.push_back(std::make_unique<RankBuffer>(*rank, count));
      const RankBuffer& first = *buffers[buffers.size() - (count == kLong ? 1 : 2)];
      EXPECT_EQ(error_of(group.add(*rank, buffers.back()->call(), first.gpu.options())), "");
    }
  }
  EXPECT_EQ(error_of(group.run()), "");
  while (!buffers.empty()) {  // from the last one on, because the contexts of the GPUs are a stack
    const std::size_t rank = (buffers.size() - 1) / 2;
    buffers[2 * rank]->gpu.synchronize();
    EXPECT_TRUE(buffers.back()->has_sums(*all[rank])) << rank;
    buffers.pop_back();
  }
}

TEST(AcrossMachines, AGraphCanBeReplayed) {
  Communicators all = ranks_on_machines(4, 2);
  on_every_rank(all, [](Communicator& rank) {
    const RankBuffer buffer(rank);
    buffer.gpu.put(buffer.memory, Bytes(kLong * sizeof(std::int32_t)));  // a call during the capture would leave zeros
    const test::CapturedGraph graph(driver(), buffer.gpu.stream(), [&] {
      EXPECT_EQ(error_of(rank.run(buffer.call(), buffer.gpu.options())), "");
      EXPECT_EQ(error_of(rank.run(buffer.call(), buffer.gpu.options())), "");
    });
    std::vector<std::int32_t> ones(kLong, 1);
    buffer.gpu.put(buffer.memory, bytes_of(ones));
    for (int i = 0; i < 3; ++i) graph.launch();
    EXPECT_TRUE(buffer.gpu.get(buffer.memory) == bytes_of(std::vector<std::int32_t>(kLong, 4096))) << "4 to the 6th";
    EXPECT_EQ(error_of(rank.async_status()), "");
  });
}

TEST(AcrossMachines, SuspendFreesTheMemoryAndResumeBringsItBack) {
  Communicators all = ranks_on_machines(4, 2);
  on_every_rank(all, [](Communicator& rank) {
    expect_sum(rank, kLong);
    EXPECT_GT(rank.device_memory_use(), 0U);
    EXPECT_EQ(error_of(rank.suspend()), "");
    EXPECT_EQ(rank.device_memory_use(), 0U);
    expect_sum(rank, kLong, false);
    EXPECT_EQ(error_of(rank.resume()), "");
    expect_sum(rank, kLong);
    EXPECT_EQ(error_of(rank.finalize()), "");
  });
}

// The driver refuses memory to one rank in resume(). All ranks, also those of the other machine, remain suspended.
TEST(AcrossMachines, AResumeThatFailsOnOneMachineFailsOnAll) {
  Communicators all = ranks_on_machines(4, 2);
  std::latch suspended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    EXPECT_EQ(error_of(rank.suspend()), "");
    if (rank.rank() == 3) small_devices().fail_here("cuMemAlloc", cuda::CUresult::kOutOfMemory);
    suspended.arrive_and_wait();
    EXPECT_FALSE(rank.resume().ok());
    if (rank.rank() == 3) small_devices().forget_faults();
    expect_sum(rank, kLong, false);
    EXPECT_EQ(error_of(rank.resume()), "");
    expect_sum(rank, kLong);
  });
}

// Starts a call on every rank but `missing`, and waits for its end. A rank that reports success must have the sums.
// Returns the errors. No rank frees its memory before all have ended, because kernels of other GPUs may still read it.
std::vector<std::optional<Error>> run_to_the_end(Communicators& all, std::int32_t missing = -1) {
  std::vector<std::optional<Error>> errors(all.size());
  std::latch ended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    if (rank.rank() == missing) return ended.count_down();
    const RankBuffer buffer(rank);
    auto& error = errors[static_cast<std::size_t>(rank.rank())];
    auto work = rank.start(buffer.call(), buffer.gpu.options());
    if (!work) error = work.error();
    if (work.ok()) {
      const Status status = work->wait();
      if (!status.ok()) error = status.error();
    }
    buffer.gpu.synchronize();
    EXPECT_TRUE(error || buffer.has_sums(rank)) << "rank " << rank.rank() << " reports success";
    // The first error stays, and says that the communicator is broken.
    const bool breaks = error && error->scope >= ErrorScope::kCommunicator;
    EXPECT_EQ(breaks ? error_of(rank.async_status()) : "", breaks ? to_string(*error) : "") << rank.rank();
    ended.arrive_and_wait();
  });
  return errors;
}

// A rank that does not make the call is named by the ranks of its machine and of its rail. The others name a rank that
// waits for it. (They are neither on its machine nor on its rail, so they never wait for it themselves.)
TEST(AcrossMachines, ARankThatDoesNotMakeTheCallIsNamed) {
  CommunicatorOptions options;
  options.timeout = test::scaled(std::chrono::milliseconds(1500));
  Communicators all = ranks_on_machines(4, 2, options);
  const auto errors = run_to_the_end(all, 3);
  for (const std::int32_t rank : {0, 1, 2}) {
    const auto& error = errors[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(error) << rank;
    EXPECT_EQ(error->scope, ErrorScope::kCommunicator) << rank << ": " << to_string(*error);
    EXPECT_GE(error->rank, rank == 0 ? 1 : 3) << rank << ": " << to_string(*error);
  }
}

// Rank 3 does not make the call, and only rank 2, on the same machine, has a short timeout. Its failure reaches rank 0
// by their rail, rank 1 by its machine, and so ends the part between rank 1 and rank 3, which has already begun.
TEST(AcrossMachines, TheFailureOfOneRankEndsThePartsOfTheOthersSoon) {
  CommunicatorOptions options;
  options.timeout = 10 * test::patience();
  Communicators all = ranks_on_machines(4, 2, options);
  std::latch ended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    if (rank.rank() == 3) return ended.arrive_and_wait();
    const RankBuffer buffer(rank);
    CallOptions call = buffer.gpu.options();
    if (rank.rank() == 2) call.timeout = test::scaled(std::chrono::milliseconds(500));
    auto work = rank.start(buffer.call(), call);
    EXPECT_TRUE(work.ok() && test::eventually([&] { return work->test(); })) << rank.rank();
    const Status status = work->wait();
    EXPECT_FALSE(status.ok());
    const std::int32_t culprit = status.ok() ? -1 : status.error().rank;
    EXPECT_TRUE(rank.rank() != 0 || culprit == 2) << error_of(status);
    EXPECT_TRUE(rank.rank() != 2 || culprit == 3) << error_of(status);
    buffer.gpu.synchronize();
    ended.arrive_and_wait();
  });
}

TEST(AcrossMachines, AnAbortEndsTheCallsOfAllRanks) {
  Communicators all = ranks_on_machines(4, 2);
  std::latch waiting(std::ssize(all));
  std::latch ended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    const RankBuffer buffer(rank);
    if (rank.rank() == 1) {
      waiting.arrive_and_wait();
      rank.abort();
    } else {
      auto work = rank.start(buffer.call(), buffer.gpu.options());
      waiting.count_down();
      EXPECT_TRUE(work.ok() && !work->wait().ok());
      buffer.gpu.synchronize();
      EXPECT_FALSE(rank.run(buffer.call(), buffer.gpu.options()).ok()) << "the communicator is broken";
    }
    ended.arrive_and_wait();
  });
}

// Rank 1 calls abort() between two replays. No rank of the second replay may report success with a wrong sum. Kernels
// in a graph notice the abort of another rank only at the timeout.
TEST(AcrossMachines, AnAbortBetweenReplaysIsReported) {
  CommunicatorOptions options;
  options.timeout = test::scaled(std::chrono::milliseconds(1500));
  Communicators all = ranks_on_machines(4, 2, options);
  std::latch aborted(std::ssize(all));
  std::latch ended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    const RankBuffer buffer(rank);
    {
      const test::CapturedGraph graph(driver(), buffer.gpu.stream(),
                                      [&] { EXPECT_EQ(error_of(rank.run(buffer.call(), buffer.gpu.options())), ""); });
      graph.launch();
      EXPECT_TRUE(buffer.has_sums(rank));
      buffer.gpu.put(buffer.memory, inputs(rank.rank(), kLong));
      if (rank.rank() == 1) rank.abort();
      aborted.arrive_and_wait();
      graph.launch();
      const bool right = buffer.has_sums(rank);
      EXPECT_TRUE(right || test::eventually([&] { return !rank.async_status().ok(); })) << rank.rank();
    }
    ended.arrive_and_wait();
  });
}

// Rank 1 destroys its communicator while its stream has not come to the call.
TEST(AcrossMachines, ACallEndsWithItsCommunicator) {
  Communicators all = ranks_on_machines(4, 2);
  std::latch ended(std::ssize(all));
  std::vector<std::thread> threads;
  for (std::unique_ptr<Communicator>& owned : all) {
    threads.emplace_back([&] {
      Communicator& rank = *owned;
      const std::int32_t number = rank.rank();
      const RankBuffer buffer(rank);
      {
        std::optional<test::BlockedStream> blocked;
        if (number == 1) blocked.emplace(driver(), buffer.gpu.stream());
        auto work = rank.start(buffer.call(), buffer.gpu.options());
        ASSERT_TRUE(work.ok()) << to_string(work.error());
        if (number == 1) {
          owned.reset();
          blocked->release();
        }
        const Status status = work->wait();
        EXPECT_FALSE(status.ok()) << number;
      }
      buffer.gpu.synchronize();
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One call of the driver fails on one rank: whichever part it belongs to, every rank gets an error or the right result.
TEST(AcrossMachines, AFailureOfTheDriverEndsTheCallOfAllRanks) {
  CommunicatorOptions options;
  options.timeout = test::scaled(std::chrono::seconds(3));
  for (const auto& [function, most] : {std::pair("cuLaunchKernel", 8U), std::pair("cuMemcpyDtoHAsync", 4U),
                                       std::pair("cuStreamWaitValue32", 4U), std::pair("cuLaunchHostFunc", 8U)}) {
    for (unsigned nth = 1; nth <= most; ++nth) {
      Communicators all = ranks_on_machines(4, 2, options);
      on_every_rank(all, [](Communicator& rank) { expect_sum(rank, kLong); });
      small_devices().fail(function, nth, cuda::CUresult::kLaunchFailed);
      const auto errors = run_to_the_end(all);
      small_devices().forget_faults();
      EXPECT_TRUE(std::ranges::any_of(errors, [](const auto& error) { return error.has_value(); }))
          << function << ", call " << nth << ": no rank has an error";
    }
  }
}

// Each allocation that the call makes in the thread of rank 1 fails once: nothing hangs, and every rank gets an error
// or the right result.
TEST(AcrossMachines, AFailedAllocationEndsTheCallOfAllRanks) {
  small_devices().watch_threads(&test::failing_allocations::exempt_this_thread);
  CommunicatorOptions options;
  options.timeout = test::patience();
  bool reached = true;
  int failures = 0;
  for (std::int64_t n = 1; reached; ++n) {
    Communicators all = ranks_on_machines(4, 2, options);
    if (n % 2 == 0) on_every_rank(all, [](Communicator& rank) { expect_sum(rank, kLong); });
    std::latch ended(std::ssize(all));
    on_every_rank(all, [&](Communicator& rank) {
      const RankBuffer buffer(rank);
      const bool fails = rank.rank() == 1;
      if (fails) test::failing_allocations::set_counted(0);
      if (fails) test::failing_allocations::fail_after(n, false);
      auto work = rank.start(buffer.call(), buffer.gpu.options());
      if (fails) test::failing_allocations::fail_after(0, false);
      if (fails) reached = test::failing_allocations::counted() >= n;
      const bool good = work.ok() && work->wait().ok();
      buffer.gpu.synchronize();
      EXPECT_TRUE(!good || buffer.has_sums(rank)) << "rank " << rank.rank() << " reports success, allocation " << n;
      if (fails && reached) failures += good ? 0 : 1;
      ended.arrive_and_wait();
    });
  }
  EXPECT_GT(failures, 30);
}

// The ranks of a rail pass different counts. No rank may take a wrong sum for the result.
TEST(AcrossMachines, MachinesWithDifferentCountsGetErrors) {
  CommunicatorOptions options;
  options.timeout = test::scaled(std::chrono::seconds(3));
  Communicators all = ranks_on_machines(4, 2, options);
  std::latch ended(std::ssize(all));
  on_every_rank(all, [&](Communicator& rank) {
    const RankBuffer buffer(rank, rank.rank() < 2 ? kLong : kLong + 64);
    auto work = rank.start(buffer.call(), buffer.gpu.options());
    EXPECT_TRUE(!work.ok() || !work->wait().ok());
    buffer.gpu.synchronize();
    EXPECT_FALSE(rank.async_status().ok());
    ended.arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::testing
