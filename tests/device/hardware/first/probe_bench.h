// ProbeBench: the GPU of a probe, its driver, and the kernels of the probes (probe_kernels.cu). A driver function that
// fails ends the process with a message.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/gpu.h"
#include "kernels/device/device_image.h"
#include "tests/device/hardware/first/probes.h"

extern "C" const std::byte probe_image_begin[];  // the fatbin of probe_kernels.cu, in probes.cc

namespace tutti::test {

using Clock = std::chrono::steady_clock;

inline constexpr std::uint64_t kLongNs = 3'000'000'000;  // limit of a kernel that waits

inline double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

[[noreturn]] inline void give_up(const std::string& text) {
  std::printf("  error: %s\n", text.c_str());
  std::fflush(stdout);
  _exit(1);
}

// The GPU, its driver and the kernels of the probes. Nothing is freed: the process ends after its probe.
class ProbeBench {
 public:
  ProbeBench() {
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
  void must(cuda::CUresult result, const char* what) const {
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
    const cuda::CUresult result = api().stream_query(stream);
    if (result == cuda::CUresult::kNotReady) return false;
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
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // usually long enough for the kernel to begin
  }

 private:
  bench::Gpu* gpu_ = nullptr;
  cuda::CUmodule module_ = nullptr;
};

inline double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

}  // namespace tutti::test
