#include "nccl/comm.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/thread_group.h"
#include "communicator/machine_ranks.h"
#include "communicator/work.h"
#include "cuda/driver.h"
#include "nccl/api.h"
#include "nccl/background.h"
#include "nccl/windows.h"

namespace tutti::nccl {
namespace {

// The communicators with a valid handle, by handle. The table is global because NCCL's functions receive a handle and
// nothing else.
struct Table {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, CommPtr> comms;
};

Table& table() {
  // Never destroyed, because a program may exit without destroying its communicators.
  static auto& the = *new Table;
  return the;
}

ncclResult_t fail_in(const char* function, ncclResult_t result, const std::string& message) {
  return fail(result, fmt::format("{}: {}", function, message));
}

// Identifies the lane of a job: the parent or, if there is none, the communicator itself. Jobs of one lane run one
// after the other, because they work on the same communicator, or make new communicators from the same parent.
const Comm* lane_of(const Job& job) { return job.parent != nullptr ? job.parent.get() : job.comm.get(); }

using Lane = std::vector<Job>;

std::vector<Lane> lanes_of(const std::vector<Job>& jobs) {
  std::vector<Lane> lanes;
  for (const Job& job : jobs) {
    const auto same = [&](const Lane& lane) { return lane_of(lane.front()) == lane_of(job); };
    const auto found = std::find_if(lanes.begin(), lanes.end(), same);
    (found != lanes.end() ? *found : lanes.emplace_back()).push_back(job);
  }
  return lanes;
}

// The first job of a lane decides for all jobs of the lane.
bool is_blocking(const Lane& lane) { return lane.front().comm->settings.blocking; }

std::vector<CommPtr> comms_of(const Lane& lane) {
  std::vector<CommPtr> comms;
  for (const Job& job : lane) {
    comms.push_back(job.comm);
    if (job.parent != nullptr) comms.push_back(job.parent);
  }
  return comms;
}

void count_job(const Job& job, int difference) {
  for (const CommPtr& comm : {job.comm, job.parent}) {
    if (comm == nullptr) continue;
    const std::scoped_lock lock(comm->mutex);
    comm->jobs_running += difference;
  }
}

AsyncError async_error_of(ncclResult_t result, const char* message) noexcept {
  AsyncError error{.result = result, .message = kOutOfMemory};  // stays if there is no memory for a copy of the message
  runs_through([&] { error.message = message; });
  return error;
}

// Stores the error of a job in the job's communicators, so that ncclCommGetAsyncError() reports it. Jobs in the
// background need this, because the function that started the job has already returned.
void record_job_error(const Job& job, ncclResult_t result) noexcept {
  for (const CommPtr& comm : {job.comm, job.parent}) {
    if (comm == nullptr) continue;
    const std::scoped_lock lock(comm->mutex);
    if (!comm->async_error) comm->async_error = async_error_of(result, last_error());
  }
}

// Ends a job that cannot run. If the job was to create a communicator, marks this communicator as failed.
void give_up(const Job& job, const Error& error) noexcept {
  mark_failed(*job.comm, error);
  count_job(job, -1);
}

// Runs the jobs of a lane one after the other, all of them even if one fails. Passes each error to `failed`, while
// last_error() is its message. `waited_for`: a caller waits for the lane and gets its first error. If it is false, or
// if the communicator of the job is nonblocking, errors are also recorded for ncclCommGetAsyncError().
void run_lane(const Lane& lane, bool waited_for, const std::function<void(ncclResult_t)>& failed) noexcept {
  for (const Job& job : lane) {
    const ncclResult_t result = guarded(job.body);
    if (result != ncclSuccess && result != ncclInProgress) {
      if (!(waited_for && job.comm->settings.blocking)) record_job_error(job, result);
      // A set-up that has thrown an exception has not stored its failure.
      mark_failed(*job.comm, error_with([] { return std::string(last_error()); }, ErrorCode::kSystem,
                                        ErrorScope::kCommunicator, -1));
      failed(result);
    }
    count_job(job, -1);
  }
}

// The number of fork() calls that led to this process since the first communicator was created: fork() increments the
// counter in the child, not in the parent. A Comm stores the value at its creation. If the value differs later, this
// process is a forked child of the Comm's process. Asking the system for the process id instead would cost each call a
// system call.
std::atomic<int>& forks() {
  static std::atomic<int> count{0};
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks(); });
  static_cast<void>(watched);
  return count;
}

