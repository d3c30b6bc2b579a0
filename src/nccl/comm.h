// Comm: the object behind an ncclComm_t. It holds a Communicator and the state that NCCL's interface needs in
// addition. A table contains the Comms with a valid handle. Every ncclComm_t is looked up in it, so that a handle that
// was destroyed, or that never was a communicator, is an error and not a crash.
//
// Life cycle: created -> (the set-up job ends) ready or failed -> ... -> destroyed (removed from the table). Code that
// uses a Comm holds a shared_ptr to it. A destroyed Comm is therefore freed when the last call or job that still uses
// it has ended. (A forked child leaks the Comms of its parent process instead.)
//
// Jobs: an operation on a whole communicator that may wait for other ranks (set-up, split, shrink, finalize, ...) is a
// job, except the set-up by ncclCommInitAll(). Collectives, transfers and one-sided calls are not jobs. A job of a
// blocking communicator runs before the function, or ncclGroupEnd(), returns, in the caller's thread. If a group has
// several such jobs, those without a common communicator run at the same time, in several threads. A job of a
// nonblocking communicator runs in a background thread, and the caller uses ncclCommGetAsyncError() to find out when
// the job has ended. A communicator runs one job at a time, except that ncclCommShrink() with NCCL_SHRINK_ABORT does
// not wait for the end of the job that it has aborted. While its job runs, the communicator refuses the calls for which
// it must be ready (find_ready()).
//
// Threads: all functions may be called from any thread. `mutex` protects the members that change. After set-up, `rank`,
// `ranks` and `communicator` no longer change, and are also read without the mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/resources.h"
#include "nccl.h"
#include "nccl/errors.h"
#include "nccl/memory.h"
#include "nccl/plugins/profiler.h"
#include "nccl/plugins/tuner.h"
#include "nccl/settings.h"
#include "tutti/communicator.h"

namespace tutti::nccl {

class Windows;  // windows.h

// A reduction operation that was made by ncclRedOpCreatePreMulSum().
struct CustomOp {
  DataType type = DataType::kFloat32;
  Scale scale{};
  // Address of the factor if each call reads it (ncclScalarDevice); null if `scale` is the factor.
  const void* scalar = nullptr;
};

// The result that ncclCommGetAsyncError() returns, and the message that belongs to it.
struct AsyncError {
  ncclResult_t result = ncclSuccess;
  std::string message;
};

// The state of a Comm.
enum class Phase : std::uint8_t {
  kCreating,  // its set-up job has not ended, or waits for the end of a group
  kReady,
  kFailed,     // set-up has failed; the phase never changes again; Comm::failure is the error
  kRevoked,    // stopped by ncclCommRevoke(); may be split, shrunk or destroyed
  kSuspended,  // between ncclCommSuspend() and ncclCommResume()
  kFinalized,  // ncclCommFinalize() has ended; calls are refused
};

// The GPU of a rank: the one that was current in the thread that created the communicator, or the one that the program
// passed to ncclCommInitAll() (without a list: device i for rank i). A communicator that is made from another one has
// the same GPU.
struct RankDevice {
  std::int32_t number = -1;                         // CUDA device number; -1: no GPU, host memory only
  std::shared_ptr<cuda::PrimaryContext> context{};  // null: no GPU; shared by the rank's communicators

  // The device with that number. Its primary context is retained. A negative number gives a RankDevice without a
  // GPU. Errors: those of the CUDA driver.
  static Result<RankDevice> of(std::int32_t number);
  // The device of the current context of this thread. If the thread has no context, this is device 0, as in the CUDA
  // runtime. Without a loaded CUDA driver, or without a device, the result is a RankDevice without a GPU. Errors: those
  // of the CUDA driver.
  static Result<RankDevice> of_this_thread();
};

// While this object exists, the device of the communicator is the current one of the thread. It is needed because a
// program may call with another device current, and default streams belong to the current context. Empty if the
// communicator has no GPU.
using DeviceScope = std::optional<cuda::ContextScope>;

class Comm {
 public:
  Comm(std::int32_t its_rank, std::int32_t its_ranks, RankDevice its_device, const Settings& its_settings);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // The handle is unique in the process and never reused, so the handle of a destroyed communicator stays invalid.
  ncclComm_t handle() const { return handle_; }
  bool own_process() const;  // false in a child process that was forked after creation

  std::int32_t rank;
  std::int32_t ranks;
  const RankDevice device;
  const Settings settings;  // of this communicator; communicators made from it start from them

