// Benchmark of malloc(), to be run with and without the shared heap (docs/heap.md):
//
//   heap_bench
//   LD_PRELOAD=build/release/lib/libtutti_heap.so heap_bench
//
// Allocate: malloc() and free() of one block of the given number of bytes. Write: also writes all of it. Fork: a fork()
// while one block of the given number of MiB exists, all of it written, until fork() returns in the parent.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

void Allocate(benchmark::State& state) {
  for (auto _ : state) {
    void* block = std::malloc(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void Write(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* block = std::malloc(bytes);
    std::memset(block, 1, bytes);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void Fork(benchmark::State& state) {
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)) << 20;
  void* block = std::malloc(bytes);
  std::memset(block, 1, bytes);
  for (auto _ : state) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    state.PauseTiming();
    waitpid(pid, nullptr, 0);
    state.ResumeTiming();
  }
  benchmark::DoNotOptimize(block);
  std::free(block);
}

BENCHMARK(Allocate)->Arg(1000)->Arg(32 << 10)->Arg(1 << 20)->Arg(16 << 20)->Arg(64 << 20);
BENCHMARK(Write)->Arg(1000)->Arg(32 << 10)->Arg(1 << 20)->Arg(16 << 20)->Arg(64 << 20)->Unit(benchmark::kMicrosecond);
BENCHMARK(Fork)->Arg(1)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
