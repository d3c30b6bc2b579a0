#include "tools/perf/reference.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/thread_group.h"
#include "kernels/cpu/reduce.h"
#include "tools/common/fd.h"
#include "tools/perf/data.h"
#include "topology/host.h"
#include "topology/memory.h"

namespace tutti::tool {
namespace {

constexpr int kRepetitions = 7;
constexpr int kSlowRepetitions = 3;  // number of repetitions if one pass takes longer than kSlowPassUs
constexpr double kSlowPassUs = 100'000;
constexpr double kRepetitionUs = 3000;       // intended duration of a repetition
constexpr std::int64_t kMaxPasses = 20'000;  // maximum number of passes over the message in one repetition
constexpr int kSpinsBeforeYield = 20'000;
// Number of switches between the two threads in one repetition of measure_switch_us().
constexpr int kSwitches = 2000;
// Each thread's share of the message begins at a multiple of this: on a cache line.
constexpr std::uint64_t kShareBytes = 64;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kHugePageBytes = 2 << 20;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Returns the minimum of the times of all repetitions, because other programs have disturbed that repetition least.
double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

std::vector<int> usable_cpus() {
  const std::vector<bool> usable = discover_host().cpus;
  std::vector<int> cpus;
  for (std::size_t cpu = 0; cpu < usable.size(); ++cpu) {
    if (usable[cpu]) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

bool pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0;
}

// `ranks` buffers of `bytes` bytes next to each other in one shared mapping, in huge pages if the system provides them.
// valid() returns false if the buffers need more than half of the available memory, or if the shared memory could not
// be created or mapped.
class SharedBuffers {
 public:
  SharedBuffers(std::int32_t ranks, std::uint64_t bytes)
      : stride_(round_up(bytes, bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes)),
        total_(stride_ * static_cast<std::uint64_t>(ranks)) {
    if (total_ > available_memory().bytes() / 2) return;
    const Fd file(::memfd_create("tutti-reference", MFD_CLOEXEC));
    if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(total_)) != 0) return;
    void* const address = ::mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (address == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(address);
    ::madvise(address, total_, MADV_HUGEPAGE);
  }
  ~SharedBuffers() {
    if (data_ != nullptr) ::munmap(data_, total_);
  }
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

  bool valid() const { return data_ != nullptr; }
  std::byte* buffer(std::int32_t rank) const { return data_ + static_cast<std::uint64_t>(rank) * stride_; }

 private:
  std::uint64_t stride_;
  std::uint64_t total_;
  std::byte* data_ = nullptr;
};

// A barrier for a fixed number of threads. A thread that waits spins, and yields its core between checks after the
// first kSpinsBeforeYield checks.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}

  void wait() {
    const int generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
      if (spins > kSpinsBeforeYield)
        ::sched_yield();
      else
        __builtin_ia32_pause();
    }
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

// The measured work. In one pass, all threads reduce their shares of the message at the same time. They wait at a
// barrier before and after each pass.
class Passes {
 public:
  Passes(const kernels::Reduction& reduction, const SharedBuffers& buffers, std::int32_t ranks, std::uint64_t count,
         int threads)
      : reduction_(reduction),
        count_(count),
        element_bytes_(size_of(reduction.type)),
        threads_(threads),
        barrier_(threads) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) buffers_.push_back(buffers.buffer(rank));
    // A single rank has nothing to reduce. Its reference time is that of a copy from one buffer to another.
    if (ranks == 1) buffers_.push_back(buffers.buffer(1));
    sources_ = ranks == 1 ? 1 : buffers_.size();
  }

  double measure_us(const std::vector<int>& cpus) {
    ThreadGroup threads;
    for (int thread = 0; thread < threads_; ++thread) {
      threads.add([this, thread, cpu = cpus[static_cast<std::size_t>(thread)]] { run(thread, cpu); });
    }
    threads.open();
    threads.join();
    return least(times_us_);
  }