// Creates the plugins of `comm`, which its set-up has just made. No failure of a plugin is one of the communicator.
void make_plugins(Comm& comm, const Communicator& made) noexcept {
  runs_through([&] {
    const std::vector<std::int32_t> machines = detail::machine_ranks(made);
    const PluginFacts facts{.comm_id = comm.id,
                            .name = comm.settings.name.empty() ? nullptr : comm.settings.name.c_str(),
                            .rank = comm.rank,
                            .ranks = comm.ranks,
                            .nodes = static_cast<std::int32_t>(machines.size()),
                            .least_ranks_per_node = *std::ranges::min_element(machines),
                            .most_ranks_per_node = *std::ranges::max_element(machines)};
    comm.profiler = Profiler::create(facts);
    comm.tuner = Tuner::create(facts);
  });
}

ncclComm_t next_handle() {
  static std::atomic<std::uintptr_t> last{0};       // the handle that was given out last; handles are 16, 32, ...
  return reinterpret_cast<ncclComm_t>(last += 16);  // NOLINT: the handle is a number, not an address
}

}  // namespace

Result<RankDevice> RankDevice::of(std::int32_t number) {
  if (number < 0) return RankDevice();
  const auto driver = cuda::Driver::open();
  if (!driver) return driver.error();
  auto context = cuda::PrimaryContext::retain(**driver, number);
  if (!context) return context.error();
  return RankDevice{.number = number, .context = std::make_shared<cuda::PrimaryContext>(*std::move(context))};
}

Result<RankDevice> RankDevice::of_this_thread() {
  const cuda::Driver* loaded = cuda::Driver::loaded();
  if (loaded == nullptr) return RankDevice();
  cuda::CUcontext context = nullptr;
  const bool asked = loaded->api().ctx_get_current(&context) == cuda::CUresult::kSuccess;
  // As in the CUDA runtime: a thread without a current context uses device 0.
  if (!asked || context == nullptr) {
    const auto devices = loaded->device_count();
    return devices.ok() && *devices > 0 ? of(0) : Result<RankDevice>(RankDevice());
  }
  cuda::CUdevice device = 0;
  TUTTI_TRY(loaded->check(loaded->api().ctx_get_device(&device), "finding the device of the current context"));
  return of(static_cast<std::int32_t>(device));
}

Comm::Comm(std::int32_t its_rank, std::int32_t its_ranks, RankDevice its_device, const Settings& its_settings)
    : rank(its_rank),
      ranks(its_ranks),
      device(std::move(its_device)),
      settings(its_settings),
      handle_(next_handle()),
      forks_(forks().load()) {}

bool Comm::own_process() const { return forks_ == forks().load(std::memory_order_relaxed); }

bool Comm::is_creating() {
  const std::scoped_lock lock(mutex);
  return phase == Phase::kCreating;
}

Result<DeviceScope> Comm::enter_device() const {
  if (device.context == nullptr) return DeviceScope();
  auto scope = cuda::ContextScope::enter(*cuda::Driver::loaded(), device.context->context());
  if (!scope) return scope.error();
  return DeviceScope(*std::move(scope));
}

Comm::~Comm() {
  pending.clear();
  windows.reset();
  registrations.clear();
  tuner.reset();
  profiler.reset();
}

