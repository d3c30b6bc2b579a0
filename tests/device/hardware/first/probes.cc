// The probes of gpu_first: clocks, launches, orders of memory, streams that wait for words, and calls of the driver
// that may wait for a kernel that is running.
#include "tests/device/hardware/first/probes.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/gpu/gpu.h"
#include "kernels/device/device_image.h"

asm(R"(
  .pushsection .rodata
  .balign 64
  .globl probe_image_begin
  .hidden probe_image_begin
probe_image_begin:
  .incbin ")" PROBE_IMAGE R"("
  .popsection
)");
extern "C" const std::byte probe_image_begin[];

namespace tutti::test {
namespace {

using cuda::CUresult;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kLongNs = 3'000'000'000;  // limit of a kernel that waits

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

[[noreturn]] void give_up(const std::string& text) {
  std::printf("  error: %s\n", text.c_str());
  std::fflush(stdout);
  _exit(1);
}

// The GPU, its driver and the kernels of the probes. Nothing is freed: the process ends after its probe.
class Bench {
 public:
  Bench() {
    auto opened = bench::Gpu::open(0, kernels::device_image());
    if (!opened) {
      std::printf("  no GPU: %s\n", to_string(opened.error()).c_str());
      std::fflush(stdout);
      _exit(opened.error().code == ErrorCode::kUnsupported ? 3 : 1);
    }
    gpu_ = opened->release();
    must(api().module_load_data(&module_, probe_image_begin), "loading the kernels");
  }
  const cuda::DriverApi& api() const { return gpu_->driver().api(); }
  bench::Gpu& gpu() const { return *gpu_; }
  void must(CUresult result, const char* what) const {
    const Status status = gpu_->driver().check(result, what);
    if (!status) give_up(to_string(status.error()));
  }
  cuda::CUfunction kernel(const char* name) const {
    cuda::CUfunction function = nullptr;
    must(api().module_get_function(&function, module_, name), name);
    return function;
  }
  cuda::CUstream stream() const {
    cuda::CUstream made = nullptr;
    must(api().stream_create(&made, cuda::kStreamNonBlocking), "creating a stream");
    return made;
  }
  cuda::CUdeviceptr memory(std::size_t bytes) const {
    cuda::CUdeviceptr made = 0;
    must(api().mem_alloc(&made, bytes), "allocating");
    must(api().memset_d8_async(made, 0, bytes, nullptr), "clearing");
    must(api().ctx_synchronize(), "clearing");
    return made;
  }
  // Pinned memory that the GPU sees at the same address.
  std::atomic<std::uint64_t>* pinned() const {
    void* made = nullptr;
    must(api().mem_host_alloc(&made, 4096, cuda::kHostPortable | cuda::kHostDeviceMap), "allocating on the host");
    return new (made) std::atomic<std::uint64_t>[512] {};
  }
  static cuda::CUdeviceptr address(const std::atomic<std::uint64_t>* word) {
    return reinterpret_cast<cuda::CUdeviceptr>(word);
  }
  template <class... Arguments>
  void launch(cuda::CUfunction function, unsigned blocks, unsigned threads, cuda::CUstream stream,
              Arguments... arguments) const {
    std::array<void*, sizeof...(Arguments) + 1> parameters = {&arguments..., nullptr};
    must(api().launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters.data(), nullptr), "launch");
  }
  bool ended(cuda::CUstream stream) const {
    const CUresult result = api().stream_query(stream);
    if (result == CUresult::kNotReady) return false;
    must(result, "asking a stream");
    return true;
  }
  // Microseconds until all work of the stream has ended, at most `limit_ms`; less than 0 after the limit.
  double wait(cuda::CUstream stream, int limit_ms) const {
    const auto begin = Clock::now();
    while (!ended(stream)) {
      if (us_since(begin) > limit_ms * 1000.0) return -1;
    }
    return us_since(begin);
  }
  // Starts a kernel of `blocks` blocks that waits for word[0], and waits until it runs.
  void spin(std::atomic<std::uint64_t>* word, cuda::CUstream stream, unsigned blocks = 1) const {
    launch(kernel("probe_spin"), blocks, 32, stream, address(word), kLongNs, address(word + 8));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the kernel reports its end, not its begin
  }

