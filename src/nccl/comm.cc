#include "nccl/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "cuda/driver.h"
#include "nccl/windows.h"

namespace tutti::nccl {
namespace {

// The handles that are alive. NCCL's functions take handles and nothing else, so the table is the process's.
struct Table {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, CommPtr> comms;
};

Table& table() {
  static auto& the = *new Table;  // never destroyed: a program may end with communicators that it did not destroy
  return the;
}

ncclResult_t fail_in(const char* function, ncclResult_t result, const std::string& message) {
  return fail(result, fmt::format("{}: {}", function, message));
}

// Jobs that share a communicator, directly or as what they are made from.
const Comm* lane_of(const Job& job) { return job.parent != nullptr ? job.parent.get() : job.comm.get(); }

void count_job(const Job& job, int difference) {
  for (const CommPtr& comm : {job.comm, job.parent}) {
    if (comm == nullptr) continue;
    const std::scoped_lock lock(comm->mutex);
    comm->jobs_running += difference;
  }
}

ncclResult_t run_lane(const std::vector<Job>& lane) noexcept {
  ncclResult_t first = ncclSuccess;
  for (const Job& job : lane) {
    ncclResult_t result = ncclInternalError;
    try {
      result = job.body();
    } catch (const std::bad_alloc&) {
      result = fail_without_memory();
    }
    count_job(job, -1);
    if (first == ncclSuccess) first = result;
  }
  return first;
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
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) return RankDevice();
  cuda::CUcontext context = nullptr;
  if (driver->api().ctx_get_current(&context) != cuda::CUresult::kSuccess || context == nullptr) return RankDevice();
  cuda::CUdevice device = 0;
  TUTTI_TRY(driver->check(driver->api().ctx_get_device(&device), "finding the device of the current context"));
  return of(static_cast<std::int32_t>(device));
}

Comm::Comm(std::int32_t its_rank, std::int32_t its_ranks, RankDevice its_device, const Settings& its_settings)
    : rank(its_rank), ranks(its_ranks), device(std::move(its_device)), settings(its_settings) {}

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
}

ncclResult_t Comm::take(Result<std::unique_ptr<Communicator>> made) {
  const std::scoped_lock lock(mutex);
  if (!made) {
    failure = made.error();
    phase = Phase::kFailed;
    return fail(*failure);
  }
  communicator = *std::move(made);
  phase = Phase::kReady;
  if (aborted) communicator->abort();
  return ncclSuccess;
}

void Comm::abort() {
  const std::scoped_lock lock(mutex);
  aborted = true;
  if (windows != nullptr) windows->abort();
  if (communicator != nullptr) communicator->abort();
}

ncclResult_t Comm::state() {
  const std::scoped_lock lock(mutex);
  if (phase == Phase::kFailed) return number_of(failure->code);
  if (jobs_running > 0) return ncclInProgress;
  if (communicator == nullptr) return ncclSuccess;
  std::erase_if(pending, [&](const std::shared_ptr<Work>& work) {
    if (!work->test()) return false;
    const Status ended = work->wait();
    if (!ended.ok() && !async_error) async_error = ended.error();
    return true;
  });
  if (phase == Phase::kReady && device.number >= 0) {
    const Status late = communicator->async_status();
    if (!late.ok() && !async_error) async_error = late.error();
  }
  if (async_error) return fail(*async_error);
  return pending.empty() ? ncclSuccess : ncclInProgress;
}

ncclComm_t enter(const CommPtr& comm) {
  const std::scoped_lock lock(table().mutex);
  table().comms[comm->handle()] = comm;
  return comm->handle();
}

void leave(const CommPtr& comm) {
  const std::scoped_lock lock(table().mutex);
  table().comms.erase(comm->handle());
}

ncclResult_t find(ncclComm_t handle, const char* function, CommPtr* comm) {
  if (handle == nullptr) return fail_in(function, ncclInvalidArgument, "the communicator is null");
  const std::shared_lock lock(table().mutex);
  const auto found = table().comms.find(handle);
  if (found == table().comms.end()) {
    return fail_in(function, ncclInvalidArgument,
                   fmt::format("{} is no communicator: it was destroyed or aborted, or never made",
                               static_cast<const void*>(handle)));
  }
  *comm = found->second;
  return ncclSuccess;
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
    case Phase::kUnmade:
      return fail_in(function, ncclInvalidArgument,
                     "the communicator is made at the end of the open group: use it after ncclGroupEnd()");
    case Phase::kFailed:
      return fail_in(function, number_of((*comm)->failure->code),
                     "the communicator was never made: " + to_string(*(*comm)->failure));
    case Phase::kRevoked:
      return fail_in(function, ncclInvalidUsage, "the communicator was revoked: split, shrink or destroy it");
    case Phase::kSuspended:
      return fail_in(function, ncclInvalidUsage, "the communicator is suspended: call ncclCommResume() first");
    case Phase::kFinalized:
      return fail_in(function, ncclInvalidUsage, "the communicator was finalized: it can only be destroyed");
  }
  return ncclInternalError;
}

ncclResult_t facts_of(ncclComm_t handle, CommFacts* facts) {
  CommPtr comm;
  if (const ncclResult_t found = find(handle, "the communicator", &comm); found != ncclSuccess) return found;
  *facts = {.rank = comm->rank, .ranks = comm->ranks, .device = comm->device.number};
  return ncclSuccess;
}

ncclResult_t run_jobs(std::vector<Job> jobs) {
  std::vector<std::vector<Job>> lanes;
  for (Job& job : jobs) {
    count_job(job, 1);
    const auto same = [&](const auto& lane) { return lane_of(lane.front()) == lane_of(job); };
    const auto found = std::find_if(lanes.begin(), lanes.end(), same);
    (found != lanes.end() ? *found : lanes.emplace_back()).push_back(std::move(job));
  }
  std::vector<ncclResult_t> results(lanes.size(), ncclSuccess);
  std::vector<std::string> messages(lanes.size());
  std::vector<std::thread> threads;
  bool in_background = false;
  std::size_t here = lanes.size();  // the lane that this thread runs itself
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const bool blocking = lanes[i].front().comm->settings.blocking;
    in_background |= !blocking;
    if (blocking && here == lanes.size()) {
      here = i;
      continue;
    }
    try {
      if (blocking) {
        threads.emplace_back([&, i] {
          results[i] = run_lane(lanes[i]);
          if (results[i] != ncclSuccess) messages[i] = last_error();
        });
      } else {
        std::thread([lane = lanes[i]] { run_lane(lane); }).detach();
      }
    } catch (const std::system_error& error) {
      for (const Job& job : lanes[i]) {
        count_job(job, -1);
        const std::scoped_lock lock(job.comm->mutex);
        if (job.comm->phase != Phase::kUnmade) continue;
        job.comm->phase = Phase::kFailed;
        job.comm->failure =
            Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                  fmt::format("no thread can be started ({}): raise the limit of processes", error.what())};
      }
      results[i] = ncclSystemError;
      messages[i] = "no thread can be started: raise the limit of processes or of memory";
    }
  }
  if (here < lanes.size()) {
    results[here] = run_lane(lanes[here]);
    if (results[here] != ncclSuccess) messages[here] = last_error();
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (results[i] != ncclSuccess && results[i] != ncclInProgress) return fail(results[i], messages[i]);
  }
  return in_background ? ncclInProgress : ncclSuccess;
}

}  // namespace tutti::nccl
