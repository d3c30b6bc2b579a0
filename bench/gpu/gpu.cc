#include "bench/gpu/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/assert.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

double Samples::median() const {
  TUTTI_ASSERT(!us.empty());
  std::vector<double> sorted = us;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Result<std::unique_ptr<Gpu>> Gpu::open(int device, std::span<const std::byte> image) {
  const auto driver = cuda::Driver::open();
  TUTTI_TRY(driver);
  const Result<int> count = (*driver)->device_count();
  TUTTI_TRY(count);
  if (*count == 0) return unsupported("there is no GPU");
  if (device < 0 || device >= *count) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("there is no GPU {}: the driver shows {}", device, *count)};
  }
  auto context = cuda::PrimaryContext::retain(**driver, device);
  if (!context) return std::move(context).error();
  std::unique_ptr<Gpu> gpu(new Gpu(**driver, *std::move(context), image));  // private constructor
  TUTTI_TRY(gpu->finish_opening(device));
  return gpu;
}

Status Gpu::finish_opening(int device) {
  auto scope = cuda::ContextScope::enter(driver_, context_.context());
  if (!scope) return std::move(scope).error();
  scope_.emplace(*std::move(scope));
  auto stream = cuda::Stream::create(driver_);
  if (!stream) return std::move(stream).error();
  stream_.emplace(*std::move(stream));
  for (std::optional<cuda::Event>* event : {&start_, &stop_}) {
    auto made = cuda::Event::create(driver_, {.flags = cuda::kEventDefault});
    if (!made) return std::move(made).error();
    event->emplace(*std::move(made));
  }
  std::array<char, 256> name{};
  TUTTI_TRY(driver_.check(driver_.api().device_get_name(name.data(), static_cast<int>(name.size()), device),
                          "cuDeviceGetName"));
  name_ = name.data();
  return driver_.check(
      driver_.api().device_get_attribute(&multiprocessors_, cuda::DeviceAttribute::kMultiprocessorCount, device),
      "cuDeviceGetAttribute");
}

// Destroys the objects that belong to the context before the scope that makes the context current.
Gpu::~Gpu() {
  module_.reset();
  stop_.reset();
  start_.reset();
  stream_.reset();
  scope_.reset();
}

Result<std::size_t> Gpu::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  TUTTI_TRY(driver_.check(driver_.api().mem_get_info(&free, &total), "cuMemGetInfo"));
  return free;
}

Result<cuda::CUfunction> Gpu::kernel(const char* name) {
  if (!module_) {
    if (image_.empty()) {
      return unsupported("this build has no device code: scripts/build cuda makes it, where nvcc is found");
    }
    auto module = cuda::Module::load(driver_, image_.data());
    if (!module) return std::move(module).error();
    module_.emplace(*std::move(module));
  }
  return module_->function(name);
}

Result<unsigned> Gpu::blocks_at_once(cuda::CUfunction kernel, unsigned threads) const {
  int blocks = 0;
  TUTTI_TRY(driver_.check(driver_.api().occupancy_max_active_blocks(&blocks, kernel, static_cast<int>(threads), 0),
                          "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
  return static_cast<unsigned>(blocks * multiprocessors_);
}

Status Gpu::launch(cuda::CUfunction kernel, Grid grid, void* argument, cuda::CUstream stream) const {
  std::array<void*, 1> parameters = {argument};
  return driver_.check(driver_.api().launch_kernel(kernel, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream,
                                                   argument == nullptr ? nullptr : parameters.data(), nullptr),
                       "cuLaunchKernel");
}

Result<cuda::DeviceMemory> Gpu::allocate(std::size_t bytes) const {
  return cuda::DeviceMemory::allocate(driver_, bytes);
}

Status Gpu::put(cuda::CUdeviceptr to, std::span<const std::byte> from) const {
  TUTTI_TRY(driver_.check(driver_.api().memcpy_htod_async(to, from.data(), from.size(), stream_->handle()),
                          "cuMemcpyHtoDAsync"));
  return synchronize();
}

Status Gpu::get(std::span<std::byte> to, cuda::CUdeviceptr from) const {
  TUTTI_TRY(driver_.check(driver_.api().memcpy_dtoh_async(to.data(), from, to.size(), stream_->handle()),
                          "cuMemcpyDtoHAsync"));
  return synchronize();
}

Status Gpu::copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, std::size_t bytes) const {
  return driver_.check(driver_.api().memcpy_dtod_async(to, from, bytes, stream_->handle()), "cuMemcpyDtoDAsync");
}

Result<double> Gpu::time_us(unsigned passes, const std::function<Status()>& body) const {
  TUTTI_TRY(start_->record(stream_->handle()));
  for (unsigned pass = 0; pass < passes; ++pass) TUTTI_TRY(body());
  TUTTI_TRY(stop_->record(stream_->handle()));
  TUTTI_TRY(stop_->synchronize());
  const Result<double> milliseconds = cuda::elapsed_ms(driver_, *start_, *stop_);
  TUTTI_TRY(milliseconds);
  return *milliseconds * 1000 / passes;
}

Result<std::vector<Samples>> Gpu::measure(const Rounds& rounds, std::span<const std::function<Status()>> bodies) const {
  std::vector<Samples> samples(bodies.size());
  for (const std::function<Status()>& body : bodies) TUTTI_TRY(time_us(rounds.passes, body));  // warm-up
  const auto begin = Clock::now();
  for (unsigned round = 0; round < rounds.rounds; ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      const Result<double> us = time_us(rounds.passes, bodies[i]);
      TUTTI_TRY(us);
      samples[i].us.push_back(*us);
    }
    if (seconds_since(begin) > rounds.limit_s) break;
  }
  return samples;
}

Result<Samples> Gpu::measure(const Rounds& rounds, const std::function<Result<double>()>& body) {
  for (int warm_up = 0; warm_up < 2; ++warm_up) TUTTI_TRY(body());
  Samples samples;
  const auto begin = Clock::now();
  for (unsigned round = 0; round < rounds.rounds; ++round) {
    const Result<double> us = body();
    TUTTI_TRY(us);
    samples.us.push_back(*us);
    if (seconds_since(begin) > rounds.limit_s) break;
  }
  return samples;
}

}  // namespace tutti::bench
