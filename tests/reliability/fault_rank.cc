// fault_rank PHASE SECONDS [FAULT N]: one rank of a job into which fault_table.py injects a fault. Rank, size, root
// and deadlines come from the environment. It repeats a call until SECONDS have passed or a call fails, and checks
// every result. After an error that names a rank, it shrinks and continues without that rank.
//
// The phases are:
//
// - setup: the communicator is created, and 20 calls follow
// - idle: 8 bytes now and then, so that most of the time is between calls
// - small: 8 bytes, without pauses
// - large: 4 MiB of ordinary memory
// - registered: 4 MiB of registered memory
//
// FAULT is an operation that fails in this process: the N-th one since the start in the phase setup, and since
// "ready" in the other phases. The faults are:
//
// - nth-allocation: operator new, in functions and threads of the library, throws std::bad_alloc
// - nth-open: every function that creates a descriptor fails with EMFILE
// - thread-exception: operator new, in threads of the library only, throws; the calls run in the background
//
// The program prints lines to stdout. Each begins with the time of the monotonic clock in ns, followed by one of
// these:
//
// - begin
// - made: the communicator was created
// - ready: three calls have ended
// - error CODE RANK MESSAGE: RANK is -1 if the error names no rank
// - shrunk SIZE
// - wrong WHERE
// - end CALLS FDS: all objects are destroyed, and FDS more descriptors are open than at the start
// - counted N: number of allocations or descriptors, if there is a FAULT
//
// The exit status is 0, or 1 if a result was wrong.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/failing_allocations.h"
#include "support/failing_calls.h"
#include "tutti/tutti.h"

namespace {

namespace failing_allocations = tutti::test::failing_allocations;
namespace failing_calls = tutti::test::failing_calls;

using tutti::Communicator;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLarge = (std::size_t{4} << 20) / sizeof(float);
constexpr int kCallsAfterwards = 10;

[[gnu::format(printf, 1, 2)]] void print_line(const char* format, ...) {
  const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  std::printf("%lld ", static_cast<long long>(now_ns));
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
  std::fflush(stdout);
}

std::atomic<std::int64_t> thread_limit;  // number of the allocation, in threads of the library, that fails

// The fault that this process injects into itself, if any.
class Fault {
 public:
  Fault(std::string_view kind, std::int64_t n)
      : allocations_(kind == "nth-allocation"),
        descriptors_(kind == "nth-open"),
        threads_(kind == "thread-exception"),
        n_(n) {
    if (!threads_) return;
    thread_limit = std::numeric_limits<std::int64_t>::max();
    failing_calls::call_in_new_threads([] { failing_allocations::fail_after(thread_limit, false); });
  }

  bool known() const { return allocations_ || descriptors_ || threads_; }
  bool in_background() const { return threads_; }

  // Starts counting.
  void begin() {
    begun_ = true;
    if (descriptors_) failing_calls::fail_nth(failing_calls::Fault::kDescriptor, n_);
    if (!threads_) return;
    thread_limit = failing_allocations::counted() + n_;
    // a new thread sets the limit for all threads; in this thread, its own allocations would be counted, too
    std::thread([] {}).join();
  }
  void end() {
    if (descriptors_) failing_calls::fail_nth(failing_calls::Fault::kDescriptor, 0);
    if (known()) print_line("counted %lld", static_cast<long long>(counted()));
  }

  // Calls `body`, which calls one function of the library, and returns its result. Allocations fail only during this
  // call, so that this program's own allocations succeed.
  template <class Body>
  auto inside(Body&& body) {
    if (allocations_ && begun_) failing_allocations::fail_after(n_, true);
    auto result = body();
    if (allocations_ && begun_) failing_allocations::fail_after(0, false);
    return result;
  }

 private:
  std::int64_t counted() const { return descriptors_ ? failing_calls::counted() : failing_allocations::counted(); }

  const bool allocations_, descriptors_, threads_;
  const std::int64_t n_;
  bool begun_ = false;
};

// Needs no descriptor itself.
int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

void print_error(const tutti::Error& error) {
  std::string message = error.message;
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  std::string code(to_string(error.code));
  for (char& c : code) {
    if (c == ' ') c = '_';
  }
  print_line("error %s %d %s", code.c_str(), error.rank, message.c_str());
}

// The input value. It depends on rank, element and call, and sums of it are exact in float32.
float input_of(int rank, std::size_t element, long call) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 31 + element * 7 + static_cast<std::size_t>(call) * 13) %
                            1021);
}

