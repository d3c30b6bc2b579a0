// The ranks of a benchmark communicate only through the communicator that they measure. A value of one rank (a number
// of iterations, a time, a count of wrong elements, its memory) reaches the others through small collectives.
#include "tools/perf/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/config.h"
#include "device/native/device_calls.h"
#include "tools/perf/buffer.h"
#include "tools/perf/collective.h"
#include "tools/perf/data.h"
#include "tools/perf/memory.h"
#include "tools/perf/reference.h"
#include "tutti/group.h"

namespace tutti::tool {
namespace {

constexpr double kSettleUs = 100'000;
constexpr double kTargetUs = 200'000;  // intended duration of all timed calls of one measurement
constexpr std::int64_t kMinIterations = 5;
constexpr std::int64_t kMaxIterations = 2000;
constexpr std::size_t kGuardBytes = 64;  // bytes behind each buffer's elements, which a call must not change
constexpr std::byte kGuard{0xa5};
constexpr std::int32_t kLateRanks = 8;         // the check of the barrier lets at most this many ranks enter late
constexpr std::chrono::milliseconds kLate{1};  // a late rank enters the barrier this much later than the other ranks

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Number>
Result<Number> reduce_number(Communicator& communicator, Number number, DataType type, ReduceOp op) {
  Number result{};
  TUTTI_TRY(communicator.all_reduce(&number, &result, 1, type, op));
  return result;
}

// One measurement (out of place or in place) of a row of the table, and this rank's part of its call.
struct Case {
  DataType type;
  ReduceOp op;
  bool in_place;
  RankCall call;

  std::size_t bytes(std::uint64_t elements) const { return elements * size_of(type); }
  std::size_t input_bytes() const { return in_place ? 0 : bytes(call.input_elements); }
  std::size_t output_bytes() const {  // in place: the size of the buffer that holds both input and output
    if (!in_place) return bytes(call.output_elements);
    return bytes(
        std::max(call.in_place_input_at + call.input_elements, call.in_place_output_at + call.output_elements));
  }
};

// The sizes of a rank's buffers, without their guards.
struct BufferBytes {
  std::size_t input = 0;
  std::size_t output = 0;
};

// A range of elements of the input that a call must not change; `first` is an index into the input.
struct UntouchedRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

std::array<UntouchedRange, 2> untouched_ranges(const Case& one) {
  const RankCall& call = one.call;
  if (!one.in_place || call.output_elements == 0) return {UntouchedRange{.first = 0, .count = call.input_elements}};
  const std::uint64_t start = call.in_place_input_at;
  const std::uint64_t end = start + call.input_elements;
  const std::uint64_t before = std::clamp(call.in_place_output_at, start, end);
  const std::uint64_t behind = std::clamp(call.in_place_output_at + call.output_elements, start, end);
  return {UntouchedRange{.first = 0, .count = before - start},
          UntouchedRange{.first = behind - start, .count = end - behind}};
}

class Sweep {
 public:
  Sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report)
      : communicator_(communicator), options_(options), report_(report), reference_(communicator.size()) {
    TUTTI_ASSERT((report != nullptr) == (communicator.rank() == 0));
  }

  Result<std::uint64_t> run();

