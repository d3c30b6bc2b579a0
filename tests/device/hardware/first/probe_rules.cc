// The probes of gpu_first for what the driver demands of a thread: which functions need a current context, and which
// ones a capture in another thread forbids.
#include <array>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "tests/device/hardware/first/probe_bench.h"

namespace tutti::test {

namespace {

// What a call needs, made beforehand by a thread that has a current context.
struct Prepared {
  explicit Prepared(const ProbeBench& its)
      : bench(its), stream(its.stream()), empty(its.kernel("probe_empty")), memory(its.memory(1 << 16)) {
    its.must(its.api().event_create(&event, cuda::kEventDisableTiming), "event");
    its.must(its.api().event_record(event, stream), "record");
    its.launch(empty, 1, 32, stream);
    its.must(its.api().ctx_synchronize(), "first launch");
    host = its.pinned();
  }

  const ProbeBench& bench;
  cuda::CUstream stream;
  cuda::CUfunction empty;
  cuda::CUdeviceptr memory;
  cuda::CUevent event = nullptr;
  void* host = nullptr;
};

struct Call {
  const char* name;
  std::function<cuda::CUresult(const cuda::DriverApi&, const Prepared&)> make;
};

cuda::CUresult attributes(const cuda::DriverApi& api, cuda::CUdeviceptr address) {
  int kind = 0;
  cuda::CUcontext context = nullptr;
  std::array<cuda::PointerAttribute, 2> which = {cuda::PointerAttribute::kMemoryType, cuda::PointerAttribute::kContext};
  std::array<void*, 2> to = {&kind, &context};
  return api.pointer_get_attributes(2, which.data(), to.data(), address);
}

using Api = cuda::DriverApi;

std::vector<Call> calls_that_ask() {
  return {
      {"cuPointerGetAttributes of device memory",
       [](const Api& api, const Prepared& things) { return attributes(api, things.memory); }},
      {"cuPointerGetAttributes of pinned memory",
       [](const Api& api, const Prepared& things) {
         return attributes(api, reinterpret_cast<cuda::CUdeviceptr>(things.host));
       }},
      {"cuStreamGetCtx",
       [](const Api& api, const Prepared& things) {
         cuda::CUcontext context = nullptr;
         return api.stream_get_ctx(things.stream, &context);
       }},
      {"cuStreamGetCaptureInfo",
       [](const Api& api, const Prepared& things) {
         auto status = cuda::CaptureStatus::kNone;
         return api.stream_get_capture_info(things.stream, &status, nullptr, nullptr, nullptr, nullptr);
       }},
      {"cuStreamGetCaptureInfo of the legacy stream",
       [](const Api& api, const Prepared&) {
         auto status = cuda::CaptureStatus::kNone;
         return api.stream_get_capture_info(nullptr, &status, nullptr, nullptr, nullptr, nullptr);
       }},
      {"cuStreamQuery", [](const Api& api, const Prepared& things) { return api.stream_query(things.stream); }},
      {"cuStreamSynchronize",
       [](const Api& api, const Prepared& things) { return api.stream_synchronize(things.stream); }},
      {"cuEventQuery", [](const Api& api, const Prepared& things) { return api.event_query(things.event); }},
      {"cuEventSynchronize",
       [](const Api& api, const Prepared& things) { return api.event_synchronize(things.event); }},
  };
}

std::vector<Call> calls_that_submit() {
  return {
      {"cuEventRecord",
       [](const Api& api, const Prepared& things) { return api.event_record(things.event, things.stream); }},
      {"cuStreamWaitEvent",
       [](const Api& api, const Prepared& things) { return api.stream_wait_event(things.stream, things.event, 0); }},
      {"cuLaunchKernel",
       [](const Api& api, const Prepared& things) {
         return api.launch_kernel(things.empty, 1, 1, 1, 32, 1, 1, 0, things.stream, nullptr, nullptr);
       }},
      {"cuLaunchKernel in the legacy stream",
       [](const Api& api, const Prepared& things) {
         return api.launch_kernel(things.empty, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
       }},
      {"cuLaunchCooperativeKernel",
       [](const Api& api, const Prepared& things) {
         return api.launch_cooperative_kernel(things.empty, 1, 1, 1, 32, 1, 1, 0, things.stream, nullptr);
       }},
      {"cuLaunchHostFunc",
       [](const Api& api, const Prepared& things) {
         return api.launch_host_func(
             things.stream, [](void*) {}, nullptr);
       }},
      {"cuMemcpyAsync",
       [](const Api& api, const Prepared& things) {
         return api.memcpy_async(things.memory, things.memory + 1024, 64, things.stream);
       }},
      {"cuMemcpyDtoDAsync",
       [](const Api& api, const Prepared& things) {
         return api.memcpy_dtod_async(things.memory, things.memory + 1024, 64, things.stream);
       }},
      {"cuMemcpyHtoDAsync from pinned memory",
       [](const Api& api, const Prepared& things) {
         return api.memcpy_htod_async(things.memory, things.host, 64, things.stream);
       }},
      {"cuMemcpyDtoHAsync to pinned memory",
       [](const Api& api, const Prepared& things) {
         return api.memcpy_dtoh_async(things.host, things.memory, 64, things.stream);
       }},
      {"cuMemsetD8Async",
       [](const Api& api, const Prepared& things) { return api.memset_d8_async(things.memory, 0, 64, things.stream); }},
      {"cuStreamWriteValue32",
       [](const Api& api, const Prepared& things) {
         return api.stream_write_value32(things.stream, things.memory, 7, cuda::kWriteDefault);
       }},
      {"cuStreamWaitValue32",
       [](const Api& api, const Prepared& things) {
         return api.stream_wait_value32(things.stream, things.memory, 0, cuda::kWaitGreaterEqual);
       }},
  };
}

std::vector<Call> calls_that_make() {
  return {
      {"cuEventCreate",
       [](const Api& api, const Prepared&) {
         cuda::CUevent made = nullptr;
         return api.event_create(&made, cuda::kEventDisableTiming);
       }},
      {"cuStreamCreate",
       [](const Api& api, const Prepared&) {
         cuda::CUstream made = nullptr;
         return api.stream_create(&made, cuda::kStreamNonBlocking);
       }},
      {"cuStreamCreateWithPriority",
       [](const Api& api, const Prepared&) {
         cuda::CUstream made = nullptr;
         return api.stream_create_with_priority(&made, cuda::kStreamNonBlocking, 0);
       }},
      {"cuMemAlloc",
       [](const Api& api, const Prepared&) {
         cuda::CUdeviceptr made = 0;
         return api.mem_alloc(&made, 1 << 16);
       }},
      {"cuMemHostAlloc",
       [](const Api& api, const Prepared&) {
         void* made = nullptr;
         return api.mem_host_alloc(&made, 4096, cuda::kHostDeviceMap);
       }},
  };
}

// The functions of the driver that a collective and its set-up call.
std::vector<Call> calls_of_a_collective() {
  std::vector<Call> all = calls_that_ask();
  for (const auto& some : {calls_that_submit(), calls_that_make()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

std::string name_of(const cuda::DriverApi& api, cuda::CUresult result) {
  const char* text = nullptr;
  if (result == cuda::CUresult::kSuccess) return "ok";
  if (api.get_error_name(result, &text) != cuda::CUresult::kSuccess || text == nullptr) return "unknown error";
  return text;
}

// Makes the call in a new thread, which has no current context, after setting the thread's capture mode.
cuda::CUresult in_a_new_thread(const Call& call, const Prepared& things, cuda::CaptureMode mode) {
  auto result = cuda::CUresult::kSuccess;
  std::thread thread([&] {
    const cuda::DriverApi& api = things.bench.api();
    static_cast<void>(api.thread_exchange_capture_mode(&mode));
    result = call.make(api, things);
  });
  thread.join();
  return result;
}

// Makes the call in another thread, with the current context, while this thread captures another stream in global
// mode. Returns its result, and whether the capture ended well.
std::pair<cuda::CUresult, cuda::CUresult> beside_a_capture(const Call& call, const Prepared& things,
                                                           cuda::CaptureMode mode) {
  const ProbeBench& bench = things.bench;
  const cuda::DriverApi& api = bench.api();
  const cuda::CUstream captured = bench.stream();
  bench.must(api.stream_begin_capture(captured, cuda::CaptureMode::kGlobal), "begin of the capture");
  auto result = cuda::CUresult::kSuccess;
  std::thread thread([&] {
    static_cast<void>(api.thread_exchange_capture_mode(&mode));
    static_cast<void>(api.ctx_set_current(bench.gpu().context()));
    result = call.make(api, things);
  });
  thread.join();
  cuda::CUgraph graph = nullptr;
  const cuda::CUresult ended = api.stream_end_capture(captured, &graph);
  if (graph != nullptr) static_cast<void>(api.graph_destroy(graph));
  static_cast<void>(api.ctx_synchronize());
  return {result, ended};
}

}  // namespace

int calls_without_a_context() {
  const ProbeBench bench;
  const Prepared things(bench);
  for (const Call& call : calls_of_a_collective()) {
    const cuda::CUresult result = in_a_new_thread(call, things, cuda::CaptureMode::kGlobal);
    bench.must(bench.api().ctx_synchronize(), call.name);
    std::printf("  %-44s %s\n", call.name, name_of(bench.api(), result).c_str());
  }
  return 0;
}

int calls_beside_a_capture() {
  const ProbeBench bench;
  const Prepared things(bench);
  std::printf("  %-44s %-44s %s\n", "", "in mode global", "in mode relaxed");
  for (const Call& call : calls_of_a_collective()) {
    std::array<std::string, 2> found;
    for (const auto mode : {cuda::CaptureMode::kGlobal, cuda::CaptureMode::kRelaxed}) {
      const auto [result, ended] = beside_a_capture(call, things, mode);
      std::string& text = found.at(mode == cuda::CaptureMode::kGlobal ? 0 : 1);
      text = name_of(bench.api(), result);
      if (ended != cuda::CUresult::kSuccess) text += ", and the capture is lost";
    }
    std::printf("  %-44s %-44s %s\n", call.name, found[0].c_str(), found[1].c_str());
  }
  return 0;
}

}  // namespace tutti::test