ncclResult_t Comm::take(Result<std::unique_ptr<Communicator>> made) {
  if (made.ok() && *made != nullptr) {
    id = detail::communicator_id(**made);
    make_plugins(*this, **made);
  }
  const std::scoped_lock lock(mutex);
  if (!made) {
    failure = std::move(made).error();
    phase = Phase::kFailed;
    return fail(*failure);
  }
  communicator = *std::move(made);
  phase = Phase::kReady;
  if (aborted && communicator != nullptr) communicator->abort();
  return ncclSuccess;
}

void Comm::record_error(const Error& error) {
  const std::scoped_lock lock(mutex);
  if (!async_error) async_error = AsyncError{.result = result_of(error.code), .message = to_string(error)};
}

void Comm::abort() {
  std::shared_ptr<Windows> its_windows;
  Communicator* its_communicator = nullptr;
  {
    const std::scoped_lock lock(mutex);
    aborted = true;
    *stop = true;
    its_windows = windows;
    its_communicator = communicator.get();
  }
  if (its_windows != nullptr) its_windows->abort();
  if (its_communicator != nullptr) its_communicator->abort();
}

ncclResult_t Comm::state() {
  std::vector<std::shared_ptr<Work>> works;
  {
    const std::scoped_lock lock(mutex);
    if (phase == Phase::kFailed) return fail(*failure);
    if (jobs_running > 0 || phase == Phase::kCreating) return ncclInProgress;
    if (communicator == nullptr) return ncclSuccess;
    works = pending;
  }
  // Work::test() is not used, because it takes part in the communication, and may block after an operation has failed.
  std::vector<std::shared_ptr<Work>> ended;
  for (const auto& work : works) {
    if (!detail::has_ended(*work)) continue;
    const Status status = work->wait();
    if (!status.ok()) record_error(status.error());
    ended.push_back(work);
  }
  const Status late = communicator->async_status();
  if (!late.ok()) record_error(late.error());
  const std::scoped_lock lock(mutex);
  std::erase_if(pending, [&](const auto& work) { return std::find(ended.begin(), ended.end(), work) != ended.end(); });
  if (phase == Phase::kRevoked) return ncclSuccess;
  if (async_error) return fail(async_error->result, async_error->message);
  return pending.empty() ? ncclSuccess : ncclInProgress;
}

ncclComm_t add_to_table(const CommPtr& comm) {
  const std::scoped_lock lock(table().mutex);
  table().comms[comm->handle()] = comm;
  return comm->handle();
}

void remove_from_table(const CommPtr& comm) {
  const std::scoped_lock lock(table().mutex);
  table().comms.erase(comm->handle());
}

ncclResult_t find(ncclComm_t handle, const char* function, CommPtr* comm) {
  if (handle == nullptr) return fail_in(function, ncclInvalidArgument, "the communicator is null");
  const std::shared_lock lock(table().mutex);
  const auto found = table().comms.find(handle);
  if (found == table().comms.end()) {
    return fail_in(function, ncclInvalidArgument,
                   fmt::format("{} is not a communicator: it was destroyed or aborted, or never existed",
                               static_cast<const void*>(handle)));
  }
  *comm = found->second;
  if ((*comm)->own_process()) return ncclSuccess;
  return fail_in(function, ncclInvalidUsage, "the communicator belongs to the process that this one was forked from");
}

