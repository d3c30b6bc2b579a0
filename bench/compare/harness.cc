#include "bench/compare/harness.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/assert.h"

namespace tutti::compare {
namespace {

// If the first call takes at least this long, its time is the estimate, and there are no batches. If the estimate is at
// least this long, a trial has no warm-up.
constexpr double kLongCallUs = 300'000;
constexpr double kSecondUs = 1'000'000;
constexpr double kWarmUpUs = 20'000;
constexpr double kBatchUs = 2000;  // target duration of one batch of calls in estimate_batches()
constexpr int kBatches = 8;
constexpr double kMaxBatchCalls = 100;
// After the third batch of an estimate, no further batch starts if all batches together have taken this long.
constexpr double kMaxEstimateUs = 300'000;
constexpr double kLeastCallUs = 0.05;  // shortest estimate; prevents a division by zero
constexpr int kCallsBeforeIdle = 100;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// User and system time that all threads of this process have used so far, in microseconds.
double cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void sleep_ms(double time_ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(time_ms)); }

// The measurement of one size: its buffers, the operation and the results.
class Measurement {
 public:
  Measurement(const Options& options, Control& control, const Workload& workload, std::ofstream& results)
      : options_(options), control_(control), workload_(workload), results_(results) {}

  // Allocates and fills the buffers, and prepares the operation.
  Status prepare(Library& library) {
    const std::size_t bytes = std::max<std::size_t>(workload_.bytes, sizeof(float));
    Result<std::shared_ptr<float>> main = library.allocate(bytes);
    if (!main) return main.error();
    main_ = *std::move(main);
    buffers_.main = {main_.get(), workload_.elements()};
    if (has_other(workload_.kind)) {
      Result<std::shared_ptr<float>> other = library.allocate(bytes);
      if (!other) return other.error();
      other_ = *std::move(other);
      buffers_.other = {other_.get(), workload_.elements()};
    }
    fill(workload_, control_.rank(), buffers_);
    Result<Operation> operation = library.prepare(workload_, buffers_);
    if (!operation) return operation.error();
    operation_ = *std::move(operation);
    control_.barrier();
    return {};
  }

  // Measures the time of the collective. Checks the results of the first call and of one more call after the last
  // trial.
  Status time() {
    const double first_us = now_us();
    TUTTI_TRY(operation_());
    const double first_call_us = control_.most(now_us() - first_us);
    wrong_ += count_wrong(workload_, control_.rank(), buffers_);
    clear();
    TUTTI_TRY(estimate(first_call_us));
    for (int trial = 0; trial < options_.trials; ++trial) TUTTI_TRY(run_trial(trial));
    return {};
  }

  // Measures the processor time that the other ranks use in a call that rank 0 enters late.
  Status measure_late() {
    clear();
    for (int i = 0; i < kCallsBeforeIdle; ++i) TUTTI_TRY(operation_());
    control_.barrier();
    if (control_.rank() == 0) sleep_ms(options_.pause_ms);
    return measure_cpu([&] { return operation_(); }, "late");
  }

  // Measures the processor time of ranks that have made some calls, while no call is in progress.
  Status measure_idle() {
    clear();
    for (int i = 0; i < kCallsBeforeIdle; ++i) TUTTI_TRY(operation_());
    control_.barrier();
    const auto nothing = [&]() -> Status {
      sleep_ms(options_.pause_ms);
      return {};
    };
    return measure_cpu(nothing, "idle");
  }

 private:
  // Sets the buffers to zero for the calls that are timed, so that repeated sums stay finite, and no infinity or other
  // special value slows down an addition.
  void clear() {
    std::ranges::fill(buffers_.main, 0.0F);
    std::ranges::fill(buffers_.other, 0.0F);
  }

  Status call(int times) {
    for (int i = 0; i < times; ++i) TUTTI_TRY(operation_());
    return {};
  }

  // Makes `times` calls, each of which starts after a barrier.
  Status call_apart(int times) {
    for (int i = 0; i < times; ++i) {
      control_.barrier();
      TUTTI_TRY(operation_());
    }
    return {};
  }

