#include "communicator/measurement/choice_measurer.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/assert.h"

namespace tutti::detail {
namespace {

constexpr std::uint64_t kShortSizes[] = {512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10};
constexpr std::uint64_t kCopySizes[] = {32 << 10, 128 << 10, 512 << 10};
constexpr std::uint64_t kSumSizes[] = {256 << 10, 1 << 20, 4 << 20};
// The longest output of an all_gather, which has a block for each rank. Longer ones are not measured.
constexpr std::uint64_t kMostGathered = 8 << 20;
// Before this time, a single switch to another process would count too much for ChoiceSamples::most_waiting.
constexpr double kLeastObservedUs = 4000;
constexpr std::int64_t kMostTimedCalls = 2000;  // largest number of calls in one sample, which are timed together

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How long this thread was ready to run so far, but had no core. 0 if the kernel does not report it; then a busy
// machine is not recognized.
double waiting_for_a_core_us() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t running_ns = 0;
  std::uint64_t waiting_ns = 0;
  return file >> running_ns >> waiting_ns ? static_cast<double>(waiting_ns) / 1000 : 0;
}

// Returns the largest of the ranks' values. The call is also a barrier.
Result<double> largest(Communicator& communicator, double mine) {
  double all = 0;
  TUTTI_TRY(communicator.all_reduce(&mine, &all, 1, DataType::kFloat64, ReduceOp::kMax));
  return all;
}

Status all_reduce(Communicator& communicator, std::byte* data, std::uint64_t bytes, Algorithm algorithm) {
  return communicator.all_reduce(data, data, bytes / sizeof(float), DataType::kFloat32, ReduceOp::kMax,
                                 {.algorithm = algorithm});
}

Status broadcast(Communicator& communicator, std::byte* data, std::uint64_t bytes) {
  return communicator.broadcast(data, data, bytes / sizeof(float), DataType::kFloat32, 0,
                                {.algorithm = Algorithm::kDirect});
}

Status all_gather(Communicator& communicator, std::byte* data, std::uint64_t bytes) {
  std::byte* const own = data + static_cast<std::size_t>(communicator.rank()) * bytes;
  return communicator.all_gather(own, data, bytes / sizeof(float), DataType::kFloat32,
                                 {.algorithm = Algorithm::kDirect});
}

}  // namespace

Result<CallTimes> time_calls(Communicator& communicator, int samples, double sample_us,
                             const std::function<Status()>& body) {
  TUTTI_ASSERT(samples > 0);
  std::vector<double> times;
  std::int64_t calls = 2;
  // The sample with the number -1 is not stored; its time determines the number of calls in the other samples.
  for (int number = -1; number < samples; ++number) {
    if (number <= 0) TUTTI_TRY(body());
    auto ready = largest(communicator, 0);
    if (!ready) return ready.error();
    const double start_us = now_us();
    for (std::int64_t i = 0; i < calls; ++i) TUTTI_TRY(body());
    auto took = largest(communicator, (now_us() - start_us) / static_cast<double>(calls));
    if (!took) return took.error();
    if (number < 0) {
      const auto fitting = static_cast<std::int64_t>(sample_us / std::max(*took, 0.01));
      calls = std::clamp(fitting, std::int64_t{1}, kMostTimedCalls);
    } else {
      times.push_back(*took);
    }
  }
  std::sort(times.begin(), times.end());
  return CallTimes{.median_us = times[times.size() / 2], .p95_us = times[times.size() * 95 / 100]};
}

ChoiceMeasurer::~ChoiceMeasurer() {
  if (data_ == nullptr) return;
  if (!failed_) {
    munmap(data_, kMostGathered);
    return;
  }
  // A rank that was suspended in the middle of a call may still write to these addresses by a system call when it goes
  // on (docs/communicator.md). So they stay reserved, without memory.
  mmap(data_, kMostGathered, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Maps the buffer by mmap(), because the calls are to be measured on ordinary memory, and malloc() may take blocks from
// the shared heap (docs/heap.md) instead. Then makes the first calls, which are not measured. Has no effect if the
// buffer exists already.
Status ChoiceMeasurer::begin() {
  if (data_ != nullptr) return {};
  void* const data = mmap(nullptr, kMostGathered, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "there is no memory for the buffers of the measurement"};
  }
  data_ = static_cast<std::byte*>(data);
  // Reading a page that was never written reads the kernel's page of zeros, which is always in the cache.
  std::memset(data_, 0, kMostGathered);
  if (by_messages_ != nullptr) {
    auto registered = by_messages_->allocate(*std::rbegin(kShortSizes));
    if (!registered) return registered.error();
    registered_ = std::move(*registered);
  }
  TUTTI_TRY(warm_up());
  start_us_ = now_us();
  start_waiting_us_ = waiting_for_a_core_us();
  return {};
}

// Makes the first call of each kind, which also proves the plan of the call. The time of the proof must not be
// measured.
Status ChoiceMeasurer::warm_up() {
  for (Communicator* const one : {by_messages_, by_calls_}) {
    if (one == nullptr) continue;
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      TUTTI_TRY(all_reduce(*one, data_, kShortSizes[0], algorithm));
    }
    TUTTI_TRY(broadcast(*one, data_, kCopySizes[0]));
    TUTTI_TRY(all_gather(*one, data_, kCopySizes[0]));
  }
  return {};
}