ncclResult_t find_ready(ncclComm_t handle, const char* function, CommPtr* comm) {
  if (const ncclResult_t found = find(handle, function, comm); found != ncclSuccess) return found;
  const std::scoped_lock lock((*comm)->mutex);
  if ((*comm)->jobs_running > 0) {
    return fail_in(function, ncclInvalidArgument,
                   "an earlier call on this communicator is still in progress: ask ncclCommGetAsyncError() until it is "
                   "ncclSuccess");
  }
  switch ((*comm)->phase) {
    case Phase::kReady: return ncclSuccess;
    case Phase::kCreating:
      return fail_in(function, ncclInvalidArgument,
                     "the communicator is made at the end of the open group: use it after ncclGroupEnd()");
    case Phase::kFailed:
      return fail_in(function, result_of((*comm)->failure->code),
                     "the communicator was never made: " + to_string(*(*comm)->failure));
    case Phase::kRevoked:
      return fail_in(function, ncclInvalidUsage, "the communicator was revoked: split, shrink or destroy it");
    case Phase::kSuspended:
      return fail_in(function, ncclInvalidUsage, "the communicator is suspended: call ncclCommResume() first");
    case Phase::kFinalized:
      return fail_in(function, ncclInvalidUsage, "the communicator was finalized: destroy it, and create a new one");
  }
  return ncclInternalError;
}

ncclResult_t facts_of(ncclComm_t handle, const char* function, CommFacts* facts) {
  CommPtr comm;
  if (const ncclResult_t found = find(handle, function, &comm); found != ncclSuccess) return found;
  const std::scoped_lock lock(comm->mutex);
  if (comm->phase == Phase::kCreating) {
    return fail_in(function, ncclInvalidArgument, "the communicator is still being made");
  }
  *facts = {.rank = comm->rank, .ranks = comm->ranks, .device = comm->device.number, .id = comm->id};
  return ncclSuccess;
}

void mark_failed(Comm& comm, const Error& error) noexcept {
  const std::scoped_lock lock(comm.mutex);
  if (comm.phase != Phase::kCreating) return;
  comm.phase = Phase::kFailed;
  comm.failure = copy_of(error);
}

ncclResult_t run_jobs(std::vector<Job> jobs) {
  std::mutex mutex;
  // The error that occurred first. Later errors may be mere consequences of it.
  AsyncError first;
  const auto failed = [&](ncclResult_t result, const char* message) noexcept {
    const std::scoped_lock lock(mutex);
    if (first.result == ncclSuccess) first = async_error_of(result, message);
    // Stops the set-ups by detail::create() that have not ended, because they may wait for the job that failed.
    for (const Job& job : jobs) *job.comm->stop = *job.comm->stop || job.comm->is_creating();
  };
  const auto run = [&](const Lane& lane) noexcept {
    run_lane(lane, true, [&](ncclResult_t result) { failed(result, last_error()); });
  };
  // Call this in a catch block. The jobs of the lane do not run, because of the exception.
  const auto give_up_lane = [&](const Lane& lane) noexcept {
    const Error error = error_of_exception(ErrorScope::kCommunicator, -1, "no thread can be started");
    for (const Job& job : lane) give_up(job, error);
    failed(ncclSystemError, error.message.c_str());
  };
  for (const Job& job : jobs) count_job(job, 1);
  std::vector<Lane> lanes;
  try {
    lanes = lanes_of(jobs);
  } catch (...) {
    give_up_lane(jobs);
  }
  bool in_background = false;
  for (const Lane& lane : lanes) {
    if (is_blocking(lane)) continue;
    in_background = true;
    try {
      run_in_background([lane] { run_lane(lane, false, [](ncclResult_t) {}); }, comms_of(lane));
    } catch (...) {
      give_up_lane(lane);
    }
  }
  try {
    ThreadGroup threads;
    const Lane* own = nullptr;  // the lane that this thread runs itself
    for (const Lane& lane : lanes) {
      if (!is_blocking(lane)) continue;
      if (own != nullptr) threads.add([&run, &lane] { run(lane); });
      if (own == nullptr) own = &lane;
    }
    threads.open();
    if (own != nullptr) run(*own);
    threads.join();
  } catch (...) {  // a thread could not be started, so none of these lanes has begun
    for (const Lane& lane : lanes) {
      if (is_blocking(lane)) give_up_lane(lane);
    }
  }
  if (first.result != ncclSuccess) return fail(first.result, std::move(first.message));
  return in_background ? ncclInProgress : ncclSuccess;
}

}  // namespace tutti::nccl
