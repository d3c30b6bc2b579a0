#include "bench/gpu/kernels_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/assert.h"
#include "bench/gpu/values.h"
#include "kernels/cpu/reduce.h"
#include "kernels/device/plain_work.h"

namespace tutti::bench {
namespace {

constexpr std::size_t kMostSources = 4;
constexpr std::size_t kMostDestinations = 2;
constexpr double kBar = 0.92;            // goal: at least this part of the rate of cuMemcpyDtoDAsync
constexpr std::size_t kWordBytes = 16;   // unit of tutti_copy, which copies whole units only
constexpr unsigned kPasses = 5;          // Rounds::passes: how often the measured work runs between two timing events
constexpr unsigned kMostBlocksOfSm = 8;  // limit of the powers of two that best_grid() tries, in blocks per SM
constexpr std::array<unsigned, 3> kThreads = {128, 256, 512};
constexpr std::array<DataType, 6> kTypes = {DataType::kFloat64,  DataType::kFloat32,    DataType::kFloat16,
                                            DataType::kBfloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2};

struct Shape {
  DataType type = DataType::kFloat32;
  std::size_t sources = 1;
  std::size_t destinations = 1;
  std::size_t bytes = 0;  // bytes of each buffer

  // Bytes read and written by one launch.
  double moved() const { return static_cast<double>((sources + destinations) * bytes); }
};

// Sources and destinations of the largest size; smaller shapes use the beginning of each buffer.
struct Buffers {
  std::vector<cuda::DeviceMemory> sources;
  std::vector<cuda::DeviceMemory> destinations;
};

Result<Buffers> allocate(const Gpu& gpu, std::size_t bytes) {
  Buffers buffers;
  for (auto& [list, count] : {std::pair{&buffers.sources, kMostSources}, {&buffers.destinations, kMostDestinations}}) {
    for (std::size_t i = 0; i < count; ++i) {
      auto memory = gpu.allocate(bytes);
      if (!memory) return std::move(memory).error();
      list->push_back(*std::move(memory));
    }
  }
  return buffers;
}

double rate_of(double bytes, double us) { return bytes / us / 1000; }  // gigabytes per second

// Finds the fastest grid for a kernel. It tries block sizes kThreads, each with numbers of blocks per multiprocessor
// that are powers of two, and with as many blocks as can be resident at the same time.
Result<Grid> best_grid(const Gpu& gpu, cuda::CUfunction kernel, const std::function<Status(Grid)>& launch) {
  std::vector<Grid> grids;
  for (const unsigned threads : kThreads) {
    const Result<unsigned> fitting = gpu.blocks_at_once(kernel, threads);
    TUTTI_TRY(fitting);
    const auto multiprocessors = static_cast<unsigned>(gpu.multiprocessors());
    for (unsigned each = 1; each <= kMostBlocksOfSm && each * multiprocessors < *fitting; each *= 2) {
      grids.push_back({each * multiprocessors, threads});
    }
    if (*fitting > 0) grids.push_back({*fitting, threads});
  }
  std::vector<std::function<Status()>> bodies;
  for (const Grid& grid : grids) bodies.emplace_back([&launch, grid] { return launch(grid); });
  const auto samples = gpu.measure({.rounds = 3, .passes = 2}, bodies);
  if (!samples) return samples.error();
  const auto best = std::min_element(samples->begin(), samples->end(), [](const Samples& one, const Samples& other) {
    return one.median() < other.median();
  });
  TUTTI_ASSERT(best != samples->end());
  return grids[static_cast<std::size_t>(best - samples->begin())];
}

std::string text_of(Grid grid) { return fmt::format("{} x {}", grid.blocks, grid.threads); }

std::string text_of_size(std::size_t bytes) {
  return bytes >= std::size_t{1} << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", bytes >> 10);
}

// Compares kernels with the driver's copy of one buffer. Each run() measures one kernel and the copy in turn.
class Comparison {
 public:
  Comparison(Gpu& gpu, const KernelsOptions& options, const Buffers& buffers)
      : gpu_(gpu), options_(options), buffers_(buffers) {}

