// The probes of gpu_first: streams that wait for words, and calls of the driver that may wait for a running kernel.
#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/hardware/first/probe_bench.h"

namespace tutti::test {
namespace {

// `count` streams wait for a word that a later launch in one more stream writes, as ranks of a process wait for the
// launch of the last one. Returns the microseconds until all have ended; less than 0 if they do not within a second.
double waits(const ProbeBench& bench, int count, cuda::CUdeviceptr word, std::uint32_t number, bool by_kernel = false) {
  std::vector<cuda::CUstream> streams;
  for (int i = 0; i <= count; ++i) streams.push_back(bench.stream());
  const auto& api = bench.api();
  for (int i = 0; i < count; ++i) {
    if (by_kernel) {
      bench.launch(bench.kernel("probe_spin"), 1, 32, streams[i], word, kLongNs, word + 64);
    } else {
      bench.must(api.stream_wait_value32(streams[i], word, number, cuda::kWaitGreaterEqual), "wait");
    }
    bench.launch(bench.kernel("probe_empty"), 1, 32, streams[i]);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // usually long enough for all waits to begin
  const auto begin = Clock::now();
  bench.launch(bench.kernel("probe_empty"), 1, 32, streams.back());
  bench.must(api.stream_write_value32(streams.back(), word, number, cuda::kWriteDefault), "write");
  for (const cuda::CUstream stream : streams) {
    while (!bench.ended(stream)) {
      if (us_since(begin) > 1e6) return -1;
    }
  }
  const double us = us_since(begin);
  for (const cuda::CUstream stream : streams) bench.must(api.stream_destroy(stream), "destroying");
  return us;
}

// Launches each kernel once, because the driver loads a kernel at its first launch, and may wait for the others then.
void warm_up(const ProbeBench& bench) {
  std::atomic<std::uint64_t>* const word = bench.pinned();
  *word = 1;
  bench.launch(bench.kernel("probe_empty"), 1, 32, nullptr);
  bench.spin(word, nullptr);
  bench.must(bench.api().ctx_synchronize(), "warming up");
}

constexpr std::array<int, 12> kCounts = {1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 32, 64};

// Makes the call while a kernel runs, and prints whether it waits for that kernel. `other`: the stream of the call's
// work.
void call_beside_a_kernel(const ProbeBench& bench, const char* name, const std::function<void()>& call,
                          cuda::CUstream other) {
  static std::atomic<std::uint64_t>* const word = bench.pinned();
  static const cuda::CUstream spinning = bench.stream();
  const auto& api = bench.api();
  *word = 0;
  word[8] = 0;
  bench.spin(word, spinning);
  std::atomic<bool> returned{false};
  double call_us = 0;
  std::thread caller([&] {
    bench.must(api.ctx_set_current(bench.gpu().context()), "context");
    const auto begin = Clock::now();
    call();
    call_us = us_since(begin);
    returned = true;
  });
  const auto begin = Clock::now();
  while (!returned && us_since(begin) < 300'000) std::this_thread::yield();
  const bool call_waits = !returned;
  const double run_us = call_waits ? -1 : bench.wait(other, 300);
  *word = 1;
  caller.join();
  bench.must(api.ctx_synchronize(), "end");
  if (call_waits) {
    std::printf("  %-32s WAITS for the running kernel\n", name);
  } else if (run_us < 0) {
    std::printf("  %-32s returns after %.0f us, but its work WAITS for the running kernel\n", name, call_us);
  } else {
    std::printf("  %-32s %.0f us, and its work ends %.0f us later\n", name, call_us, run_us);
  }
}

}  // namespace

// The same without a warm-up: the first launch of a kernel comes while a stream waits.
int first_launch_while_a_stream_waits() {
  const ProbeBench bench;
  const double us = waits(bench, 1, bench.memory(64), 1);
  std::printf("  the first launch of a kernel while another stream waits: %s\n", us < 0 ? "STUCK" : "runs");
  std::fflush(stdout);
  _exit(0);
}

// With as many waiting streams as the context has hardware queues, these three probes are stuck. Tutti does not rely on
// more, so they only tell.
int waits_by_kernels() {
  const ProbeBench bench;
  warm_up(bench);
  const cuda::CUdeviceptr word = bench.memory(1024);
  for (const int count : kCounts) {
    bench.must(bench.api().memset_d8_async(word, 0, 64, nullptr), "clearing");
    bench.must(bench.api().ctx_synchronize(), "clearing");
    const double us = waits(bench, count, word, 1, true);
    std::printf("  %d streams with a kernel that waits for a word: %.0f us\n", count, us);
    if (us < 0) _exit(0);
  }
  return 0;
}

int waits_on_device_memory() {
  const ProbeBench bench;
  warm_up(bench);
  const cuda::CUdeviceptr word = bench.memory(64);
  std::uint32_t number = 0;
  for (const int count : kCounts) {
    const double us = waits(bench, count, word, ++number);
    if (us < 0) {
      std::printf("  %d streams that wait for a word of the device: STUCK\n", count);
      std::fflush(stdout);
      _exit(0);
    }
    std::printf("  %d streams that wait for a word of the device: %.0f us\n", count, us);
  }
  return 0;
}

int waits_on_pinned_memory() {
  const ProbeBench bench;
  warm_up(bench);
  std::atomic<std::uint64_t>* const word = bench.pinned();
  std::uint32_t number = 0;
  for (const int count : kCounts) {
    const double us = waits(bench, count, ProbeBench::address(word), ++number);
    std::printf("  %d streams that wait for a word of the host: %.0f us\n", count, us);
    if (us >= 0) continue;
    const auto begin = Clock::now();
    word->store(number);
    bench.must(bench.api().ctx_synchronize(), "released by the host");
    std::printf("  %d streams: stuck; a store of the host released them in %.0f us\n", count, us_since(begin));
  }
  return 0;
}

// Finds out which functions of the driver return, or start their work, only after a running kernel has ended.
int calls_while_a_kernel_runs() {
  const ProbeBench bench;
  const auto& api = bench.api();
  const cuda::CUstream other = bench.stream();
  const cuda::CUfunction local = bench.kernel("probe_local");
  const cuda::CUfunction empty = bench.kernel("probe_empty");
  const cuda::CUdeviceptr memory = bench.memory(1 << 20);
  void* host = nullptr;
  cuda::CUdeviceptr made = 0;
  cuda::CUmodule module = nullptr;
  cuda::CUevent event = nullptr;
  std::array<std::byte, 64> bytes{};
  const auto cooperative = [&] {
    bench.must(api.launch_cooperative_kernel(empty, 16, 1, 1, 512, 1, 1, 0, other, nullptr), "cooperative");
  };
  warm_up(bench);
  const cuda::CUfunction fresh = bench.kernel("probe_clock");
  const auto calls = std::to_array<std::pair<const char*, std::function<void()>>>({
      {"first launch of a kernel", [&] { bench.launch(fresh, 1, 1, other, memory); }},
      {"launch of an empty kernel", [&] { bench.launch(empty, 1, 32, other); }},
      {"cooperative launch", cooperative},
      {"launch with more local memory", [&] { bench.launch(local, 132, 256, other, 3u, memory); }},
      {"the same again", [&] { bench.launch(local, 132, 256, other, 3u, memory); }},
      {"cuMemAlloc", [&] { bench.must(api.mem_alloc(&made, 64 << 20), "alloc"); }},
      {"cuMemFree", [&] { bench.must(api.mem_free(made), "free"); }},
      {"cuMemHostAlloc", [&] { bench.must(api.mem_host_alloc(&host, 1 << 20, cuda::kHostDeviceMap), "host"); }},
      {"cuMemFreeHost", [&] { bench.must(api.mem_free_host(host), "free host"); }},
      {"cuModuleLoadData", [&] { bench.must(api.module_load_data(&module, probe_image_begin), "module"); }},
      {"cuModuleUnload", [&] { bench.must(api.module_unload(module), "unload"); }},
      {"cuStreamCreate and destroy", [&] { bench.must(api.stream_destroy(bench.stream()), "stream"); }},
      {"cuEventCreate and destroy",
       [&] {
         bench.must(api.event_create(&event, cuda::kEventDisableTiming), "event");
         bench.must(api.event_destroy(event), "event");
       }},
      {"copy from pageable memory",
       [&] { bench.must(api.memcpy_htod_async(memory, bytes.data(), 64, other), "copy"); }},
      {"load of the library's code",
       [&] { bench.must(api.module_load_data(&module, kernels::device_image().data()), "module"); }},
  });
  for (const auto& [name, call] : calls) call_beside_a_kernel(bench, name, call, other);
  return 0;
}

// Two cooperative launches of two streams at the same time: the second one must run while the first one waits.
int two_cooperative_launches() {
  const ProbeBench bench;
  warm_up(bench);
  std::atomic<std::uint64_t>* const word = bench.pinned();
  const cuda::CUstream first = bench.stream();
  const cuda::CUstream second = bench.stream();
  const cuda::CUfunction function = bench.kernel("probe_spin");
  cuda::CUdeviceptr at = ProbeBench::address(word), end = ProbeBench::address(word + 8);
  std::uint64_t limit = kLongNs;
  std::array<void*, 3> parameters = {&at, &limit, &end};
  bench.must(bench.api().launch_cooperative_kernel(function, 16, 1, 1, 512, 1, 1, 0, first, parameters.data()), "one");
  bench.must(
      bench.api().launch_cooperative_kernel(bench.kernel("probe_empty"), 16, 1, 1, 512, 1, 1, 0, second, nullptr),
      "two");
  const double us = bench.wait(second, 500);
  *word = 1;
  bench.must(bench.api().ctx_synchronize(), "end");
  std::printf("  a cooperative kernel beside one that waits: %s\n", us < 0 ? "WAITS for it" : "runs");
  return us < 0 ? 1 : 0;
}

}  // namespace tutti::test
