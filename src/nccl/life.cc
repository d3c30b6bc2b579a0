// The functions that finalize, destroy, abort, revoke, suspend and resume a communicator, and those that return its
// properties and its asynchronous error.
#include <fmt/format.h>

#include <utility>

#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/group.h"
#include "nccl/windows.h"

namespace tutti::nccl {
namespace {

// Waits for the calls that still run in the background (Comm::pending). Returns the error of the first call in this
// list that failed.
Status finish_pending(Comm& comm) {
  std::vector<std::shared_ptr<Work>> works;
  {
    const std::scoped_lock lock(comm.mutex);
    works = std::exchange(comm.pending, {});
  }
  Status first;
  for (const auto& work : works) {
    Status ended = work->wait();
    if (first.ok()) first = std::move(ended);
  }
  return first;
}

// The job of ncclCommFinalize() and of ncclCommDestroy(): waits for the communicator's calls and, unless one of these
// failed, for its puts. Then finalizes it.
ncclResult_t finalize(Comm& comm) {
  Status finished = finish_pending(comm);
  std::shared_ptr<Windows> windows;
  {
    const std::scoped_lock lock(comm.mutex);
    windows = comm.windows;
  }
  if (windows != nullptr && finished.ok()) finished = windows->finish();
  const Status ended = comm.communicator->finalize();
  {
    const std::scoped_lock lock(comm.mutex);
    if (comm.phase == Phase::kReady) comm.phase = Phase::kFinalized;
  }
  if (!finished.ok()) return fail(finished.error());
  return ended.ok() ? ncclSuccess : fail(ended.error());
}

// How ncclCommDestroy() destroys a communicator.
enum class DestroyAction : std::uint8_t {
  kFinalize,  // finalize it first, which waits for the operations in progress
  // abort it: its set-up has not ended or has failed, it has an asynchronous error, or it was aborted, revoked or
  // suspended
  kAbort,
  kNothing,  // only remove its handle, because it was finalized
  kRefuse,   // return an error, because the communicator is ready and one of its jobs is in progress
};

DestroyAction destroy_action_of(Comm& comm) {
  const std::scoped_lock lock(comm.mutex);
  if (comm.phase == Phase::kFinalized) return DestroyAction::kNothing;
  if (comm.phase != Phase::kReady || comm.aborted || comm.async_error || comm.communicator == nullptr) {
    return DestroyAction::kAbort;
  }
  return comm.jobs_running > 0 ? DestroyAction::kRefuse : DestroyAction::kFinalize;
}

// For a forked child that destroys or aborts a communicator of its parent process, or of an earlier one: removes the
// handle from the table and leaks the Comm. Returns false, and does nothing, if the handle is invalid or the
// communicator belongs to this process.
bool leak_inherited(ncclComm_t handle) {
  CommPtr comm;
  if (find(handle, "", &comm) == ncclSuccess || comm == nullptr) return false;
  remove_from_table(comm);
  // The reference is leaked, so that the destructor never runs: it would use connections and memory of the parent.
  static_cast<void>(new CommPtr(comm));
  return true;
}

template <class Value>
ncclResult_t answer(const char* function, ncclComm_t comm, Value* place, Value CommFacts::*fact) {
  if (place == nullptr) return fail(ncclInvalidArgument, fmt::format("{}: the place for the answer is null", function));
  CommFacts facts;
  if (const ncclResult_t result = facts_of(comm, function, &facts); result != ncclSuccess) return result;
  *place = facts.*fact;
  return ncclSuccess;
}

}  // namespace

TUTTI_NCCL(ncclResult_t, CommFinalize, ncclComm_t comm) {
  return guarded_in_group([&] {
    CommPtr found;
    if (const ncclResult_t ready = find_ready(comm, "ncclCommFinalize", &found); ready != ncclSuccess) {
      return ready;
    }
    return run_job({.comm = found, .parent = nullptr, .body = [found] { return finalize(*found); }});
  });
}

TUTTI_NCCL(ncclResult_t, CommDestroy, ncclComm_t comm) {
  return guarded_in_group([&] {
    CommPtr found;
    if (comm == nullptr) return ncclSuccess;  // as in NCCL
    if (leak_inherited(comm)) return ncclSuccess;
    if (const ncclResult_t there = find(comm, "ncclCommDestroy", &found); there != ncclSuccess) return there;
    const DestroyAction action = destroy_action_of(*found);
    if (action == DestroyAction::kRefuse) {
      return fail(ncclInvalidArgument,
                  "ncclCommDestroy: an earlier call on this communicator is still in progress: ask "
                  "ncclCommGetAsyncError() until it is ncclSuccess, or call ncclCommAbort()");
    }
    remove_from_table(found);
    if (action == DestroyAction::kAbort) found->abort();
    if (action != DestroyAction::kFinalize) return ncclSuccess;
    const ncclResult_t begun =
        run_job({.comm = found, .parent = nullptr, .body = [found] { return finalize(*found); }});
    // ncclInProgress is replaced by ncclSuccess: the handle is invalid now, so the program could not ask when the job
    // has ended.
    return begun == ncclInProgress ? ncclSuccess : begun;
  });
}

TUTTI_NCCL(ncclResult_t, CommAbort, ncclComm_t comm) {
  return guarded_in_group([&] {
    CommPtr found;
    if (comm == nullptr) return ncclSuccess;  // as in NCCL
    if (leak_inherited(comm)) return ncclSuccess;
    if (const ncclResult_t there = find(comm, "ncclCommAbort", &found); there != ncclSuccess) return there;
    remove_from_table(found);
    found->abort();
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommRevoke, ncclComm_t comm, int revokeFlags) {
  return guarded_in_group([&] {
    CommPtr found;
    if (const ncclResult_t there = find(comm, "ncclCommRevoke", &found); there != ncclSuccess) return there;
    if (revokeFlags != NCCL_REVOKE_DEFAULT) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommRevoke: flags {} are not 0", revokeFlags));
    }
    {
      const std::scoped_lock lock(found->mutex);
      if (found->communicator == nullptr) {
        return fail(ncclInvalidUsage, "ncclCommRevoke: the communicator was not made yet");
      }
      if (found->phase == Phase::kFinalized) {
        return fail(ncclInvalidUsage, "ncclCommRevoke: the communicator was finalized");
      }
      found->phase = Phase::kRevoked;
    }
    found->abort();
    finish_pending(*found).ok();  // the errors are ignored: the calls were aborted
    const std::scoped_lock lock(found->mutex);
    found->async_error.reset();
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError) {
  return guarded([&] {
    CommPtr found;
    if (asyncError == nullptr) return fail(ncclInvalidArgument, "ncclCommGetAsyncError: the place for it is null");
    if (const ncclResult_t there = find(comm, "ncclCommGetAsyncError", &found); there != ncclSuccess) return there;
    *asyncError = found->state();
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommCount, const ncclComm_t comm, int* count) {
  return guarded([&] { return answer("ncclCommCount", comm, count, &CommFacts::ranks); });
}

TUTTI_NCCL(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank) {
  return guarded([&] { return answer("ncclCommUserRank", comm, rank, &CommFacts::rank); });
}

// Stores the CUDA device number, or -1 if the communicator has no GPU and works on host memory.
TUTTI_NCCL(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device) {
  return guarded([&] { return answer("ncclCommCuDevice", comm, device, &CommFacts::device); });
}

TUTTI_NCCL(ncclResult_t, CommSuspend, ncclComm_t comm, int flags) {
  return guarded_in_group([&] {
    CommPtr found;
    if (const ncclResult_t ready = find_ready(comm, "ncclCommSuspend", &found); ready != ncclSuccess) {
      return ready;
    }
    if (flags != NCCL_SUSPEND_MEM) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommSuspend: flags {} are not NCCL_SUSPEND_MEM", flags));
    }
    const auto body = [found] {
      const Status suspended = found->communicator->suspend();
      if (!suspended.ok()) return fail(suspended.error());
      const std::scoped_lock lock(found->mutex);
      if (found->phase == Phase::kReady) found->phase = Phase::kSuspended;
      return ncclSuccess;
    };
    return run_job({.comm = found, .parent = nullptr, .body = body});
  });
}

TUTTI_NCCL(ncclResult_t, CommResume, ncclComm_t comm) {
  return guarded_in_group([&] {
    CommPtr found;
    if (const ncclResult_t there = find(comm, "ncclCommResume", &found); there != ncclSuccess) return there;
    {
      const std::scoped_lock lock(found->mutex);
      if (found->phase != Phase::kSuspended || found->jobs_running > 0) {
        return fail(ncclInvalidUsage, "ncclCommResume: the communicator is not suspended");
      }
    }
    const auto body = [found] {
      const Status resumed = found->communicator->resume();
      if (!resumed.ok()) return fail(resumed.error());
      const std::scoped_lock lock(found->mutex);
      if (found->phase == Phase::kSuspended) found->phase = Phase::kReady;
      return ncclSuccess;
    };
    return run_job({.comm = found, .parent = nullptr, .body = body});
  });
}

TUTTI_NCCL(ncclResult_t, CommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return guarded([&] {
    CommPtr found;
    if (value == nullptr) return fail(ncclInvalidArgument, "ncclCommMemStats: the place for the value is null");
    if (const ncclResult_t there = find(comm, "ncclCommMemStats", &found); there != ncclSuccess) return there;
    const std::scoped_lock lock(found->mutex);
    if (found->communicator == nullptr) {
      return fail(ncclInvalidArgument, "ncclCommMemStats: the communicator was not made yet");
    }
    switch (stat) {
      case ncclStatGpuMemSuspend:
      case ncclStatGpuMemTotal: *value = found->communicator->device_memory_use(); return ncclSuccess;
      case ncclStatGpuMemSuspended: *value = found->phase == Phase::kSuspended ? 1 : 0; return ncclSuccess;
      case ncclStatGpuMemPersist: *value = 0; return ncclSuccess;  // ncclCommSuspend() frees all of the memory
    }
    return fail(ncclInvalidArgument,
                fmt::format("ncclCommMemStats: statistic {} does not exist", static_cast<int>(stat)));
  });
}

}  // namespace tutti::nccl