 private:
  Status open_device();
  BufferBytes buffers_of(const PerfOptions& options) const;
  Status limit_to_memory();
  Status allocate_buffers();
  Status run_row(DataType type, ReduceOp op, std::uint64_t elements);
  Algorithm algorithm_of(DataType type, std::uint64_t elements) const;
  Result<PerfMeasurement> measure(const Case& one, const DataPattern& pattern);
  Result<PerfMeasurement> measure_checked(const Case& one, const DataPattern& pattern);
  Case make_case(DataType type, ReduceOp op, std::uint64_t elements, bool in_place) const;
  Status prepare(const Case& one, const DataPattern& pattern);
  Status finish();  // waits for the calls on the GPU, and returns their errors; does nothing without a GPU
  Status fetch();   // as finish(), and then copies the buffers from the GPU to the host
  Status call(const Case& one, const DataPattern& pattern);
  Status exchange_with_partner(const RankCall& side, const void* input, void* output, DataType type,
                               const CallOptions& extras);
  void corrupt(const Case& one);
  std::uint64_t count_wrong(const Case& one, const DataPattern& pattern) const;
  Result<std::optional<std::uint64_t>> check_barrier(const Case& one, const DataPattern& pattern);
  std::byte* input_of(const Case& one) const { return input_buffer(one).host() + input_at(one); }
  std::byte* output_of(const Case& one) const { return output_.host() + output_at(one); }
  const Buffer& input_buffer(const Case& one) const { return one.in_place ? output_ : input_; }
  static std::size_t input_at(const Case& one) { return one.in_place ? one.bytes(one.call.in_place_input_at) : 0; }
  static std::size_t output_at(const Case& one) { return one.in_place ? one.bytes(one.call.in_place_output_at) : 0; }
  Result<double> warm_up(const Case& one, const DataPattern& pattern);
  Result<std::int64_t> agree_on_iterations(double call_us);
  Result<double> time_calls(const Case& one, const DataPattern& pattern, std::int64_t iterations);
  std::int32_t rank() const { return communicator_.rank(); }
  Status barrier();
  Status settle();

