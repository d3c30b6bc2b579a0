// The harness that measures every library with the same buffers, checks, warm-up, number of calls and clock. The main
// thread of each rank runs it.
//
// To measure time (Measure::kTime), it checks, for each size, every element of the result of a first call. Short
// batches of calls then estimate how long a call takes, unless the first call was long. A trial has a warm-up, then N
// calls of {barrier of the control plane; clock; call; clock}, then M calls without barriers in between. N and M are
// chosen to fill the target time; they are at most kMaxCalls, and at least 3 (1 if a call takes a second or longer).
// After the last trial every element of one more call is checked.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "bench/compare/control.h"
#include "bench/compare/options.h"
#include "bench/compare/workload.h"
#include "tutti/result.h"

namespace tutti::compare {

constexpr int kMaxCalls = 20'000;

// Executes the collective once, with the same buffers each time.
using Operation = std::function<Status()>;

// The library under test. The harness calls it only from one thread.
class Library {
 public:
  Library() = default;
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Prepares the operation for these buffers. Errors: kUnsupported if the library does not have this collective.
  virtual Result<Operation> prepare(const Workload& workload, const Buffers& buffers) = 0;

  // Allocates one buffer of at least `bytes` bytes; it is freed with the returned pointer. By default these are
  // private pages from the system.
  virtual Result<std::shared_ptr<float>> allocate(std::size_t bytes);
};

// Pins this process to a core if the options require it and contain its rank. Call it first in the main() of a driver,
// because the threads that a library starts inherit the affinity. Also makes the kernel kill this process if its parent
// exits.
void prepare_process(const Options& options);

// Executes the measurements that the options describe, as rank control.rank(); rank 0 writes the results. Errors:
// those of the library, with the collective and size added; kSystem if memory or a file is not available.
Status run_harness(const Options& options, Control& control, Library& library);

// The exit status of a driver. Prints the error, if any, to standard error.
int exit_status_of(const Status& status);

// The common main() of all drivers: parses the options, calls prepare_process(), then calls `run`. Returns the exit
// status.
int drive(int argc, const char* const* argv, Status (*run)(const Options& options));

}  // namespace tutti::compare