 private:
  void run(int thread, int cpu) {
    pin_to(cpu);
    const std::uint64_t unit = std::max<std::uint64_t>(1, kShareBytes / element_bytes_);
    const std::uint64_t share =
        round_up((count_ + static_cast<std::uint64_t>(threads_) - 1) / static_cast<std::uint64_t>(threads_), unit);
    const std::uint64_t begin = std::min(count_, static_cast<std::uint64_t>(thread) * share);
    const std::uint64_t length = std::min(count_, begin + share) - begin;
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> destinations;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (i < sources_) sources.push_back(buffers_[i] + begin * element_bytes_);
      if (sources_ > 1 || i == 1) destinations.push_back(buffers_[i] + begin * element_bytes_);
    }
    const auto passes = [&](std::int64_t number) {
      barrier_.wait();
      const double start_us = now_us();
      for (std::int64_t i = 0; i < number; ++i) {
        barrier_.wait();
        if (length > 0) kernels::reduce(reduction_, sources, destinations, length);
        barrier_.wait();
      }
      return (now_us() - start_us) / static_cast<double>(number);
    };
    passes(1);
    const double first_us = passes(3);
    if (thread == 0) {  // the other threads read passes_ and repetitions_ after the next barrier
      passes_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(kRepetitionUs / first_us), 1, kMaxPasses);
      repetitions_ = first_us > kSlowPassUs ? kSlowRepetitions : kRepetitions;
    }
    barrier_.wait();
    for (int i = 0; i < repetitions_; ++i) {
      const double time_us = passes(passes_);
      if (thread == 0) times_us_.push_back(time_us);
    }
  }

  const kernels::Reduction reduction_;
  const std::uint64_t count_;
  const std::size_t element_bytes_;
  const int threads_;
  SpinBarrier barrier_;
  std::vector<std::byte*> buffers_;
  std::size_t sources_ = 0;
  std::int64_t passes_ = 1;
  int repetitions_ = kRepetitions;
  std::vector<double> times_us_;
};

}  // namespace

int usable_cores() { return static_cast<int>(usable_cpus().size()); }

std::optional<double> measure_switch_us() {
  const int cpu = usable_cpus().front();
  std::vector<double> times_us;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    // Each thread increments `turn` once at its start, so both have started when it is 0. Then it counts the switches.
    std::atomic<int> turn{-2};
    std::atomic<bool> pinned{true};
    double elapsed_us = 0;
    const auto play = [&](int parity) {
      if (!pin_to(cpu)) pinned = false;
      turn.fetch_add(1);
      while (turn.load() < 0) ::sched_yield();
      const double start_us = now_us();
      for (int now = turn.load(); now < kSwitches; now = turn.load()) {
        if (now % 2 == parity)
          turn.store(now + 1);
        else
          ::sched_yield();
      }
      if (parity == 0) elapsed_us = now_us() - start_us;
    };
    ThreadGroup threads;
    for (const int parity : {0, 1}) threads.add([&play, parity] { play(parity); });
    threads.open();
    threads.join();
    if (!pinned) return std::nullopt;
    times_us.push_back(elapsed_us / kSwitches);
  }
  return least(times_us);
}

ReferenceMeter::ReferenceMeter(std::int32_t ranks) : ranks_(ranks), cores_(usable_cores()) {}

std::optional<double> ReferenceMeter::measure_us(DataType type, ReduceOp op, std::uint64_t count) {
  if (static_cast<std::size_t>(ranks_) > kernels::kMaxSources || count == 0) return std::nullopt;
  const SharedBuffers buffers(std::max(ranks_, 2), count * size_of(type));
  if (!buffers.valid()) return std::nullopt;
  const DataPattern pattern(type, op, ranks_);
  pattern.fill_input(0, 0, count, buffers.buffer(0));
  for (std::int32_t rank = 1; rank < ranks_; ++rank)
    std::memcpy(buffers.buffer(rank), buffers.buffer(0), count * size_of(type));
  const kernels::Reduction reduction{
      .type = type, .op = op, .scale = {}, .divisor = op == ReduceOp::kAvg ? static_cast<std::uint32_t>(ranks_) : 1};
  const int threads = std::min(cores_, static_cast<int>(ranks_));
  Passes passes(reduction, buffers, ranks_, count, threads);
  double reference_us = passes.measure_us(usable_cpus());
  const int turns = (ranks_ + cores_ - 1) / cores_;  // the largest number of ranks that share one core
  if (turns > 1) {
    if (!switch_us_) switch_us_ = measure_switch_us();
    reference_us += (turns - 1) * switch_us_.value_or(0);
  }
  return reference_us;
}

}  // namespace tutti::tool
