// The probes of gpu_first: the machine, the cost of calls of the driver, and the order of memory.
#include "tests/device/hardware/first/probes.h"

#include <array>
#include <functional>
#include <utility>

#include "tests/device/hardware/first/probe_bench.h"

asm(R"(
  .pushsection .rodata
  .balign 64
  .globl probe_image_begin
  .hidden probe_image_begin
probe_image_begin:
  .incbin ")" PROBE_IMAGE R"("
  .popsection
)");

namespace tutti::test {

namespace {

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

void look_at_kernels(const ProbeBench& bench, cuda::CUfunction own, cuda::CUstream stream) {
  const auto& api = bench.api();
  const auto begin = Clock::now();
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
}

}  // namespace

int machine() {
  const ProbeBench bench;
  const auto& api = bench.api();
  int version = 0;
  bench.must(api.driver_get_version(&version), "version");
  std::printf("  %s, %d multiprocessors, driver for CUDA %d.%d\n", bench.gpu().name().c_str(),
              bench.gpu().multiprocessors(), version / 1000, version % 1000 / 10);
  const auto attributes = std::to_array<std::pair<const char*, cuda::DeviceAttribute>>({
      {"copy engines", cuda::DeviceAttribute::kAsyncEngineCount},
      {"preemption of kernels", cuda::DeviceAttribute::kComputePreemptionSupported},
      {"handles of memory as files", cuda::DeviceAttribute::kPosixFdHandleSupported},
      {"GPUDirect RDMA", cuda::DeviceAttribute::kGpuDirectRdmaSupported},
      {"dma-buf", cuda::DeviceAttribute::kDmaBufSupported},
      {"multicast", cuda::DeviceAttribute::kMulticastSupported},
  });
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
  const ProbeBench bench;
  const auto& api = bench.api();
  const cuda::CUstream stream = bench.stream();
  const cuda::CUfunction own = bench.kernel("probe_empty");
  look_at_kernels(bench, own, stream);
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
  const ProbeBench bench;
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

namespace {

constexpr auto kProbes = std::to_array<Probe>({
    {"machine", machine},
    {"calls", calls},
    {"memory_order", memory_order},
    {"first_launch_while_a_stream_waits", first_launch_while_a_stream_waits},
    {"waits_by_kernels", waits_by_kernels},
    {"waits_on_device_memory", waits_on_device_memory},
    {"waits_on_pinned_memory", waits_on_pinned_memory},
    {"calls_while_a_kernel_runs", calls_while_a_kernel_runs},
    {"two_cooperative_launches", two_cooperative_launches},
    {"calls_without_a_context", calls_without_a_context},
    {"calls_beside_a_capture", calls_beside_a_capture},
    {"processes", processes},
    {"time_slices", time_slices},
});

}  // namespace

std::span<const Probe> probes() { return kProbes; }

}  // namespace tutti::test