Result<bool> ChoiceMeasurer::has_time() {
  if (samples_.most_us <= 0 && samples_.most_waiting <= 0) return true;
  const double took_us = now_us() - start_us_;
  const double waiting_us = waiting_for_a_core_us() - start_waiting_us_;
  const bool too_long = samples_.most_us > 0 && took_us >= samples_.most_us;
  const bool too_busy =
      samples_.most_waiting > 0 && took_us >= kLeastObservedUs && waiting_us > samples_.most_waiting * took_us;
  auto ends = largest(any(), too_long || too_busy ? 1 : 0);
  if (!ends) return ends.error();
  ended_ = *ends > 0;
  return !ended_;
}

Status ChoiceMeasurer::run(ChoiceGroups groups) {
  failed_ = true;  // until everything has succeeded
  TUTTI_TRY(begin());
  if (groups == ChoiceGroups::kAll) {
    TUTTI_TRY(sums());
    TUTTI_TRY(copies());
  }
  if (by_messages_ != nullptr) TUTTI_TRY(short_calls());
  failed_ = false;
  return {};
}

Status ChoiceMeasurer::measure(Communicator* communicator, MeasuredWay way, std::uint64_t bytes, const Body& body) {
  if (communicator == nullptr || ended_) return {};
  const auto time = has_time();
  if (!time) return time.error();
  if (!*time) return {};
  const auto times = time_calls(any(), samples_.samples, samples_.sample_us, [&] { return body(*communicator); });
  if (!times) return times.error();
  measured_.push_back({.what = measurement_name(static_cast<std::uint32_t>(any().size()), way),
                       .bytes = bytes,
                       .median_us = times->median_us,
                       .p95_us = times->p95_us});
  return {};
}

Status ChoiceMeasurer::sums() {
  for (const std::uint64_t bytes : kSumSizes) {
    const Body sum = [&](Communicator& one) { return all_reduce(one, data_, bytes, Algorithm::kTwoShot); };
    TUTTI_TRY(measure(by_messages_, MeasuredWay::kAllReduceByMessages, bytes, sum));
    TUTTI_TRY(measure(by_calls_, MeasuredWay::kAllReduceByCalls, bytes, sum));
  }
  return {};
}

Status ChoiceMeasurer::copies() {
  for (const std::uint64_t bytes : kCopySizes) {
    const Body send = [&](Communicator& one) { return broadcast(one, data_, bytes); };
    const Body collect = [&](Communicator& one) { return all_gather(one, data_, bytes); };
    TUTTI_TRY(measure(by_messages_, MeasuredWay::kBroadcastByMessages, bytes, send));
    TUTTI_TRY(measure(by_calls_, MeasuredWay::kBroadcastByCalls, bytes, send));
    if (static_cast<std::uint64_t>(any().size()) * bytes > kMostGathered) continue;
    TUTTI_TRY(measure(by_messages_, MeasuredWay::kAllGatherByMessages, bytes, collect));
    TUTTI_TRY(measure(by_calls_, MeasuredWay::kAllGatherByCalls, bytes, collect));
  }
  return {};
}

Status ChoiceMeasurer::short_calls() {
  using enum MeasuredWay;
  for (const std::uint64_t bytes : kShortSizes) {
    const auto measure_in = [&](std::byte* data, MeasuredWay way, Algorithm algorithm) {
      return measure(by_messages_, way, bytes,
                     [=](Communicator& one) { return all_reduce(one, data, bytes, algorithm); });
    };
    TUTTI_TRY(measure_in(data_, kOneShot, Algorithm::kOneShot));
    TUTTI_TRY(measure_in(data_, kTwoShot, Algorithm::kTwoShot));
    TUTTI_TRY(measure_in(registered_.data(), kRegisteredOneShot, Algorithm::kOneShot));
    TUTTI_TRY(measure_in(registered_.data(), kRegisteredTwoShot, Algorithm::kTwoShot));
  }
  return {};
}

}  // namespace tutti::detail