  // Measures the driver's copy and the kernel, with the best grid for it, and returns the row of the report.
  Result<Row> run(std::string name, const Shape& shape, cuda::CUfunction kernel,
                  const std::function<Status(Grid)>& launch) const {
    const Result<Grid> grid = best_grid(gpu_, kernel, launch);
    TUTTI_TRY(grid);
    const std::array<std::function<Status()>, 2> bodies = {[&] { return driver_copy(shape.bytes); },
                                                           [&, best = *grid] { return launch(best); }};
    Rounds rounds = options_.rounds;
    rounds.passes = kPasses;
    const auto samples = gpu_.measure(rounds, bodies);
    if (!samples) return samples.error();
    const double copy = rate_of(2.0 * static_cast<double>(shape.bytes), (*samples)[0].median());
    const double rate = rate_of(shape.moved(), (*samples)[1].median());
    return Row{{"kernel", std::move(name)},
               {"type", std::string(to_string(shape.type))},
               {"sources", shape.sources},
               {"destinations", shape.destinations},
               {"size", text_of_size(shape.bytes)},
               {"bytes", shape.bytes},
               {"grid", text_of(*grid)},
               {"us", (*samples)[1].median()},
               {"GB/s", rate},
               {"copy GB/s", copy},
               {"share", rate / copy},
               {"92 %", rate / copy >= kBar ? "met" : "missed"},
               {"samples_us", (*samples)[1].us}};
  }

  Status driver_copy(std::size_t bytes) const {
    return gpu_.copy(buffers_.destinations[0].address(), buffers_.sources[0].address(), bytes);
  }