 private:
  bench::Gpu* gpu_ = nullptr;
  cuda::CUmodule module_ = nullptr;
};

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

double median_us(int passes, const std::function<void()>& body) {
  for (int i = 0; i < 20; ++i) body();
  std::vector<double> samples;
  for (int i = 0; i < passes; ++i) {
    const auto begin = Clock::now();
    body();
    samples.push_back(us_since(begin));
  }
  return median(samples);
}

int machine() {
  const Bench bench;
  const auto& api = bench.api();
  int version = 0;
  bench.must(api.driver_get_version(&version), "version");
  std::printf("  %s, %d multiprocessors, driver for CUDA %d.%d\n", bench.gpu().name().c_str(),
              bench.gpu().multiprocessors(), version / 1000, version % 1000 / 10);
  const std::array<std::pair<const char*, cuda::DeviceAttribute>, 7> attributes = {{
      {"copy engines", cuda::DeviceAttribute::kAsyncEngineCount},
      {"preemption of kernels", cuda::DeviceAttribute::kComputePreemptionSupported},
      {"handles of memory as files", cuda::DeviceAttribute::kPosixFdHandleSupported},
      {"GPUDirect RDMA", cuda::DeviceAttribute::kGpuDirectRdmaSupported},
      {"dma-buf", cuda::DeviceAttribute::kDmaBufSupported},
      {"events between processes", cuda::DeviceAttribute::kIpcEventSupported},
      {"multicast", cuda::DeviceAttribute::kMulticastSupported},
  }};
  for (const auto& [name, attribute] : attributes) {
    int value = 0;
    bench.must(api.device_get_attribute(&value, attribute, 0), name);
    std::printf("  %s: %d\n", name, value);
  }
  const cuda::CUdeviceptr steps = bench.memory(16);
  bench.launch(bench.kernel("probe_clock"), 1, 1, nullptr, steps);
  std::array<std::uint64_t, 2> values{};
  bench.must(api.ctx_synchronize(), "the clock");
  bench.must(api.memcpy_dtoh_async(values.data(), steps, 16, nullptr), "the clock");
  bench.must(api.ctx_synchronize(), "the clock");
  std::printf("  globaltimer: steps of %llu to %llu ns\n", static_cast<unsigned long long>(values[0]),
              static_cast<unsigned long long>(values[1]));
  return 0;
}

// The cost of the driver's calls that a collective is made of.
int calls() {
  const Bench bench;
  const auto& api = bench.api();
  const cuda::CUstream stream = bench.stream();
  const auto begin = Clock::now();
  const cuda::CUfunction own = bench.kernel("probe_empty");
  bench.launch(own, 1, 32, stream);
  bench.must(api.stream_synchronize(stream), "first launch");
  std::printf("  first launch of a kernel: %.0f us\n", us_since(begin));
  for (const char* name : {"tutti_evaluate_simple", "tutti_evaluate_ll", "tutti_evaluate_ll128", "tutti_empty"}) {
    const auto start = Clock::now();
    auto function = bench.gpu().kernel(name);
    if (!function) give_up(to_string(function.error()));
    std::array<int, 3> values{};
    bench.must(api.func_get_attribute(&values[0], cuda::FunctionAttribute::kRegisters, *function), "registers");
    bench.must(api.func_get_attribute(&values[1], cuda::FunctionAttribute::kLocalBytes, *function), "local memory");
    bench.must(api.func_get_attribute(&values[2], cuda::FunctionAttribute::kBinaryVersion, *function), "version");
    std::printf("  %s: found in %.0f us; %d registers, %d bytes of local memory, code for %d\n", name, us_since(start),
                values[0], values[1], values[2]);
  }
  cuda::CUevent event = nullptr;
  bench.must(api.event_create(&event, cuda::kEventDisableTiming), "event");
  const cuda::CUdeviceptr word = bench.memory(64);
  const auto sync = [&] { bench.must(api.stream_synchronize(stream), "synchronizing"); };
  const auto say = [&](const char* what, const std::function<void()>& body) {
    std::printf("  %-52s %7.2f us\n", what, median_us(300, body));
  };
  say("launch alone (queued)", [&] { bench.launch(own, 1, 32, stream); });
  sync();
  say("launch and wait", [&] { bench.launch(own, 1, 32, stream), sync(); });
  say("launch of 16 blocks of 512 threads and wait", [&] { bench.launch(own, 16, 512, stream), sync(); });
  say("cooperative launch and wait", [&] {
    bench.must(api.launch_cooperative_kernel(own, 16, 1, 1, 512, 1, 1, 0, stream, nullptr), "launch"), sync();
  });
  say("event record (queued)", [&] { bench.must(api.event_record(event, stream), "record"); });
  sync();
  say("event record, launch, event record and wait", [&] {
    bench.must(api.event_record(event, stream), "record");
    bench.launch(own, 1, 32, stream);
    bench.must(api.event_record(event, stream), "record");
    sync();
  });
  say("launch, write of a word and wait", [&] {
    bench.launch(own, 1, 32, stream);
    bench.must(api.stream_write_value32(stream, word, 7, cuda::kWriteDefault), "write");
    sync();
  });
  say("wait for a word that is there, launch and wait", [&] {
    bench.must(api.stream_wait_value32(stream, word, 7, cuda::kWaitGreaterEqual), "wait");
    bench.launch(own, 1, 32, stream);
    sync();
  });
  const cuda::CUstream other = bench.stream();
  std::uint32_t number = 100;
  say("write in one stream, wait in another one", [&] {
    ++number;
    bench.must(api.stream_wait_value32(other, word, number, cuda::kWaitGreaterEqual), "wait");
    bench.must(api.stream_write_value32(stream, word, number, cuda::kWriteDefault), "write");
    bench.must(api.stream_synchronize(other), "synchronizing");
  });
  say("event query", [&] { static_cast<void>(api.event_query(event)); });
  cuda::CUstream got = stream;
  cuda::CUcontext context = nullptr;
  say("stream's context", [&] { bench.must(api.stream_get_ctx(got, &context), "context"); });
  say("push and pop of the context", [&] {
    bench.must(api.ctx_push_current(bench.gpu().context()), "push");
    bench.must(api.ctx_pop_current(&context), "pop");
  });
  say("attributes of a pointer", [&] {
    int kind = 0;
    std::array<cuda::PointerAttribute, 1> which = {cuda::PointerAttribute::kMemoryType};
    std::array<void*, 1> to = {&kind};
    bench.must(api.pointer_get_attributes(1, which.data(), to.data(), word), "attributes");
  });
  return 0;
}

int memory_order() {
  const Bench bench;
  const auto& api = bench.api();
  const cuda::CUstream stream = bench.stream();
  const cuda::CUdeviceptr data = bench.memory(1 << 20);
  const cuda::CUdeviceptr words = bench.memory(4096);
  const cuda::CUdeviceptr counts = bench.memory(64);
  std::array<std::uint64_t, 3> values{};
  const auto get = [&] {
    bench.must(api.memcpy_dtoh_async(values.data(), counts, sizeof values, stream), "result");
    bench.must(api.stream_synchronize(stream), "result");
    bench.must(api.memset_d8_async(counts, 0, 64, stream), "clearing");
  };
  bench.launch(bench.kernel("probe_hand_over"), 2, 512, stream, data, words, std::uint64_t{50'000}, counts);
  get();
  std::printf("  hand-over with release and acquire: %llu rounds, %llu values wrong%s\n",
              static_cast<unsigned long long>(values[0]), static_cast<unsigned long long>(values[1]),
              values[2] != 0 ? ", and a block waited too long" : "");
  bool good = values[1] == 0 && values[0] > 1000;
  bench.must(api.memset_d8_async(data, 0, 1 << 20, stream), "clearing");
  bench.launch(bench.kernel("probe_lines"), 2, 32, stream, data, std::uint64_t{300'000}, counts);
  get();
  std::printf("  lines of 128 bytes: %llu reads, %llu lines torn, %llu words of 16 bytes torn\n",
              static_cast<unsigned long long>(values[0]), static_cast<unsigned long long>(values[1]),
              static_cast<unsigned long long>(values[2]));
  good = good && values[0] > 1000 && values[1] == 0 && values[2] == 0;
  return good ? 0 : 1;
}

// `count` streams wait for a word that a later launch in one more stream writes, as ranks of a process wait for the
// launch of the last one. Returns the microseconds until all have ended; less than 0 if they do not within a second.
double waits(const Bench& bench, int count, cuda::CUdeviceptr word, std::uint32_t number, bool by_kernel = false) {
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
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
void warm_up(const Bench& bench) {
  std::atomic<std::uint64_t>* const word = bench.pinned();
  *word = 1;
  bench.launch(bench.kernel("probe_empty"), 1, 32, nullptr);
  bench.spin(word, nullptr);
  bench.must(bench.api().ctx_synchronize(), "warming up");
}

constexpr std::array<int, 12> kCounts = {1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 32, 64};

// The same without a warm-up: the first launch of a kernel comes while a stream waits.
int first_launch_while_a_stream_waits() {
  const Bench bench;
  const double us = waits(bench, 1, bench.memory(64), 1);
  std::printf("  the first launch of a kernel while another stream waits: %s\n", us < 0 ? "STUCK" : "runs");
  std::fflush(stdout);
  _exit(0);
}

int waits_by_kernels() {
  const Bench bench;
  warm_up(bench);
  const cuda::CUdeviceptr word = bench.memory(1024);
  for (const int count : kCounts) {
    bench.must(bench.api().memset_d8_async(word, 0, 64, nullptr), "clearing");
    bench.must(bench.api().ctx_synchronize(), "clearing");
    const double us = waits(bench, count, word, 1, true);
    std::printf("  %d streams with a kernel that waits for a word: %.0f us\n", count, us);
    if (us < 0) _exit(1);
  }
  return 0;
}

int waits_on_device_memory() {
  const Bench bench;
  warm_up(bench);
  const cuda::CUdeviceptr word = bench.memory(64);
  std::uint32_t number = 0;
  for (const int count : kCounts) {
    const double us = waits(bench, count, word, ++number);
    if (us < 0) {
      std::printf("  %d streams that wait for a word of the device: STUCK\n", count);
      std::fflush(stdout);
      _exit(1);
    }
    std::printf("  %d streams that wait for a word of the device: %.0f us\n", count, us);
  }
  return 0;
}

int waits_on_pinned_memory() {
  const Bench bench;
  warm_up(bench);
  std::atomic<std::uint64_t>* const word = bench.pinned();
  std::uint32_t number = 0;
  bool good = true;
  for (const int count : kCounts) {
    const double us = waits(bench, count, Bench::address(word), ++number);
    std::printf("  %d streams that wait for a word of the host: %.0f us\n", count, us);
    if (us >= 0) continue;
    good = false;
    const auto begin = Clock::now();
    word->store(number);
    bench.must(bench.api().ctx_synchronize(), "released by the host");
    std::printf("  %d streams: stuck; a store of the host released them in %.0f us\n", count, us_since(begin));
  }
  return good ? 0 : 1;
}

// Which calls of the driver wait for a kernel that is running.
int calls_while_a_kernel_runs() {
  const Bench bench;
  const auto& api = bench.api();
  std::atomic<std::uint64_t>* const word = bench.pinned();
  const cuda::CUstream spinning = bench.stream();
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
  const std::array<std::pair<const char*, std::function<void()>>, 15> calls = {{
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
      {"copy from pageable memory", [&] { bench.must(api.memcpy_htod_async(memory, bytes.data(), 64, other), "copy"); }},
      {"load of the library's code",
       [&] { bench.must(api.module_load_data(&module, kernels::device_image().data()), "module"); }},
  }};
  for (const auto& [name, call] : calls) {
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
  return 0;
}

// Two cooperative launches of two streams at the same time: the second one must run while the first one waits.
int two_cooperative_launches() {
  const Bench bench;
  warm_up(bench);
  std::atomic<std::uint64_t>* const word = bench.pinned();
  const cuda::CUstream first = bench.stream();
  const cuda::CUstream second = bench.stream();
  const cuda::CUfunction function = bench.kernel("probe_spin");
  cuda::CUdeviceptr at = Bench::address(word), end = Bench::address(word + 8);
  std::uint64_t limit = kLongNs;
  std::array<void*, 3> parameters = {&at, &limit, &end};
  bench.must(bench.api().launch_cooperative_kernel(function, 16, 1, 1, 512, 1, 1, 0, first, parameters.data()), "one");
  bench.must(bench.api().launch_cooperative_kernel(bench.kernel("probe_empty"), 16, 1, 1, 512, 1, 1, 0, second, nullptr),
             "two");
  const double us = bench.wait(second, 500);
  *word = 1;
  bench.must(bench.api().ctx_synchronize(), "end");
  std::printf("  a cooperative kernel beside one that waits: %s\n", us < 0 ? "WAITS for it" : "runs");
  return us < 0 ? 1 : 0;
}

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
    const Bench bench;
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
  const Bench bench;
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
    const Bench bench;
    std::atomic<std::uint64_t>* const word = bench.pinned();
    bench.spin(word, bench.stream());
    *state = 1;
    while (*state < 2) std::this_thread::yield();
    *word = 1;
    bench.must(bench.api().ctx_synchronize(), "end of the child");
    _exit(0);
  }
  const Bench bench;
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

constexpr std::array<Probe, 11> kProbes = {{
    {"machine", machine},
    {"calls", calls},
    {"memory_order", memory_order},
    {"first_launch_while_a_stream_waits", first_launch_while_a_stream_waits},
    {"waits_by_kernels", waits_by_kernels},
    {"waits_on_device_memory", waits_on_device_memory},
    {"waits_on_pinned_memory", waits_on_pinned_memory},
    {"calls_while_a_kernel_runs", calls_while_a_kernel_runs},
    {"two_cooperative_launches", two_cooperative_launches},
    {"processes", processes},
    {"time_slices", time_slices},
}};

}  // namespace

std::span<const Probe> probes() { return kProbes; }

}  // namespace tutti::test