// Makes the calls of one phase on one communicator. The first element of each call is a request to end, so that all
// ranks end after the same call.
class Calls {
 public:
  Calls(Communicator& communicator, std::string_view phase, Fault& fault)
      : communicator_(communicator), fault_(fault), idle_(phase == "idle") {
    const std::size_t count = phase == "large" || phase == "registered" ? kLarge : 2;
    if (phase == "registered") {
      auto memory = fault.inside([&] { return communicator.allocate(count * sizeof(float)); });
      if (memory) {
        memory_ = std::move(*memory);
        data_ = reinterpret_cast<float*>(memory_.data());
      } else {
        error_ = memory.error();
      }
    } else {
      plain_.resize(count);
      data_ = plain_.data();
    }
    count_ = count;
  }

  // Returns false if the call failed or its result was wrong. `last`: whether any rank requested the end.
  bool make(bool ask_for_end, bool& last) {
    if (error_) return report_failure(*error_);
    for (std::size_t i = 1; i < count_; ++i) data_[i] = input_of(communicator_.rank(), i, made_);
    data_[0] = ask_for_end ? 1 : 0;
    const tutti::Status status = fault_.inside([&] { return sum(); });
    if (!status.ok()) return report_failure(status.error());
    for (std::size_t i = 1; i < count_; ++i) {
      float sum = 0;
      for (int rank = 0; rank < communicator_.size(); ++rank) sum += input_of(rank, i, made_);
      if (data_[i] == sum) continue;
      print_line("wrong call %ld element %zu: %g in place of %g", made_, i, static_cast<double>(data_[i]),
                 static_cast<double>(sum));
      std::exit(1);
    }
    last = data_[0] > 0;
    ++made_;
    if (idle_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return true;
  }
  long made() const { return made_; }

 private:
  tutti::Status sum() {
    if (!fault_.in_background()) {
      return communicator_.all_reduce(data_, data_, count_, tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
    }
    auto work = communicator_.start(
        {.kind = tutti::CollectiveKind::kAllReduce, .input = data_, .output = data_, .count = count_});
    if (!work.ok()) return work.error();
    while (!work->test()) std::this_thread::yield();
    return work->wait();
  }
  bool report_failure(const tutti::Error& error) {
    print_error(error);
    return false;
  }

  Communicator& communicator_;
  Fault& fault_;
  const bool idle_;
  tutti::Memory memory_;
  std::vector<float> plain_;
  float* data_ = nullptr;
  std::size_t count_ = 0;
  std::optional<tutti::Error> error_;
  long made_ = 0;
};

void go_on(Communicator& broken, Fault& fault) {
  auto smaller = fault.inside([&] { return broken.shrink(); });
  if (!smaller) return print_error(smaller.error());
  Calls calls(**smaller, "large", fault);
  for (int i = 0; i < kCallsAfterwards; ++i) {
    bool ignored = false;
    if (!calls.make(false, ignored)) return;
  }
  print_line("shrunk %d", (*smaller)->size());
}

long run(std::string_view phase, std::chrono::seconds how_long, Fault& fault) {
  if (phase == "setup") fault.begin();
  auto communicator = fault.inside([] { return Communicator::create(); });
  if (!communicator) {
    print_error(communicator.error());
    return 0;
  }
  print_line("made");
  Communicator& all = **communicator;
  Calls calls(all, phase, fault);
  bool last = false;
  for (int i = 0; i < 3; ++i) {  // these calls open the connections
    if (!calls.make(false, last)) break;
  }
  if (calls.made() == 3) print_line("ready");
  if (phase != "setup") fault.begin();
  const auto end = Clock::now() + how_long;
  while (calls.made() >= 3 && !last) {
    const bool enough = phase == "setup" ? calls.made() >= 20 : Clock::now() >= end;
    if (!calls.make(enough, last)) break;
  }
  if (!last) go_on(all, fault);
  return calls.made();
}

}  // namespace

int main(int argc, char** argv) {
  Fault fault(argc == 5 ? argv[3] : "", argc == 5 ? std::atoll(argv[4]) : 0);
  if (argc != (fault.known() ? 5 : 3)) {
    std::fprintf(stderr,
                 "usage: fault_rank setup|idle|small|large|registered SECONDS "
                 "[nth-allocation|nth-open|thread-exception N]\n");
    return 2;
  }
  alarm(120);  // no rank outlives a broken run
  const int before = open_descriptors();
  print_line("begin");
  const long made = run(argv[1], std::chrono::seconds(std::atoi(argv[2])), fault);
  fault.end();
  print_line("end %ld %d", made, open_descriptors() - before);
  return 0;
}