 private:
  Gpu& gpu_;
  const KernelsOptions& options_;
  const Buffers& buffers_;
};

device::PlainWork plain_work(const Shape& shape, const Buffers& buffers) {
  device::PlainWork work{};
  for (std::size_t i = 0; i < shape.sources; ++i) work.sources[i] = pointer_to(buffers.sources[i]);
  for (std::size_t i = 0; i < shape.destinations; ++i) work.destinations[i] = pointer_to(buffers.destinations[i]);
  work.source_count = static_cast<std::uint32_t>(shape.sources);
  work.destination_count = static_cast<std::uint32_t>(shape.destinations);
  work.count = shape.bytes / size_of(shape.type);
  work.how = {.type = shape.type, .op = ReduceOp::kSum};
  work.mode = device::ReduceMode::kFast;
  return work;
}

// The expected result for one period: the sum that the host's reduction kernel computes from the periods of the
// sources.
Period reduced(const Shape& shape, const std::vector<Period>& periods) {
  std::vector<const std::byte*> sources;
  for (std::size_t i = 0; i < shape.sources; ++i) sources.push_back(periods[i].data());
  Period result(kPeriodBytes);
  std::byte* destination = result.data();
  kernels::reduce({.type = shape.type, .op = ReduceOp::kSum, .scale = {}}, sources, std::span(&destination, 1),
                  kPeriodBytes / size_of(shape.type));
  return result;
}

// Fills the destinations with a constant byte, calls `launch`, and compares the destinations with `expected`. Returns
// the number of wrong destinations.
Result<std::uint64_t> count_wrong(Gpu& gpu, const KernelsOptions& options, const Buffers& buffers, const Shape& shape,
                                  const Period& expected, const std::function<Status()>& launch) {
  const cuda::DriverApi& api = gpu.driver().api();
  for (const cuda::DeviceMemory& memory : buffers.destinations) {
    TUTTI_TRY(gpu.driver().check(api.memset_d8_async(memory.address(), 0x5A, memory.bytes(), gpu.stream()),
                                 "cuMemsetD8Async"));
  }
  TUTTI_TRY(launch());
  if (options.corrupt) {
    TUTTI_TRY(gpu.driver().check(
        api.memset_d8_async(buffers.destinations[0].address() + shape.bytes / 2, 0x77, 1, gpu.stream()),
        "cuMemsetD8Async"));
  }
  TUTTI_TRY(gpu.synchronize());
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < shape.destinations; ++i) {
    const Result<std::uint64_t> bytes = wrong_bytes(gpu, buffers.destinations[i].address(), shape.bytes, expected);
    TUTTI_TRY(bytes);
    wrong += *bytes > 0 ? 1 : 0;
  }
  return wrong;
}

Section driver_section(const std::vector<CopyRate>& copies) {
  Section section{.name = "driver_copy",
                  .title = "A copy by the driver",
                  .notes = {"cuMemcpyDtoDAsync from one buffer to another; the rate counts bytes read and written."},
                  .columns = {"size", "GB/s"},
                  .rows = {}};
  for (const CopyRate& copy : copies) {
    section.rows.push_back({{"size", text_of_size(copy.bytes)}, {"bytes", copy.bytes}, {"GB/s", copy.gigabytes_per_s}});
  }
  return section;
}

Result<std::vector<CopyRate>> measure_driver(const Gpu& gpu, const KernelsOptions& options,
                                             const Comparison& comparison) {
  std::vector<CopyRate> copies;
  for (const std::size_t bytes : options.sizes) {
    const std::array<std::function<Status()>, 1> body = {[&] { return comparison.driver_copy(bytes); }};
    Rounds rounds = options.rounds;
    rounds.passes = kPasses;
    const auto samples = gpu.measure(rounds, body);
    if (!samples) return samples.error();
    copies.push_back({bytes, rate_of(2.0 * static_cast<double>(bytes), samples->front().median())});
  }
  return copies;
}

Status measure_copy(Gpu& gpu, const KernelsOptions& options, const Buffers& buffers, const Comparison& comparison,
                    KernelsResult& result) {
  const auto kernel = gpu.kernel("tutti_copy");
  TUTTI_TRY(kernel);
  const Period period = random_period(DataType::kUint64, 1);
  TUTTI_TRY(fill(gpu, buffers.sources[0], period));
  for (const std::size_t bytes : options.sizes) {
    device::CopyWork work{pointer_to(buffers.sources[0]), pointer_to(buffers.destinations[0]), bytes / kWordBytes};
    const auto launch = [&](Grid grid) { return gpu.launch(*kernel, grid, &work, gpu.stream()); };
    const Shape shape{.type = DataType::kUint8, .bytes = bytes};
    const Result<Row> row = comparison.run("tutti_copy", shape, *kernel, launch);
    TUTTI_TRY(row);
    result.sections.back().rows.push_back(*row);
    const auto wrong = count_wrong(gpu, options, buffers, shape, period, [&] { return launch({7, 96}); });
    TUTTI_TRY(wrong);
    result.wrong += *wrong;
  }
  return {};
}

Status measure_sums(Gpu& gpu, const KernelsOptions& options, const Buffers& buffers, DataType type,
                    const Comparison& comparison, KernelsResult& result) {
  const auto kernel = gpu.kernel("tutti_reduce");
  TUTTI_TRY(kernel);
  std::vector<Period> periods;
  for (std::size_t i = 0; i < kMostSources; ++i) {
    periods.push_back(random_period(type, 10 * static_cast<std::uint64_t>(type) + i));
    TUTTI_TRY(fill(gpu, buffers.sources[i], periods.back()));
  }
  for (const auto& [sources, destinations] : {std::pair<std::size_t, std::size_t>{2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
    for (const std::size_t bytes : options.sizes) {
      const Shape shape{type, sources, destinations, bytes};
      device::PlainWork work = plain_work(shape, buffers);
      const auto launch = [&](Grid grid) { return gpu.launch(*kernel, grid, &work, gpu.stream()); };
      const Result<Row> row = comparison.run("tutti_reduce", shape, *kernel, launch);
      TUTTI_TRY(row);
      result.sections.back().rows.push_back(*row);
      const auto wrong = count_wrong(gpu, options, buffers, shape, reduced(shape, periods), [&] {
        return launch({7, 96});
      });
      TUTTI_TRY(wrong);
      result.wrong += *wrong;
    }
  }
  return {};
}

Status measure_all(Gpu& gpu, const KernelsOptions& options, const Buffers& buffers, const Comparison& comparison,
                   KernelsResult& result) {
  TUTTI_TRY(measure_copy(gpu, options, buffers, comparison, result));
  for (const DataType type : kTypes) TUTTI_TRY(measure_sums(gpu, options, buffers, type, comparison, result));
  return {};
}

}  // namespace

Result<KernelsResult> measure_kernels(Gpu& gpu, const KernelsOptions& options) {
  const std::size_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  const Result<Buffers> buffers = allocate(gpu, largest);
  if (!buffers) return buffers.error();
  const Comparison comparison(gpu, options, *buffers);
  KernelsResult result;
  auto copies = measure_driver(gpu, options, comparison);
  if (!copies) return copies.error();
  result.copies = *std::move(copies);
  result.sections.push_back(driver_section(result.copies));
  result.sections.push_back(
      {.name = "kernels",
       .title = "Kernels compared with the driver's copy",
       .notes = {fmt::format(
           "Medians; both run in turn in every round. Share: rate divided by the rate of the driver's "
           "copy of one buffer (goal: {:.0f} %). Grid: blocks x threads, the best of a search. Every "
           "byte of a result is compared with the result of the host's kernels.",
           100 * kBar)},
       .columns = {"kernel", "type", "sources", "destinations", "size", "grid", "us", "GB/s", "copy GB/s", "share",
                   "92 %"},
       .rows = {}});
  const Status measured = measure_all(gpu, options, *buffers, comparison, result);
  if (!measured && options.smoke && result.sections.back().rows.empty()) {
    result.sections.back().notes = {"Not run, because the kernels are not available: " + measured.error().message};
  } else if (!measured) {
    return measured.error();
  }
  return result;
}

}  // namespace tutti::bench