  Communicator& communicator_;
  // The options of the run, but limit_to_memory() lowers max_bytes if larger messages do not fit in memory.
  PerfOptions options_;
  PerfReport* const report_;
  ReferenceMeter reference_;
  std::unique_ptr<PerfDevice> device_;  // null unless the buffers are GPU memory
  Group group_;
  Buffer input_;
  Buffer output_;
  std::uint64_t wrong_ = 0;  // sum of PerfMeasurement::wrong so far, the same on all ranks
  std::uint64_t calls_ = 0;  // calls of the measured collective so far
};

Status Sweep::barrier() {
  const Result<std::int32_t> all = reduce_number(communicator_, std::int32_t{1}, DataType::kInt32, ReduceOp::kSum);
  if (!all) return all.error();
  return {};
}

BufferBytes Sweep::buffers_of(const PerfOptions& options) const {
  BufferBytes bytes;
  for (DataType type : options.types) {
    for (std::uint64_t elements : sweep_elements(options, type, communicator_.size())) {
      for (const bool in_place : {false, true}) {
        if (in_place && !options.in_place) continue;
        const Case one = make_case(type, options.ops.front(), elements, in_place);
        bytes.input = std::max(bytes.input, one.input_bytes());
        bytes.output = std::max(bytes.output, one.output_bytes());
      }
    }
  }
  return bytes;
}

Status Sweep::limit_to_memory() {
  const auto needed = [this](std::uint64_t size) {
    PerfOptions smaller = options_;
    smaller.max_bytes = size;
    const BufferBytes bytes = buffers_of(smaller);
    return std::uint64_t{bytes.input} + bytes.output + 2 * kGuardBytes;
  };
  const Result<MemoryFit> fit = fit_in_memory(communicator_, sweep_sizes(options_), needed);
  if (!fit) return fit.error();
  if (!fit->nothing_fits.empty()) {  // only rank 0's error has a message; errors without one are not printed
    return Error{.code = ErrorCode::kSystem, .message = rank() == 0 ? fit->nothing_fits : std::string()};
  }
  options_.max_bytes = fit->max_bytes;
  if (report_ != nullptr) report_->leave_out(fit->left_out);
  return {};
}

Status Sweep::allocate_buffers() {
  const BufferBytes wanted = buffers_of(options_);
  for (Buffer* buffer : {&input_, &output_}) {
    const std::size_t bytes = (buffer == &input_ ? wanted.input : wanted.output) + kGuardBytes;
    Result<Buffer> made = Buffer::create(communicator_, options_.memory, device_.get(), bytes);
    if (!made) return made.error();
    *buffer = std::move(*made);
    std::memset(buffer->host(), 0, bytes);  // makes the system allocate the pages now, not in a timed call
  }
  return {};
}

// Runs barriers for kSettleUs, because the scheduler moves ranks between cores when a job starts, and times that are
// measured meanwhile are not meaningful. Does nothing if the user requested 0 warm-up calls.
Status Sweep::settle() {
  if (options_.warmup_iterations == 0) return {};
  const double end_us = now_us() + kSettleUs;
  for (bool over = false; !over;) {
    for (int call = 0; call < 50; ++call) TUTTI_TRY(barrier());
    const bool mine = rank() == 0 && now_us() >= end_us;
    const Result<std::int32_t> all =
        reduce_number(communicator_, std::int32_t{mine ? 1 : 0}, DataType::kInt32, ReduceOp::kMax);
    if (!all) return all.error();
    over = *all != 0;
  }
  return {};
}

Status Sweep::open_device() {
  if (options_.memory != MemoryKind::kCuda) return {};
  auto driver = cuda::Driver::open();
  if (!driver) return driver.error();
  const Result<int> devices = (*driver)->device_count();
  if (!devices) return devices.error();
  auto device = PerfDevice::open(device_of(rank(), options_.ranks_per_gpu, *devices));
  if (!device) return device.error();
  device_ = std::move(*device);
  return {};
}

Result<std::uint64_t> Sweep::run() {
  TUTTI_TRY(open_device());
  TUTTI_TRY(limit_to_memory());
  TUTTI_TRY(allocate_buffers());
  TUTTI_TRY(settle());
  if (report_ != nullptr) TUTTI_TRY(report_->print_header());
  for (DataType type : options_.types) {
    for (ReduceOp op : options_.ops) {
      for (std::uint64_t elements : sweep_elements(options_, type, communicator_.size()))
        TUTTI_TRY(run_row(type, op, elements));
    }
  }
  if (report_ != nullptr) TUTTI_TRY(report_->print_footer());
  return wrong_;
}

Algorithm Sweep::algorithm_of(DataType type, std::uint64_t elements) const {
  if (options_.algorithm != Algorithm::kAuto) return options_.algorithm;
  const PerfCollective& collective = options_.collective;
  if (is_exchange(collective)) return Algorithm::kDirect;
  std::uint64_t count = shown_count(collective, communicator_.size(), elements);
  // Tutti selects the algorithm for blocks of different lengths by their mean length.
  if (collective.variable) count /= static_cast<std::uint64_t>(communicator_.size());
  return communicator_.auto_algorithm(collective.kind, count, type, device_ != nullptr);
}

Status Sweep::run_row(DataType type, ReduceOp op, std::uint64_t elements) {
  PerfRow row;
  row.type = type;
  row.op = op;
  row.elements = elements;
  row.algorithm = algorithm_of(type, elements);
  // Rank 0 measures the reference while the others wait in barrier(), where they soon sleep, so it can use all cores.
  if (report_ != nullptr && device_ == nullptr && has_reference(options_.collective, report_->job())) {
    row.reference_us = reference_.measure_us(type, op, elements);
  }
  TUTTI_TRY(barrier());
  // If the collective does not reduce, the values need not be small, so the pattern for kMax is used, because its
  // values differ more.
  const DataPattern pattern(type, adds(options_.collective) ? op : ReduceOp::kMax, communicator_.size());
  for (const bool in_place : {false, true}) {
    if (in_place ? !options_.in_place : !options_.out_of_place) continue;
    Result<PerfMeasurement> measurement = measure(make_case(type, op, elements, in_place), pattern);
    if (!measurement) return measurement.error();
    (in_place ? row.in_place : row.out_of_place) = *measurement;
  }
  return report_ != nullptr ? report_->add(row) : Status();
}

Result<PerfMeasurement> Sweep::measure(const Case& one, const DataPattern& pattern) {
  const std::uint64_t calls_before = calls_;
  const std::uint64_t on_device_before = detail::calls_on_device(communicator_);
  Result<PerfMeasurement> measurement = measure_checked(one, pattern);
  if (!measurement) return measurement;
  const std::uint64_t calls = (calls_ - calls_before) * messages_in_turn(options_.collective);
  measurement->on_devices = calls > 0 && detail::calls_on_device(communicator_) - on_device_before == calls;
  return measurement;
}

// Checks one call, makes the warm-up and timed calls, and checks again: barriers by check_barrier(), out of place the
// last timed call, in place one more, because timed calls use their own results as inputs. --check 0: no checks.
Result<PerfMeasurement> Sweep::measure_checked(const Case& one, const DataPattern& pattern) {
  std::uint64_t wrong = 0;
  TUTTI_TRY(prepare(one, pattern));
  if (options_.check) {
    TUTTI_TRY(call(one, pattern));
    TUTTI_TRY(fetch());
    corrupt(one);
    wrong += count_wrong(one, pattern);
    if (rank() == options_.corrupt) TUTTI_TRY(prepare(one, pattern));
  }
  const Result<double> call_us = warm_up(one, pattern);
  if (!call_us) return call_us.error();
  const Result<std::int64_t> iterations = agree_on_iterations(*call_us);
  if (!iterations) return iterations.error();
  const Result<double> time_us = time_calls(one, pattern, *iterations);
  if (!time_us) return time_us.error();
  PerfMeasurement measurement{.time_us = *time_us, .iterations = *iterations, .wrong = {}};
  if (!options_.check) return measurement;
  if (!has_buffers(options_.collective)) {
    const Result<std::optional<std::uint64_t>> early = check_barrier(one, pattern);
    if (!early) return early.error();
    if (!*early) return measurement;
    wrong += **early;
  }
  if (one.in_place) {
    TUTTI_TRY(prepare(one, pattern));
    TUTTI_TRY(call(one, pattern));
  }
  TUTTI_TRY(fetch());
  corrupt(one);
  wrong += count_wrong(one, pattern);
  const Result<std::int64_t> total =
      reduce_number(communicator_, static_cast<std::int64_t>(wrong), DataType::kInt64, ReduceOp::kSum);
  if (!total) return total.error();
  measurement.wrong = static_cast<std::uint64_t>(*total);
  wrong_ += *measurement.wrong;
  return measurement;
}

Case Sweep::make_case(DataType type, ReduceOp op, std::uint64_t elements, bool in_place) const {
  return {.type = type,
          .op = op,
          .in_place = in_place,
          .call = make_rank_call(options_.collective, rank(), communicator_.size(), options_.root, elements)};
}

Status Sweep::prepare(const Case& one, const DataPattern& pattern) {
  std::memset(output_.host(), static_cast<int>(kGuard), one.output_bytes() + kGuardBytes);
  pattern.fill_input(rank(), 0, one.call.input_elements, input_of(one));
  std::memset(input_.host() + one.input_bytes(), static_cast<int>(kGuard), kGuardBytes);
  TUTTI_TRY(input_.push());
  return output_.push();
}

Status Sweep::fetch() {
  TUTTI_TRY(finish());
  TUTTI_TRY(input_.pull());
  return output_.pull();
}

Status Sweep::finish() {
  if (device_ == nullptr) return {};
  TUTTI_TRY(device_->synchronize());
  return communicator_.async_status();
}

// Makes the measured call once. A rank passes null for a buffer that it does not have.
Status Sweep::call(const Case& one, const DataPattern& pattern) {
  const RankCall& side = one.call;
  ++calls_;
  const void* const input = side.input_elements > 0 ? input_buffer(one).data() + input_at(one) : nullptr;
  void* const output = side.output_elements > 0 ? output_.data() + output_at(one) : nullptr;
  CallOptions extras{.algorithm = options_.algorithm, .scale = pattern.scale(rank()), .timeout = options_.timeout};
  if (device_ != nullptr) extras.stream = device_->stream();
  if (options_.collective.ping_pong || options_.collective.one_way)
    return exchange_with_partner(side, input, output, one.type, extras);
  if (options_.collective.kind == CollectiveKind::kSendReceive) {
    const std::int32_t ranks = communicator_.size();
    TUTTI_TRY(group_.send(communicator_, input, side.count, one.type, (rank() + 1) % ranks, extras));
    TUTTI_TRY(group_.receive(communicator_, output, side.count, one.type, (rank() + ranks - 1) % ranks, extras));
    return group_.run();
  }
  return communicator_.run({.kind = options_.collective.kind,
                            .input = input,
                            .output = output,
                            .count = side.count,
                            .type = one.type,
                            .op = one.op,
                            .root = options_.root,
                            .variable = options_.collective.variable,
                            .input_counts = {.counts = side.input_counts},
                            .output_counts = {.counts = side.output_counts}},
                           extras);
}

// Exchanges messages with the partner, if there is one: the even rank sends, and then, if not one-way, the odd rank.
Status Sweep::exchange_with_partner(const RankCall& side, const void* input, void* output, DataType type,
                                    const CallOptions& extras) {
  const std::int32_t partner = partner_of(rank(), communicator_.size());
  if (partner < 0) return {};
  const bool begins = rank() < partner;
  if (begins) TUTTI_TRY(communicator_.send(input, side.count, type, partner, extras));
  if (begins && options_.collective.one_way) return {};
  TUTTI_TRY(communicator_.receive(output, side.count, type, partner, extras));
  if (begins || options_.collective.one_way) return {};
  return communicator_.send(input, side.count, type, partner, extras);
}

// On the rank that --corrupt names, flips a bit of the output (or, without one, of the input), to test the check.
void Sweep::corrupt(const Case& one) {
  if (rank() != options_.corrupt) return;
  if (one.call.output_elements > 0) {
    *output_of(one) ^= std::byte{1};
  } else if (one.call.input_elements > 0) {
    *input_of(one) ^= std::byte{1};
  }
}

std::uint64_t Sweep::count_wrong(const Case& one, const DataPattern& pattern) const {
  std::uint64_t wrong = 0;
  for (const ExpectedBlock& piece : one.call.expected) {
    const std::byte* const elements = output_of(one) + one.bytes(piece.output_at);
    wrong += piece.from == ExpectedBlock::kAllRanks
                 ? pattern.count_wrong_result(piece.input_at, piece.count, elements)
                 : pattern.count_wrong_input(piece.from, piece.input_at, piece.count, elements);
  }
  for (const UntouchedRange& part : untouched_ranges(one)) {
    wrong += pattern.count_wrong_input(rank(), part.first, part.count, input_of(one) + one.bytes(part.first));
  }
  for (const std::byte* guard : {input_.host() + one.input_bytes(), output_.host() + one.output_bytes()}) {
    wrong +=
        static_cast<std::uint64_t>(std::count_if(guard, guard + kGuardBytes, [](std::byte b) { return b != kGuard; }));
  }
  return wrong;
}

// Returns the number of barriers that this rank left before the last rank had entered them. Each of the first
// kLateRanks ranks enters one barrier late. Returns nothing for several machines, because their clocks cannot be
// compared.
Result<std::optional<std::uint64_t>> Sweep::check_barrier(const Case& one, const DataPattern& pattern) {
  if (communicator_.nodes() > 1) return std::optional<std::uint64_t>();
  std::uint64_t early = 0;
  for (std::int32_t late = 0; late < std::min(communicator_.size(), kLateRanks); ++late) {
    TUTTI_TRY(barrier());
    if (rank() == late) std::this_thread::sleep_for(kLate);
    const double entered_us = now_us();
    TUTTI_TRY(call(one, pattern));
    const double left_us = now_us();
    const Result<double> last_us = reduce_number(communicator_, entered_us, DataType::kFloat64, ReduceOp::kMax);
    if (!last_us) return last_us.error();
    if (left_us < *last_us) ++early;
  }
  return std::optional(early);
}

// Runs the warm-up calls. Returns the microseconds per call on this rank, without the first call if there are several.
Result<double> Sweep::warm_up(const Case& one, const DataPattern& pattern) {
  const bool estimate = options_.iterations == 0;
  const std::int64_t calls = std::max<std::int64_t>(options_.warmup_iterations, estimate ? 1 : 0);
  double start_us = now_us();
  for (std::int64_t i = 0; i < calls; ++i) {
    TUTTI_TRY(call(one, pattern));
    if (i == 0) TUTTI_TRY(finish());
    if (i == 0 && calls > 1) start_us = now_us();
  }
  TUTTI_TRY(finish());
  return (now_us() - start_us) / static_cast<double>(std::max<std::int64_t>(1, calls - 1));
}

// Returns --iters or, if that is 0, rank 0's estimate: the other ranks contribute 0 to the maximum.
Result<std::int64_t> Sweep::agree_on_iterations(double call_us) {
  if (options_.iterations > 0) return options_.iterations;
  std::int64_t iterations = 0;
  if (rank() == 0) {
    const double calls = std::ceil(kTargetUs / std::max(call_us, 0.01));
    iterations = static_cast<std::int64_t>(
        std::clamp(calls, static_cast<double>(kMinIterations), static_cast<double>(kMaxIterations)));
  }
  return reduce_number(communicator_, iterations, DataType::kInt64, ReduceOp::kMax);
}

Result<double> Sweep::time_calls(const Case& one, const DataPattern& pattern, std::int64_t iterations) {
  TUTTI_TRY(barrier());
  const double start_us = now_us();
  if (device_ != nullptr) TUTTI_TRY(device_->start_timer());
  for (std::int64_t i = 0; i < iterations; ++i) TUTTI_TRY(call(one, pattern));
  double spent_us = now_us() - start_us;
  if (device_ != nullptr) {  // the time between two CUDA events replaces the host's time
    const Result<double> measured_us = device_->stop_timer();
    if (!measured_us) return measured_us.error();
    spent_us = *measured_us;
    TUTTI_TRY(finish());
  }
  const double mean_us = spent_us / static_cast<double>(iterations * messages_in_turn(options_.collective));
  return reduce_number(communicator_, mean_us, DataType::kFloat64, ReduceOp::kMax);
}

}  // namespace

Result<std::string> agree_on_transport(Communicator& communicator) {
  // In `names`, combinations come after single transports, so the name with the highest index on any rank describes the
  // job. For example, a rank that is alone on its machine uses only "tcp", although the job uses shm and TCP ("mixed").
  std::vector<std::string> names(kTransportNames.begin(), kTransportNames.end());
  names.emplace_back("mixed");  // shared memory and TCP
  for (const TransportRow& row : kTransportTable) names.push_back(fmt::format("shm+{}", row.name));
  const auto place = std::find(names.begin(), names.end(), communicator.transport());
  TUTTI_ASSERT(place != names.end());
  const Result<std::int32_t> all =
      reduce_number(communicator, static_cast<std::int32_t>(place - names.begin()), DataType::kInt32, ReduceOp::kMax);
  return all ? Result<std::string>(names[static_cast<std::size_t>(*all)]) : all.error();
}

Result<std::uint64_t> run_sweep(Communicator& communicator, const PerfOptions& options, PerfReport* report) {
  return Sweep(communicator, options, report).run();
}

}  // namespace tutti::tool