  std::mutex mutex;
  Phase phase = Phase::kCreating;
  // Null until the set-up job has ended, if set-up failed, and after a split in which this rank passed
  // NCCL_SPLIT_NOCOLOR. Otherwise set once, when set-up succeeds, and never replaced.
  std::unique_ptr<Communicator> communicator;
  // The plugins of this communicator; null: there is none. They are set together with `communicator`, and never
  // replaced.
  std::unique_ptr<Tuner> tuner;
  std::unique_ptr<Profiler> profiler;
  std::uint64_t id = 0;          // identifies the communicator: the same on all ranks; set by take()
  std::optional<Error> failure;  // why set-up failed; set if and only if the phase is kFailed
  // The first error of a call that failed after it had returned (a job or call in the background, a call on a GPU), of
  // a nonblocking communicator's job, or of a collective, send or receive whose error has a wider scope than the call
  // (ErrorScope). ncclCommRevoke() removes it.
  std::optional<AsyncError> async_error;
  int jobs_running = 0;  // jobs given to run_jobs() with this Comm as Job::comm or Job::parent that have not ended
  bool aborted = false;  // abort() was called
  // The value true makes a set-up by detail::create() stop with an error. Shared with the set-up, which reads it. A
  // split or shrink does not read it.
  const std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>();
  // Calls that run in the background: groups with a call on host memory and with a nonblocking communicator. state()
  // removes the calls that have ended. Shared, because one Work can belong to a group of several communicators.
  std::vector<std::shared_ptr<Work>> pending;
  std::map<int, CustomOp> ops;  // the key is the ncclRedOp_t that ncclRedOpCreatePreMulSum() returned
  std::map<std::uintptr_t, Registration> registrations;  // the key is the handle that ncclCommRegister() returned
  std::uintptr_t last_registration = 0;
  // Null until the job of the first ncclCommWindowRegister() begins. Shared with the calls that use windows, because
  // such a call may still run when another thread destroys the communicator.
  std::shared_ptr<Windows> windows;
  // The id that ncclCommGetUniqueId() returned, until the next ncclCommGrow() has ended. Empty: no id is waiting to be
  // used.
  std::optional<UniqueId> growth;

  bool is_creating();
  Result<DeviceScope> enter_device() const;  // makes `device` current in this thread; see DeviceScope
  // Stores the result of a set-up job: the phase becomes kReady or, if `made` is an error, kFailed.
  ncclResult_t take(Result<std::unique_ptr<Communicator>> made);
  // Stores the error for ncclCommGetAsyncError(), unless an earlier one is stored already.
  void record_error(const Error& error);
  // Aborts the operations of the communicator and of its windows. If set-up is in progress, stops it instead; a split
  // or shrink is not stopped, but take() aborts its communicator.
  void abort();
  // The result for ncclCommGetAsyncError(). Also removes the calls that have ended from `pending`. Neither waits for
  // calls in progress nor takes part in them, because the progress threads carry them out.
  ncclResult_t state();

 private:
  const ncclComm_t handle_;
  const int forks_;  // value of forks() when the Comm was created; in a child forked later, forks() is greater
};

using CommPtr = std::shared_ptr<Comm>;

// Adds a Comm to the table. The returned handle is valid from then on.
ncclComm_t add_to_table(const CommPtr& comm);
// Removes a Comm from the table. Its handle is invalid from then on.
void remove_from_table(const CommPtr& comm);

// Looks up a handle. Errors: ncclInvalidArgument if it is null, was destroyed, or is not a communicator;
// ncclInvalidUsage if the communicator belongs to a process from which this one was forked. In the last case *comm is
// set all the same.
ncclResult_t find(ncclComm_t handle, const char* function, CommPtr* comm);
// As find(), and the communicator must be ready for calls. Further errors: ncclInvalidArgument if the communicator is
// being set up or one of its jobs is in progress; the error of the set-up if that failed; ncclInvalidUsage if the
// communicator is revoked, suspended or finalized.
ncclResult_t find_ready(ncclComm_t handle, const char* function, CommPtr* comm);

// Marks the set-up of `comm` as failed with `error`. Does nothing if the set-up has ended already.
void mark_failed(Comm& comm, const Error& error) noexcept;

// The properties of a communicator that do not change after its set-up.
struct CommFacts {
  int rank = 0;
  int ranks = 0;
  int device = -1;       // CUDA device number; -1: no GPU
  std::uint64_t id = 0;  // Comm::id
};
// `function` begins the error message. Errors: those of find(), and ncclInvalidArgument if the communicator is being
// set up.
ncclResult_t facts_of(ncclComm_t handle, const char* function, CommFacts* facts);

// An operation on one communicator that may wait for other ranks.
struct Job {
  // The communicator that the job changes or creates. Its setting `blocking` decides in which thread the job runs. If
  // several jobs must run one after the other (run_jobs()), the setting of the first one decides for all of them.
  CommPtr comm;
  // Null, or the communicator from which `comm` is made. While the job runs, calls that need a ready communicator are
  // refused on the parent.
  CommPtr parent;
  std::function<ncclResult_t()> body;  // called at most once, without a mutex held
};

// Runs the jobs. Jobs of different communicators run at the same time; jobs that share a communicator (as Job::comm or
// Job::parent) run in the order of the list. Waits for the jobs of blocking communicators, and returns the first error
// of these. Jobs of nonblocking communicators continue in the background; the result is then ncclInProgress, unless
// there was an error. If there is no memory, or a thread cannot be started, the jobs concerned do not run, and the
// result is ncclSystemError unless another error came first. (If a thread for a blocking communicator cannot be
// started, no job of a blocking communicator runs.)
ncclResult_t run_jobs(std::vector<Job> jobs);

}  // namespace tutti::nccl
