// Measures the reference for an all-reduce in the memory of this machine (tools/perf/reference.h). compare.py runs this
// program, which prints one JSON object per line to standard output:
//   reference_driver RANKS BYTES...
//
// `reference_us` is the reference that `tutti perf` prints. For two ranks and at most kLineBytes bytes, `line_us` is
// printed, too, and `reference_us` is then the smaller one of both times. A value that cannot be measured is left out.
// `line_us` is the time of a minimal exchange: two threads, each pinned to its own core, write a sequence number and
// the payload into their own cache line, and wait for the line of the other thread. Unlike the reference of `tutti
// perf`, this exchange needs no barrier.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/thread_group.h"
#include "tools/perf/reference.h"

namespace {

constexpr std::uint64_t kLineBytes = 8;
constexpr int kRepetitions = 7;
constexpr int kExchanges = 20'000;
constexpr int kSpinsBeforeYield = 20'000;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A cache line with one value, which is both the sequence number and the payload, so that one store publishes both.
// Each thread has two lines and uses them in turn, because a thread can be one exchange ahead of the other one.
struct alignas(64) CacheLine {
  std::atomic<std::uint64_t> value{0};
};

// Pins the calling thread to core number `thread` (from 0) of the cores that it may use. Returns false if that fails,
// for example because there are fewer cores.
bool pin_to_nth(int thread) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != thread) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
  }
  return false;
}

// The mean time of an exchange between two threads, in microseconds, in the fastest of all repetitions; nullopt if the
// threads cannot be pinned to two cores.
std::optional<double> measure_line_us() {
  std::optional<double> best_us;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    CacheLine lines[2][2];
    std::atomic<bool> pinned{true};
    double elapsed_us = 0;
    const auto exchange = [&](int me) {
      if (!pin_to_nth(me)) pinned = false;
      double start_us = 0;
      for (std::uint64_t i = 1; i <= kExchanges; ++i) {
        lines[me][i % 2].value.store(i, std::memory_order_release);
        for (int spins = 0; lines[1 - me][i % 2].value.load(std::memory_order_acquire) < i; ++spins) {
          if (spins > kSpinsBeforeYield) sched_yield();
        }
        if (i == 1) start_us = now_us();
      }
      if (me == 0) elapsed_us = (now_us() - start_us) / (kExchanges - 1);
    };
    tutti::ThreadGroup threads;
    for (const int me : {0, 1}) threads.add([&exchange, me] { exchange(me); });
    threads.open();
    threads.join();
    if (!pinned) return std::nullopt;
    best_us = std::min(best_us.value_or(elapsed_us), elapsed_us);
  }
  return best_us;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "reference_driver RANKS BYTES...\n";
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  if (ranks < 1 || ranks > 65535) {
    std::cerr << "reference_driver: " << argv[1] << " ranks cannot be\n";
    return 2;
  }
  tutti::tool::ReferenceMeter meter(ranks);
  for (int i = 2; i < argc; ++i) {
    const std::uint64_t bytes = std::strtoull(argv[i], nullptr, 10);
    nlohmann::json record = {{"ranks", ranks}, {"bytes", bytes}};
    std::optional<double> reference_us =
        meter.measure_us(tutti::DataType::kFloat32, tutti::ReduceOp::kSum, bytes / sizeof(float));
    if (bytes <= kLineBytes && ranks == 2) {
      if (const std::optional<double> line_us = measure_line_us()) {
        record["line_us"] = *line_us;
        reference_us = std::min(reference_us.value_or(*line_us), *line_us);
      }
    }
    if (reference_us) record["reference_us"] = *reference_us;
    std::cout << record.dump() << std::endl;
  }
  return 0;
}