  // Sets the numbers of calls of the warm-up and of both loops of a trial. Unless the first call was long, each loop
  // has its own estimate, because a call after a barrier can take a thousand times as long as one of many consecutive
  // calls, for example if a root runs ahead or if ranks share cores. All ranks compute the same numbers.
  Status estimate(double first_call_us) {
    double loop_us = first_call_us;
    double apart_us = first_call_us;
    if (first_call_us < kLongCallUs) {
      TUTTI_TRY(call(1));
      TUTTI_TRY(estimate_batches([&](int times) { return call(times); }, loop_us));
      TUTTI_TRY(estimate_batches([&](int times) { return call_apart(times); }, apart_us));
    }
    loop_calls_ = calls_for(loop_us);
    apart_calls_ = calls_for(apart_us);
    warm_up_ = loop_us < kLongCallUs ? static_cast<int>(std::clamp(kWarmUpUs / loop_us, 1.0, double{kMaxCalls})) : 0;
    warm_up_ = std::min(warm_up_, loop_calls_);
    return {};
  }

  // Returns how many calls of duration `call_us` fill the target time, within the limits that harness.h states.
  int calls_for(double call_us) const {
    const double least = call_us < kSecondUs ? 3 : 1;
    return static_cast<int>(std::clamp(options_.target_ms * 1000 / call_us, least, double{kMaxCalls}));
  }

  // Sets `call_us` to the median over several batches of the time per call, so that one preemption hardly changes it.
  template <class Batch>
  Status estimate_batches(const Batch& run, double& call_us) {
    std::vector<double> times_us;
    double spent_us = 0;
    int calls = 1;
    for (int batch = 0; batch < kBatches && (batch < 3 || spent_us < kMaxEstimateUs); ++batch) {
      control_.barrier();
      const double start_us = now_us();
      TUTTI_TRY(run(calls));
      const double batch_us = control_.most(now_us() - start_us);
      spent_us += batch_us;
      times_us.push_back(std::max(batch_us / calls, kLeastCallUs));
      call_us = median(times_us);
      calls = static_cast<int>(std::clamp(kBatchUs / call_us, 1.0, kMaxBatchCalls));
    }
    return {};
  }

  // Runs one trial, and writes its record. In the last trial, also checks the result of one more call.
  Status run_trial(int trial) {
    control_.barrier();
    TUTTI_TRY(call(warm_up_));
    std::vector<double> times_us(static_cast<std::size_t>(apart_calls_));
    double sum_us = 0;
    for (double& time_us : times_us) {
      control_.barrier();
      const double start_us = now_us();
      TUTTI_TRY(operation_());
      time_us = now_us() - start_us;
      sum_us += time_us;
    }
    const Control::Spread median_us = control_.spread(median(times_us));
    const Control::Spread mean_us = control_.spread(sum_us / apart_calls_);
    TUTTI_TRY(call(std::min(warm_up_, 10)));
    control_.barrier();
    const double start_us = now_us();
    TUTTI_TRY(call(loop_calls_));
    const double loop_us = control_.most((now_us() - start_us) / loop_calls_);
    if (trial + 1 == options_.trials) TUTTI_TRY(check_again());
    const double wrong = control_.spread(static_cast<double>(wrong_)).mean * control_.ranks();
    write({{"measure", "time"},
           {"trial", trial},
           {"calls", apart_calls_},
           {"loop_calls", loop_calls_},
           {"median_us", median_us.mean},
           {"slowest_median_us", median_us.most},
           {"mean_us", mean_us.mean},
           {"slowest_mean_us", mean_us.most},
           {"loop_us", loop_us},
           {"wrong", wrong}});
    return {};
  }

  // Makes one more call with known inputs, and counts the wrong elements of its result.
  Status check_again() {
    fill(workload_, control_.rank(), buffers_);
    control_.barrier();
    TUTTI_TRY(operation_());
    wrong_ += count_wrong(workload_, control_.rank(), buffers_);
    return {};
  }

