// Benchmark of the runtime: the time that it adds to the transfer of the data, in ns:
//   prepare_call  argument checks, selection of the algorithm, plan look-up, creation of an operation
//   plan_step     one step of a ring all-reduce, with chunks of one element. One thread executes both ranks in
//                 turn, so no cache line moves between cores and no rank waits
//   short_call    an all-reduce of 8 bytes through mailboxes: two threads, each on its own core
//   hand_over_*   the one-way time to wake a waiting rank: by a cache line between two cores; by sched_yield between
//                 two threads on one core; by the doorbell (futex) of a rank that sleeps on another core
#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "base/clock.h"
#include "communicator/communicator_impl.h"
#include "executor/plan_execution.h"
#include "transports/shm/shm_transport.h"

namespace tutti {
namespace {

constexpr std::uint32_t kRanks = 2;

std::vector<std::unique_ptr<ShmTransport>> transports() {
  const auto relay = std::make_shared<InProcessRelay>();  // shared by the exchanges of both ranks
  const SegmentShape shape{.ranks = kRanks};
  SteadyClock clock;
  std::vector<std::shared_ptr<SegmentExchange>> exchanges;
  std::vector<OwnSegment> own;
  std::vector<std::uint32_t> ids;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    exchanges.push_back(std::make_shared<InProcessExchange>(relay, rank));
    own.push_back(OwnSegment::create(rank, shape, exchanges[rank]).value());
    ids.push_back(own.back().id());
  }
  std::vector<std::unique_ptr<ShmTransport>> made;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto offers = collect_offers(*exchanges[rank], rank, ids, own[rank].segment().mapping(), clock,
                                       clock.now_ns() + 5'000'000'000);
    made.push_back(ShmTransport::create(rank, shape, std::move(own[rank]), offers.value(), exchanges[rank]).value());
  }
  return made;
}

void run_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

void prepare_call(benchmark::State& state) {
  auto ends = transports();
  Environment world{.clock = std::make_shared<SteadyClock>(),
                    .waiter = std::make_unique<AdaptiveWaiter>(WaitLimits{}),
                    .transport = std::move(ends[0]),
                    .plan_cache = std::make_shared<VerifiedPlanCache>(true)};
  detail::CommunicatorImpl communicator({.rank = 0, .ranks = kRanks}, std::move(world), std::chrono::seconds(1));
  std::vector<float> data(static_cast<std::size_t>(state.range(0)) / sizeof(float));
  const CollectiveCall call{
      .kind = CollectiveKind::kAllReduce, .input = data.data(), .output = data.data(), .count = data.size()};
  for (auto _ : state) {
    const std::scoped_lock lock(communicator.submission_mutex());
    auto operation = communicator.operations().prepare(call, {});
    if (!operation) return state.SkipWithError(operation.error().message.c_str());
    benchmark::DoNotOptimize(operation);
  }
}
BENCHMARK(prepare_call)->Arg(8)->Arg(1 << 20);

void plan_step(benchmark::State& state) {
  auto ends = transports();
  const Generator generator = *find_generator({.ranks = kRanks}, Algorithm::kRing);
  std::vector<std::unique_ptr<Connections>> connections;
  std::vector<std::unique_ptr<BoundPlan>> plans;
  std::vector<std::unique_ptr<PlanExecution>> ranks;
  std::vector<float> data(2 * kRanks, 1.0F);
  std::vector<Call> calls(kRanks);
  std::size_t steps = 0;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    connections.push_back(std::make_unique<Connections>(*ends[rank]));
    plans.push_back(bind(generator, rank, *ends[rank]).value());
    if (!open(*plans[rank], *connections[rank]).ok()) return state.SkipWithError("no connection");
    ranks.push_back(std::make_unique<PlanExecution>(*plans[rank], *ends[rank]));
    for (const Channel& channel : generator.build(generator.shape, rank).channels) steps += channel.steps.size();
    calls[rank].lengths.count = kRanks;
    calls[rank].input = calls[rank].output = reinterpret_cast<std::byte*>(data.data() + rank * kRanks);
    calls[rank].in_place = true;
    calls[rank].tag.tile_bytes = static_cast<std::uint32_t>(ends[rank]->slot_bytes());
  }
  std::uint64_t sequence = 0;
  for (auto _ : state) {
    ++sequence;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      calls[rank].tag.sequence = sequence;
      ranks[rank]->start(calls[rank]);
    }
    while (!ranks[0]->done() || !ranks[1]->done()) {
      for (auto& rank : ranks) rank->progress();
    }
  }
  state.counters["per_step"] = benchmark::Counter(
      static_cast<double>(steps), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(plan_step);

void short_call(benchmark::State& state) {
  auto ranks = Communicator::create_all(kRanks);
  if (!ranks) return state.SkipWithError(ranks.error().message.c_str());
  const auto sum = [&](std::size_t rank, float& more) {
    float data[2] = {more, 0.0F};
    const Status status = (*ranks)[rank]->all_reduce(data, data, 2, DataType::kFloat32, ReduceOp::kSum);
    more = data[0];
    return status.ok();
  };
  std::thread other([&] {
    run_on(1);
    float more = 1.0F;
    while (more > 0.0F) {
      float sent = 0.0F;
      if (!sum(1, sent)) break;
      more = sent;
    }
  });
  run_on(0);
  for (auto _ : state) {
    float more = 1.0F;
    sum(0, more);
  }
  float last = 0.0F;
  sum(0, last);
  other.join();
}
BENCHMARK(short_call)->UseRealTime();

// Two threads that answer each other once per iteration. Thread 0 is the benchmark's thread. `wait` has two tasks.
// Thread 0 calls wait(0, ready), and thread 1 calls wait(1, ready), to wait until `ready()` is true. Thread 0 calls
// wait(2, ready), and thread 1 calls wait(3, ready), after it has stored a new number, to wake the other thread.
template <class Wait>
void ping_pong(benchmark::State& state, int other_core, const Wait& wait) {
  struct alignas(128) Flag {
    std::atomic<std::uint64_t> number{0};
  };
  Flag flags[2];
  constexpr std::uint64_t kLast = ~std::uint64_t{0};
  std::thread other([&] {
    run_on(other_core);
    for (std::uint64_t number = 1;; ++number) {
      wait(1, [&] { return flags[0].number.load(std::memory_order_seq_cst) >= number; });
      if (flags[0].number.load() == kLast) return;
      flags[1].number.store(number, std::memory_order_seq_cst);
      wait(3, [] { return true; });
    }
  });
  run_on(0);
  std::uint64_t number = 0;
  for (auto _ : state) {
    flags[0].number.store(++number, std::memory_order_seq_cst);
    wait(2, [] { return true; });
    wait(0, [&] { return flags[1].number.load(std::memory_order_seq_cst) >= number; });
  }
  flags[0].number.store(kLast);
  wait(2, [] { return true; });
  other.join();
  state.counters["one_way"] =
      benchmark::Counter(2, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void hand_over_line(benchmark::State& state) {
  ping_pong(state, 1, [](int, const auto& ready) {
    while (!ready()) relax();
  });
}
BENCHMARK(hand_over_line)->UseRealTime();

void hand_over_yield(benchmark::State& state) {
  ping_pong(state, 0, [](int, const auto& ready) {
    while (!ready()) sched_yield();
  });
}
BENCHMARK(hand_over_yield)->UseRealTime();

// If `caller` is 0 or 1, it is the thread that waits. If `caller` is 2 (thread 0) or 3 (thread 1), that thread has
// stored a number, and rings the doorbell of the other thread.
void hand_over_doorbell(benchmark::State& state) {
  auto ends = transports();
  ping_pong(state, 1, [&](int caller, const auto& ready) {
    if (caller >= 2) return ends[static_cast<std::size_t>(3 - caller)]->doorbell().ring();
    Doorbell& bell = ends[static_cast<std::size_t>(caller)]->doorbell();
    while (!ready()) {
      bell.arm();
      if (ready()) return bell.disarm();
      bell.sleep(1'000'000'000);
    }
  });
}
BENCHMARK(hand_over_doorbell)->UseRealTime();

}  // namespace
}  // namespace tutti
