// How every library is measured: the same buffers, checks, warm-up, number of calls and clock. Run by the main thread
// of each rank.
//
// A size: every element of a first call's result is checked; short batches tell how long a call takes; a trial is a
// warm-up, then N calls of {barrier of the control plane; clock; call; clock}, then M calls one after the other. N and
// M fill the target time, at most kMaxCalls, at least 3 (1 where a call takes a second). After the last trial every
// element of one more call is checked.
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

// One call of the collective; the same buffers each time.
using Operation = std::function<Status()>;

// A library under test. The harness never calls it from two threads at once.
class Library {
 public:
  Library() = default;
  virtual ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Errors: kUnsupported where the library has no such collective.
  virtual Result<Operation> prepare(const Workload& workload, const Buffers& buffers) = 0;

  // Memory for one buffer of at least `bytes`, freed with the handle. Default: private pages as the system gives them.
  virtual Result<std::shared_ptr<float>> allocate(std::size_t bytes);
};

// Pins this process where the options say so, as the first thing of a driver's main(): threads that a library starts
// inherit it. Also binds this process's life to that of the one which has started it.
void settle(const Options& options);

// Measures what the options say, as rank `control.rank()`; rank 0 writes the results. Errors: the library's own, with
// the collective and the size; kSystem for memory and files.
Status run_harness(const Options& options, Control& control, Library& library);

// A driver's exit status: prints the error on standard error.
int exit_status_of(const Status& status);

// A driver's main(): options, what is common before a library starts, then `run`. Returns the exit status.
int drive(int argc, const char* const* argv, Status (*run)(const Options& options));

}  // namespace tutti::compare
