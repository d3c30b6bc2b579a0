// The harness that measures every library with the same buffers, checks, clock and rules for the number of calls. The
// main thread of each rank runs it.
//
// To measure time (Measure::kTime), it checks, for each size, every element of the result of a first call. Unless that
// call was long, short batches of calls then estimate how long a call takes. A trial has a warm-up (unless calls are
// long), then N calls of {barrier of the control plane; clock; call; clock}, then at most ten warm-up calls, then M
// calls without barriers in between. N and M are chosen to fill the target time; they are at most kMaxCalls, and at
// least 3 (1 if a call is estimated to take a second or longer). After the last trial every element of one more call is
// checked.
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

// The library under test. The harness calls it from one thread only.
class Library {
 public:
  Library() = default;
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Prepares the operation for these buffers. Errors: kUnsupported if the library does not have this collective; others
  // if the library cannot prepare it.
  virtual Result<Operation> prepare(const Workload& workload, const Buffers& buffers) = 0;

  // Allocates one buffer of at least `bytes` bytes, which is freed with the last copy of the returned pointer. The
  // default implementation uses private pages from the system.
  virtual Result<std::shared_ptr<float>> allocate(std::size_t bytes);
};

// Pins this process to one of its cores, if the options require it and contain its rank; errors are ignored. A driver
// must call it before it starts the library, because the threads that the library starts inherit the affinity. Also
// makes the kernel kill this process if its parent exits.
void prepare_process(const Options& options);

// Executes the measurements that the options describe, as rank control.rank(); rank 0 writes the results. Errors:
// those of the library, with the collective and size added; kSystem if memory or a file is not available.
Status run_harness(const Options& options, Control& control, Library& library);

// Returns the exit status of a driver: 0 for success, or 1 for an error, which this function prints to standard error.
int exit_status_of(const Status& status);

// The common main() of the drivers of libraries: parses the options, calls prepare_process(), then calls `run`. Returns
// the exit status.
int drive(int argc, const char* const* argv, Status (*run)(const Options& options));

}  // namespace tutti::compare