  // Measures the processor time that the ranks other than rank 0 use during `work`, in percent of a core, and writes
  // the mean and the maximum over these ranks. Rank 0 is not counted, unless it is the only rank, because in
  // measure_late() it enters the call late.
  template <class Work>
  Status measure_cpu(const Work& work, const char* name) {
    const double start_us = now_us();
    const double cpu_before_us = cpu_us();
    TUTTI_TRY(work());
    const double used_us = cpu_us() - cpu_before_us;
    const double percent = 100 * used_us / std::max(now_us() - start_us, 1.0);
    const bool counts = control_.rank() != 0 || control_.ranks() == 1;
    const double others = std::max(1, control_.ranks() - 1);
    const Control::Spread sum = control_.spread(counts ? percent : 0);
    write({{"measure", name}, {"cpu_percent", sum.mean * control_.ranks() / others}, {"most_cpu_percent", sum.most}});
    return {};
  }

  void write(nlohmann::json record) {
    if (control_.rank() != 0) return;
    record["collective"] = to_string(workload_.kind);
    record["ranks"] = workload_.ranks;
    record["bytes"] = workload_.bytes;
    // Flushed at once, because compare.py counts the lines to see that the job makes progress.
    results_ << record.dump() << std::endl;
  }

  const Options& options_;
  Control& control_;
  const Workload workload_;
  std::ofstream& results_;
  std::shared_ptr<float> main_;
  std::shared_ptr<float> other_;
  Buffers buffers_;
  Operation operation_;
  int apart_calls_ = 1;  // number of calls in the first loop of a trial, in which a barrier precedes each call
  int loop_calls_ = 1;
  int warm_up_ = 0;
  std::uint64_t wrong_ = 0;
};

Status measure(const Options& options, Control& control, Library& library, std::ofstream& results,
               const Workload& workload) {
  Measurement measurement(options, control, workload, results);
  TUTTI_TRY(measurement.prepare(library));
  switch (options.measure) {
    case Measure::kTime: TUTTI_TRY(measurement.time()); break;
    case Measure::kLate: TUTTI_TRY(measurement.measure_late()); break;
    case Measure::kIdle: TUTTI_TRY(measurement.measure_idle()); break;
  }
  control.barrier();  // no rank may free its buffers while another rank may still use them
  return {};
}

}  // namespace

Result<std::shared_ptr<float>> Library::allocate(std::size_t bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return Error{.code = ErrorCode::kSystem,
                 .scope = ErrorScope::kProcess,
                 .rank = -1,
                 .message = "no memory for a buffer of " + std::to_string(bytes) + " bytes"};
  }
  return std::shared_ptr<float>(static_cast<float*>(address), [bytes](float* data) { ::munmap(data, bytes); });
}

void prepare_process(const Options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!options.pinned || options.rank < 0) return;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = options.rank % std::max(1, CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

Status run_harness(const Options& options, Control& control, Library& library) {
  std::ofstream results;
  if (control.rank() == 0) {
    results.open(options.results, std::ios::app);
    if (!results) {
      return Error{.code = ErrorCode::kSystem,
                   .scope = ErrorScope::kProcess,
                   .rank = 0,
                   .message = "cannot write " + options.results};
    }
  }
  for (const std::uint64_t bytes : options.sizes) {
    const Workload workload = make_workload(options.kind, bytes, control.ranks());
    Status status = measure(options, control, library, results, workload);
    if (status) continue;
    Error error = status.error();
    error.message = std::string(to_string(workload.kind)) + ", " + std::to_string(workload.bytes) + " bytes, rank " +
                    std::to_string(control.rank()) + ": " + error.message;
    return error;
  }
  return {};
}

int exit_status_of(const Status& status) {
  if (status) return 0;
  std::fprintf(stderr, "%s\n", to_string(status.error()).c_str());
  return 1;
}

int drive(int argc, const char* const* argv, Status (*run)(const Options& options)) {
  const auto options = parse_options(argc, argv);
  if (!options) return exit_status_of(options.error());
  prepare_process(*options);
  return exit_status_of(run(*options));
}

}  // namespace tutti::compare
