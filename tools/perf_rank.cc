// The ranks of a benchmark have no other channel than the collectives that it measures: what one rank knows (a number
// of iterations, a time, a count of wrong elements) reaches the others through tiny all-reduces.
#include "tools/perf_rank.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "base/assert.h"
#include "tools/bound.h"
#include "tools/perf_data.h"

namespace tutti::tool {
namespace {

constexpr double kSettleUs = 100'000;
constexpr double kTargetUs = 200'000;  // of the timed calls together
constexpr std::int64_t kMinIterations = 5;
constexpr std::int64_t kMaxIterations = 2000;
constexpr std::size_t kGuardBytes = 64;  // behind each buffer's elements; must not change
constexpr std::byte kGuard{0xa5};
constexpr std::size_t kAlignment = 4096;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};

// A user's buffer: from the heap, or from the library's allocator.
class Buffer {
 public:
  static Result<Buffer> create(Communicator& communicator, MemoryKind kind, std::size_t bytes) {
    Buffer buffer;
    if (kind == MemoryKind::kRegistered) {
      Result<Memory> memory = communicator.allocate(bytes);
      if (!memory) return memory.error();
      buffer.registered_ = std::move(*memory);
      buffer.data_ = buffer.registered_.data();
    } else {
      const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      buffer.plain_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
      if (!buffer.plain_) {
        return Error{.code = ErrorCode::kSystem,
                     .message = "no memory for a buffer of " + std::to_string(bytes) + " bytes"};
      }
      buffer.data_ = buffer.plain_.get();
    }
    return buffer;
  }
  std::byte* data() const { return data_; }

 private:
  Memory registered_;
  std::unique_ptr<std::byte, Free> plain_;
  std::byte* data_ = nullptr;
};

// What one row measures.
struct Case {
  DataType type;
  ReduceOp op;
  std::uint64_t count;
  std::size_t bytes;
  bool in_place;
};

class Sweep {
 public:
  Sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report)
      : communicator_(communicator), options_(options), report_(report), bound_(communicator.size()) {
    TUTTI_ASSERT((report != nullptr) == (communicator.rank() == 0));
  }

  Result<std::uint64_t> run();

 private:
  Status allocate_buffers();
  Status run_row(DataType type, ReduceOp op, std::uint64_t count);
  Result<PerfMeasurement> measure(const Case& one, const DataPattern& pattern);
  void prepare(const Case& one, const DataPattern& pattern);
  Status call(const Case& one, const DataPattern& pattern);
  std::uint64_t count_wrong(const Case& one, const DataPattern& pattern) const;
  Result<double> warm_up(const Case& one, const DataPattern& pattern);
  Result<std::int64_t> agree_on_iterations(double call_us);
  Result<double> time_calls(const Case& one, const DataPattern& pattern, std::int64_t iterations);
  Status barrier();
  Status settle();
  template <class Number>
  Result<Number> reduce_number(Number number, DataType type, ReduceOp op);

  Communicator& communicator_;
  const PerfOptions& options_;
  PerfReport* const report_;
  BoundMeter bound_;
  Buffer input_;
  Buffer output_;
  std::uint64_t wrong_ = 0;  // so far, the same on all ranks
};

template <class Number>
Result<Number> Sweep::reduce_number(Number number, DataType type, ReduceOp op) {
  Number result{};
  TUTTI_TRY(communicator_.all_reduce(&number, &result, 1, type, op));
  return result;
}

Status Sweep::barrier() {
  const Result<std::int32_t> all = reduce_number(std::int32_t{1}, DataType::kInt32, ReduceOp::kSum);
  if (!all) return all.error();
  return {};
}

Status Sweep::allocate_buffers() {
  std::size_t bytes = 0;
  for (DataType type : options_.types) {
    const std::vector<std::uint64_t> counts = sweep_counts(options_, type);
    bytes = std::max(bytes, *std::max_element(counts.begin(), counts.end()) * size_of(type));
  }
  for (Buffer* buffer : {&input_, &output_}) {
    Result<Buffer> made = Buffer::create(communicator_, options_.memory, bytes + kGuardBytes);
    if (!made) return made.error();
    *buffer = std::move(*made);
    std::memset(buffer->data(), 0, bytes + kGuardBytes);  // pages are taken now, not in a timed call
  }
  return {};
}

// The scheduler moves ranks about when a job starts; what is timed meanwhile says nothing.
Status Sweep::settle() {
  const double end_us = now_us() + kSettleUs;
  for (bool over = false; !over;) {
    for (int call = 0; call < 50; ++call) TUTTI_TRY(barrier());
    const bool mine = communicator_.rank() == 0 && now_us() >= end_us;
    const Result<std::int32_t> all = reduce_number(std::int32_t{mine ? 1 : 0}, DataType::kInt32, ReduceOp::kMax);
    if (!all) return all.error();
    over = *all != 0;
  }
  return {};
}

Result<std::uint64_t> Sweep::run() {
  TUTTI_TRY(allocate_buffers());
  TUTTI_TRY(settle());
  if (report_ != nullptr) TUTTI_TRY(report_->print_header());
  for (DataType type : options_.types) {
    for (ReduceOp op : options_.ops) {
      for (std::uint64_t count : sweep_counts(options_, type)) TUTTI_TRY(run_row(type, op, count));
    }
  }
  if (report_ != nullptr) TUTTI_TRY(report_->print_footer());
  return wrong_;
}

