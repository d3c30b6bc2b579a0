// Comm: what an ncclComm_t stands for: one Communicator with what NCCL's interface keeps beside it, and the table of
// all that are alive, through which every handle goes, so that one that was destroyed, or never was one, is told.
//
// Life: made -> (job that sets it up) ready | failed -> ... -> destroyed (out of the table). Who uses a Comm holds a
// shared_ptr: a destroyed one ends with the last call that is still inside it.
//
// Jobs: what blocks for other ranks (set-up, split, shrink, finalize, ...) is a job. A blocking communicator runs it in
// the caller's thread, or, in a group, beside the group's other jobs; one that is not blocking in a thread of its own,
// and the caller asks ncclCommGetAsyncError() for its end. One job at a time, and nothing else beside it.
//
// Threads: any; `mutex` guards what may change.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/resources.h"
#include "nccl.h"
#include "nccl/errors.h"
#include "nccl/memory.h"
#include "nccl/settings.h"
#include "tutti/communicator.h"

namespace tutti::nccl {

class Windows;  // windows.h

// A reduction that ncclRedOpCreatePreMulSum() made.
struct CustomOp {
  DataType type = DataType::kFloat32;
  Scale scale{};
  const void* scalar = nullptr;  // where the factor lies, when it is read by each call
};

// What ncclCommGetAsyncError() tells, and its sentence.
struct LateError {
  ncclResult_t result = ncclSuccess;
  std::string message;
};

// Where a communicator stands.
enum class Phase : std::uint8_t {
  kUnmade,  // its first job has not ended
  kReady,
  kFailed,     // for good: `failure` says why
  kRevoked,    // stopped; may be split, shrunk, destroyed
  kSuspended,  // between ncclCommSuspend() and ncclCommResume()
  kFinalized,  // may only be destroyed
};

// The GPU of a rank: that of the thread that made the communicator.
struct RankDevice {
  std::int32_t number = -1;                         // -1: none, host memory only
  std::shared_ptr<cuda::PrimaryContext> context{};  // null: none; shared by the communicators of the rank

  static Result<RankDevice> of(std::int32_t number);
  static Result<RankDevice> of_this_thread();
};

// While it lives, the device of a communicator is the thread's, where it has one: a program may call with another one
// current, and default streams are the current context's.
using DeviceScope = std::optional<cuda::ContextScope>;

class Comm {
 public:
  Comm(std::int32_t its_rank, std::int32_t its_ranks, RankDevice its_device, const Settings& its_settings);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // Never given twice in a process: one that was destroyed stays invalid.
  ncclComm_t handle() const { return handle_; }
  bool own_process() const;  // false in a forked child

  std::int32_t rank;
  std::int32_t ranks;
  const RankDevice device;
  const Settings settings;  // of it and of those that are made from it

  std::mutex mutex;
  Phase phase = Phase::kUnmade;
  std::unique_ptr<Communicator> communicator;  // null while unmade, or failed in that; stays once it is there
  std::optional<Error> failure;                // of kFailed
  std::optional<LateError> async_error;        // the first that has cost more than its call, or came after it
  int jobs_running = 0;
  bool aborted = false;
  const std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>();  // shared with its set-up
  std::vector<std::shared_ptr<Work>> pending;  // host calls of a communicator that is not blocking; shared by groups
  std::map<int, CustomOp> ops;
  std::map<std::uintptr_t, Registration> registrations;  // by handle of ncclCommRegister()
  std::uintptr_t last_registration = 0;
  std::shared_ptr<Windows> windows;  // null: none yet; shared by the calls on it, which may outlast the handle
  std::optional<UniqueId> growth;    // given out by ncclCommGetUniqueId(), not used yet

  bool is_unmade();
  Result<DeviceScope> enter_device() const;
  // Takes what a set-up job came to.
  ncclResult_t take(Result<std::unique_ptr<Communicator>> made);
  // Remembers what ncclCommGetAsyncError() is to tell.
  void note(const Error& error);
  // Ends operations under way; from any thread.
  void abort();
  // ncclCommGetAsyncError()'s answer; looks at what is pending.
  ncclResult_t state();

 private:
  const ncclComm_t handle_;
  const int forks_;  // from the first process to this
};

using CommPtr = std::shared_ptr<Comm>;

// Puts it into the table; its handle is valid from now on.
ncclComm_t enter(const CommPtr& comm);
// Takes it out: the handle is invalid from now on.
void leave(const CommPtr& comm);

// The Comm of a handle. Errors (ncclInvalidArgument): null, destroyed, none of ours.
ncclResult_t find(ncclComm_t handle, const char* function, CommPtr* comm);
// The same, and it must be ready for calls. Errors: as find(); ncclInvalidArgument while a job is under way; how it
// failed; ncclInvalidUsage when revoked, suspended or finalized.
ncclResult_t find_ready(ncclComm_t handle, const char* function, CommPtr* comm);

// What other files of this folder may know of a communicator.
struct CommFacts {
  int rank = 0;
  int ranks = 0;
  int device = -1;  // -1: none
};
ncclResult_t facts_of(ncclComm_t handle, CommFacts* facts);

// A piece of work on one communicator that may wait for other ranks.
struct Job {
  CommPtr comm;                        // whose state it changes, and whose `blocking` counts
  CommPtr parent;                      // null, or the communicator that `comm` is made from: busy meanwhile
  std::function<ncclResult_t()> body;  // once; not under a mutex
};

// Runs them: those of different communicators at once, those that share one in their order. Returns at their ends, with
// the first error; those of communicators that are not blocking go on in the background (ncclInProgress).
ncclResult_t run_jobs(std::vector<Job> jobs);

}  // namespace tutti::nccl
