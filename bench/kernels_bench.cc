// Benchmark of the reduction kernels, compared with memcpy. Each benchmark has one shape (sources -> destinations,
// bytes per buffer). Counters:
//   GBps         bytes that the kernel loads and stores, in 1e9 bytes per second
//   memcpy_GBps  the same for a memcpy from the first half to the second half of the memory of these buffers. It runs
//                in turn with the kernel, and moves as many bytes with about the same share of them in each cache
//   ratio        GBps / memcpy_GBps
// The counters do not include reading a cache line before it is overwritten, which a memcpy of this size may avoid.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/reduce.h"

namespace {

using tutti::DataType;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kCacheLine = 64;

// Buffers in one zeroed block of memory, with a few cache lines between them, so that equal offsets in different
// buffers do not use the same cache set.
class Buffers {
 public:
  Buffers(std::size_t buffer_count, std::size_t bytes)
      : buffer_count_(buffer_count), stride_(bytes + 5 * kCacheLine), memory_(buffer_count * stride_ + kCacheLine) {
    void* start = memory_.data();
    std::size_t room = memory_.size();
    std::align(kCacheLine, buffer_count * stride_, start, room);
    start_ = static_cast<std::byte*>(start);
  }

  std::byte* operator[](std::size_t index) const { return start_ + index * stride_; }
  std::byte* middle() const { return start_ + buffer_count_ * stride_ / 2; }

 private:
  std::size_t buffer_count_;
  std::size_t stride_;
  std::vector<std::byte> memory_;
  std::byte* start_;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Benchmark arguments: number of sources, number of destinations, bytes per buffer.
void sum(benchmark::State& state, DataType type) {
  const auto source_count = static_cast<std::size_t>(state.range(0));
  const auto destination_count = static_cast<std::size_t>(state.range(1));
  const auto bytes = static_cast<std::size_t>(state.range(2));
  const Buffers buffers(source_count + destination_count, bytes);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
  for (std::size_t i = 0; i < source_count; ++i) sources.push_back(buffers[i]);
  for (std::size_t i = 0; i < destination_count; ++i) destinations.push_back(buffers[source_count + i]);
  const tutti::kernels::Reduction reduction{.type = type, .op = tutti::ReduceOp::kSum, .scale = {}};
  const std::size_t count = bytes / tutti::size_of(type);
  const std::size_t total_bytes = (source_count + destination_count) * bytes;
  // Enough calls between two readings of the clock, so that the time of the reading is negligible.
  const std::size_t calls = 1 + (std::size_t{4} << 20) / bytes;

  double kernel_s = 0;
  double copy_s = 0;
  for (auto _ : state) {
    const auto kernel_start = Clock::now();
    for (std::size_t call = 0; call < calls; ++call) {
      tutti::kernels::reduce(reduction, sources, destinations, count);
      benchmark::ClobberMemory();
    }
    kernel_s += seconds_since(kernel_start);
    const auto copy_start = Clock::now();
    for (std::size_t call = 0; call < calls; ++call) {
      std::memcpy(buffers.middle(), buffers[0], total_bytes / 2);
      benchmark::ClobberMemory();
    }
    copy_s += seconds_since(copy_start);
  }
  const double moved = static_cast<double>(state.iterations()) * static_cast<double>(calls * total_bytes);
  state.counters["GBps"] = moved / kernel_s / 1e9;
  state.counters["memcpy_GBps"] = moved / copy_s / 1e9;
  state.counters["ratio"] = copy_s / kernel_s;
  state.SetLabel(tutti::kernels::target_name());
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"sources", "destinations", "bytes"});
  for (const std::int64_t bytes : {64 << 10, 1 << 20, 64 << 20}) {
    for (const auto& [sources, destinations] : {std::pair{2, 1}, {2, 2}, {4, 4}, {8, 8}}) {
      benchmark->Args({sources, destinations, bytes});
    }
  }
}

BENCHMARK_CAPTURE(sum, float32, DataType::kFloat32)->Apply(shapes);
BENCHMARK_CAPTURE(sum, bfloat16, DataType::kBfloat16)->Apply(shapes);
BENCHMARK_CAPTURE(sum, float8_e4m3, DataType::kFloat8E4M3)->Apply(shapes);
BENCHMARK_CAPTURE(sum, float8_e5m2, DataType::kFloat8E5M2)->Apply(shapes);

}  // namespace