Status Sweep::run_row(DataType type, ReduceOp op, std::uint64_t count) {
  PerfRow row;
  row.type = type;
  row.op = op;
  row.count = count;
  row.algorithm = options_.algorithm == Algorithm::kAuto
                      ? communicator_.auto_algorithm(CollectiveKind::kAllReduce, count, type)
                      : options_.algorithm;
  // The others wait in the barrier, asleep: the bound has the machine's cores to itself.
  if (report_ != nullptr) row.bound_us = bound_.measure_us(type, op, count);
  TUTTI_TRY(barrier());
  const DataPattern pattern(type, op, communicator_.size());
  for (const bool in_place : {false, true}) {
    if (in_place ? !options_.in_place : !options_.out_of_place) continue;
    const Case one{.type = type, .op = op, .count = count, .bytes = count * size_of(type), .in_place = in_place};
    Result<PerfMeasurement> measurement = measure(one, pattern);
    if (!measurement) return measurement.error();
    (in_place ? row.in_place : row.out_of_place) = *measurement;
  }
  return report_ != nullptr ? report_->add(row) : Status();
}

// Checked call, warm-up, timed calls, check. Out of place the last timed call's own result is checked; in place the
// timed calls feed on their results, so one more call on fresh inputs is.
Result<PerfMeasurement> Sweep::measure(const Case& one, const DataPattern& pattern) {
  std::uint64_t wrong = 0;
  prepare(one, pattern);
  if (options_.check) {
    TUTTI_TRY(call(one, pattern));
    wrong += count_wrong(one, pattern);
  }
  const Result<double> call_us = warm_up(one, pattern);
  if (!call_us) return call_us.error();
  const Result<std::int64_t> iterations = agree_on_iterations(*call_us);
  if (!iterations) return iterations.error();
  const Result<double> time_us = time_calls(one, pattern, *iterations);
  if (!time_us) return time_us.error();
  PerfMeasurement measurement{.time_us = *time_us, .iterations = *iterations, .wrong = {}};
  if (options_.check) {
    if (one.in_place) {
      prepare(one, pattern);
      TUTTI_TRY(call(one, pattern));
    }
    wrong += count_wrong(one, pattern);
    const Result<std::int64_t> total =
        reduce_number(static_cast<std::int64_t>(wrong), DataType::kInt64, ReduceOp::kSum);
    if (!total) return total.error();
    measurement.wrong = static_cast<std::uint64_t>(*total);
    wrong_ += *measurement.wrong;
  }
  return measurement;
}

void Sweep::prepare(const Case& one, const DataPattern& pattern) {
  pattern.fill_input(communicator_.rank(), one.count, one.in_place ? output_.data() : input_.data());
  if (!one.in_place) std::memset(output_.data(), static_cast<int>(kGuard), one.bytes);
  for (const Buffer* buffer : {&input_, &output_}) {
    std::memset(buffer->data() + one.bytes, static_cast<int>(kGuard), kGuardBytes);
  }
}

Status Sweep::call(const Case& one, const DataPattern& pattern) {
  const CallOptions extras{
      .algorithm = options_.algorithm, .scale = pattern.scale(communicator_.rank()), .timeout = options_.timeout};
  return communicator_.all_reduce(one.in_place ? output_.data() : input_.data(), output_.data(), one.count, one.type,
                                  one.op, extras);
}

std::uint64_t Sweep::count_wrong(const Case& one, const DataPattern& pattern) const {
  std::uint64_t wrong = pattern.count_wrong_result(one.count, output_.data());
  if (!one.in_place) wrong += pattern.count_wrong_input(communicator_.rank(), one.count, input_.data());
  for (const Buffer* buffer : {&input_, &output_}) {
    const std::byte* const guard = buffer->data() + one.bytes;
    wrong +=
        static_cast<std::uint64_t>(std::count_if(guard, guard + kGuardBytes, [](std::byte b) { return b != kGuard; }));
  }
  return wrong;
}

// Microseconds of a call here, without the first one where there are more.
Result<double> Sweep::warm_up(const Case& one, const DataPattern& pattern) {
  const bool estimate = options_.iterations == 0;
  const std::int64_t calls = std::max<std::int64_t>(options_.warmup_iterations, estimate ? 1 : 0);
  double start_us = now_us();
  for (std::int64_t i = 0; i < calls; ++i) {
    TUTTI_TRY(call(one, pattern));
    if (i == 0 && calls > 1) start_us = now_us();
  }
  return (now_us() - start_us) / static_cast<double>(std::max<std::int64_t>(1, calls - 1));
}

// Rank 0's estimate decides: the others bring 0 to the maximum.
Result<std::int64_t> Sweep::agree_on_iterations(double call_us) {
  if (options_.iterations > 0) return options_.iterations;
  std::int64_t wish = 0;
  if (communicator_.rank() == 0) {
    const double calls = std::ceil(kTargetUs / std::max(call_us, 0.01));
    wish = static_cast<std::int64_t>(
        std::clamp(calls, static_cast<double>(kMinIterations), static_cast<double>(kMaxIterations)));
  }
  return reduce_number(wish, DataType::kInt64, ReduceOp::kMax);
}

Result<double> Sweep::time_calls(const Case& one, const DataPattern& pattern, std::int64_t iterations) {
  TUTTI_TRY(barrier());
  const double start_us = now_us();
  for (std::int64_t i = 0; i < iterations; ++i) TUTTI_TRY(call(one, pattern));
  const double mean_us = (now_us() - start_us) / static_cast<double>(iterations);
  return reduce_number(mean_us, DataType::kFloat64, ReduceOp::kMax);
}

}  // namespace

Result<std::uint64_t> run_sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report) {
  return Sweep(communicator, options, report).run();
}

}  // namespace tutti::tool
