// The probes of gpu_first: two processes on one GPU.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/device/hardware/first/probe_bench.h"

namespace tutti::test {

// A stream of this process waits for a word that another process writes in memory shared by CUDA IPC.
int processes() {
  struct Shared {
    std::atomic<int> state;
    cuda::CUipcMemHandle handle;
  };
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap");
  auto* const shared = new (memory) Shared{};
  const auto await = [&](int state) {
    const auto begin = Clock::now();
    while (shared->state < state) {
      if (us_since(begin) > 5e6) give_up("the other process does not answer");
    }
  };
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  constexpr int kRounds = 100;
  if (child == 0) {
    const ProbeBench bench;
    await(1);
    cuda::CUdeviceptr at = 0;
    bench.must(bench.api().ipc_open_mem_handle(&at, shared->handle, cuda::kIpcLazyPeerAccess), "opening the memory");
    const cuda::CUstream stream = bench.stream();
    shared->state = 2;
    for (std::uint32_t i = 1; i <= kRounds; ++i) {
      bench.must(bench.api().stream_wait_value32(stream, at, i, cuda::kWaitGreaterEqual), "wait");
      bench.must(bench.api().stream_write_value32(stream, at + 64, i, cuda::kWriteDefault), "write");
    }
    bench.must(bench.api().stream_synchronize(stream), "end of the child");
    _exit(0);
  }
  const ProbeBench bench;
  const cuda::CUdeviceptr at = bench.memory(1 << 21);
  bench.must(bench.api().ipc_get_mem_handle(&shared->handle, at), "sharing the memory");
  const cuda::CUstream stream = bench.stream();
  shared->state = 1;
  await(2);
  const auto begin = Clock::now();
  for (std::uint32_t i = 1; i <= kRounds; ++i) {
    bench.must(bench.api().stream_write_value32(stream, at, i, cuda::kWriteDefault), "write");
    bench.must(bench.api().stream_wait_value32(stream, at + 64, i, cuda::kWaitGreaterEqual), "wait");
  }
  const double us = bench.wait(stream, 5000);
  if (us < 0) give_up("words between two processes: STUCK");
  std::printf("  there and back between the streams of two processes: %.1f us\n", us_since(begin) / kRounds);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

// A kernel of one process waits, and a kernel of another process wants to run: time slices.
int time_slices() {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap");
  auto* const state = new (memory) std::atomic<int>{0};
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    const ProbeBench bench;
    std::atomic<std::uint64_t>* const word = bench.pinned();
    bench.spin(word, bench.stream());
    *state = 1;
    while (*state < 2) std::this_thread::yield();
    *word = 1;
    bench.must(bench.api().ctx_synchronize(), "end of the child");
    _exit(0);
  }
  const ProbeBench bench;
  const cuda::CUstream stream = bench.stream();
  const cuda::CUfunction empty = bench.kernel("probe_empty");
  bench.launch(empty, 1, 32, stream);
  bench.must(bench.api().stream_synchronize(stream), "first");
  while (*state < 1) std::this_thread::yield();
  std::vector<double> samples;
  for (int i = 0; i < 100; ++i) {
    const auto begin = Clock::now();
    bench.launch(empty, 1, 32, stream);
    bench.must(bench.api().stream_synchronize(stream), "slice");
    samples.push_back(us_since(begin));
  }
  *state = 2;
  std::printf("  a launch while a kernel of another process waits: median %.0f us, longest %.0f us\n", median(samples),
              *std::max_element(samples.begin(), samples.end()));
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace tutti::test
