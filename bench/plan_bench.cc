// Benchmark of plans: building, verifying and tiling. The times are not compared with a limit of the machine, because
// neither its memory bandwidth nor its network bounds them. Counters:
//   steps/s    plan steps that are built, or steps that the verifier runs (it runs each plan step 4 times, for 2 tiles
//              in each of 2 calls)
//   extents/s  chunks that are converted to offsets
#include <benchmark/benchmark.h>

#include <cstdint>

#include "algorithms/algorithms.h"
#include "plan/plan.h"
#include "plan/tiling.h"
#include "plan/verify/verify.h"

namespace {

using tutti::Algorithm;

tutti::Generator generator_of(Algorithm algorithm, const benchmark::State& state) {
  return *tutti::find_generator({.ranks = static_cast<std::uint32_t>(state.range(0))}, algorithm);
}

std::uint64_t steps_of(const tutti::Plan& plan) {
  std::uint64_t steps = 0;
  for (const tutti::RankPlan& rank : plan.ranks) {
    for (const tutti::Channel& channel : rank.channels) steps += channel.steps.size();
  }
  return steps;
}

void set_rate(benchmark::State& state, const char* name, std::uint64_t per_iteration) {
  state.counters[name] =
      benchmark::Counter(static_cast<double>(per_iteration), benchmark::Counter::kIsIterationInvariantRate);
}

void build(benchmark::State& state, Algorithm algorithm) {
  const tutti::Generator generator = generator_of(algorithm, state);
  for (auto _ : state) benchmark::DoNotOptimize(tutti::build_plan(generator));
  set_rate(state, "steps/s", steps_of(tutti::build_plan(generator)));
}

// Builds only the plan of one rank, as a rank does for the first call of a shape.
void build_one_rank(benchmark::State& state, Algorithm algorithm) {
  const tutti::Generator generator = generator_of(algorithm, state);
  for (auto _ : state) benchmark::DoNotOptimize(generator.build(generator.shape, 1));
}

void verify(benchmark::State& state, Algorithm algorithm, const tutti::VerifyOptions& options) {
  const tutti::Plan plan = tutti::build_plan(generator_of(algorithm, state));
  std::uint64_t steps = 0;
  for (auto _ : state) {
    const auto report = tutti::verify(plan, options);
    if (!report.ok()) {
      state.SkipWithError(report.error().message.c_str());
      return;
    }
    steps = report->steps;
  }
  set_rate(state, "steps/s", steps);
}

void tile(benchmark::State& state) {
  const auto chunks = static_cast<std::uint32_t>(state.range(0));
  const tutti::Tiling tiling(64u << 20, 4, chunks, 256u << 10);
  for (auto _ : state) {
    std::uint64_t sum = 0;
    for (std::uint64_t t = 0; t < tiling.tiles(); ++t) {
      for (std::uint32_t c = 0; c < chunks; ++c) sum += tiling.extent(t, c).offset;
    }
    benchmark::DoNotOptimize(sum);
  }
  set_rate(state, "extents/s", tiling.tiles() * chunks);
}

constexpr tutti::VerifyOptions kStaged{};
constexpr tutti::VerifyOptions kWindows{.in_place = true, .windows = true};

BENCHMARK_CAPTURE(build, ring, Algorithm::kRing)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(build, double_tree, Algorithm::kDoubleTree)->Arg(1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(build, two_shot, Algorithm::kTwoShot)->Arg(64)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(build_one_rank, ring, Algorithm::kRing)->Arg(8)->Arg(1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(verify, ring, Algorithm::kRing, kStaged)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(verify, ring_windows, Algorithm::kRing, kWindows)->Arg(8)->Arg(64)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(verify, double_tree, Algorithm::kDoubleTree, kStaged)->Arg(1024)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(verify, two_shot, Algorithm::kTwoShot, kStaged)->Arg(64)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(verify, two_shot_windows, Algorithm::kTwoShot, kWindows)->Arg(64)->Unit(benchmark::kMicrosecond);
BENCHMARK(tile)->Arg(1)->Arg(8)->Arg(64);

}  // namespace
