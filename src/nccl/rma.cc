// The exported one-sided calls: ncclPutSignal, ncclSignal and ncclWaitSignal. windows.h describes how they work.
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/group.h"
#include "nccl/streams.h"
#include "nccl/windows.h"

namespace tutti::nccl {
namespace {

ncclResult_t fail_in(const char* function, const std::string& message) {
  return fail(ncclInvalidArgument, fmt::format("{}: {}", function, message));
}

ncclResult_t outcome(const Status& status) { return status.ok() ? ncclSuccess : fail(status.error()); }

// Finds the communicator of a one-sided call, and the communicator's windows. Errors: those of find_ready();
// ncclInvalidUsage if the communicator has never begun to register a window.
ncclResult_t find_windows(const char* function, ncclComm_t handle, CommPtr* comm, std::shared_ptr<Windows>* windows) {
  if (const ncclResult_t ready = find_ready(handle, function, comm); ready != ncclSuccess) return ready;
  const std::scoped_lock lock((*comm)->mutex);
  *windows = (*comm)->windows;
  if (*windows != nullptr) return ncclSuccess;
  return fail(ncclInvalidUsage,
              fmt::format("{}: register a window on all ranks first (ncclCommWindowRegister)", function));
}

ncclResult_t check_signal(const char* function, const Comm& comm, const Signal& signal, unsigned flags) {
  if (signal.peer < 0 || signal.peer >= comm.ranks) {
    return fail_in(function, fmt::format("peer {} is outside 0..{}", signal.peer, comm.ranks - 1));
  }
  if (signal.index < 0 || signal.context < 0) {
    return fail_in(function, fmt::format("signal {} or context {} is negative", signal.index, signal.context));
  }
  if (flags != 0) return fail_in(function, fmt::format("flags {} are not 0", flags));
  return ncclSuccess;
}

ncclResult_t put(const char* function, const Signal& signal, unsigned flags, ncclComm_t handle, ncclWindow_t window,
                 std::size_t offset, const void* data, std::size_t count, std::size_t element_bytes,
                 cudaStream_t stream) {
  CommPtr comm;
  std::shared_ptr<Windows> windows;
  if (const ncclResult_t there = find_windows(function, handle, &comm, &windows); there != ncclSuccess) return there;
  if (const ncclResult_t right = check_signal(function, *comm, signal, flags); right != ncclSuccess) return right;
  if (count > 0 && data == nullptr) return fail_in(function, "the buffer is null");
  if (element_bytes > 0) {
    if (const auto known = windows->data_of(window); !known) return fail(known.error());
  }
  if (element_bytes > 0 && count > SIZE_MAX / element_bytes)
    return fail_in(function, "count is more than memory holds");
  const std::size_t bytes = count * element_bytes;
  const auto body = [=] {
    const auto scope = comm->enter_device();
    if (!scope) return fail(scope.error());
    return outcome(windows->put(signal, window, offset, data, bytes, stream));
  };
  return run_one_sided({.waits = false, .body = body});
}

}  // namespace

TUTTI_NCCL(ncclResult_t, PutSignal, const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
           cudaStream_t stream) {
  return guarded_in_group([&] {
    if (datatype < 0 || datatype >= ncclNumTypes) {
      return fail_in("ncclPutSignal", fmt::format("type {} is none of NCCL's", static_cast<int>(datatype)));
    }
    return put("ncclPutSignal", {.peer = peer, .index = sigIdx, .context = ctx}, flags, comm, peerWin, peerWinOffset,
               localbuff, count, size_of(static_cast<DataType>(datatype)), stream);
  });
}

TUTTI_NCCL(ncclResult_t, Signal, int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
           cudaStream_t stream) {
  return guarded_in_group([&] {
    return put("ncclSignal", {.peer = peer, .index = sigIdx, .context = ctx}, flags, comm, nullptr, 0, nullptr, 0, 0,
               stream);
  });
}

// Blocks the calling thread until the signals have arrived, and ignores the stream. Inside a group, ncclGroupEnd()
// blocks instead. Work that is enqueued afterwards, in any stream, therefore finds the data.
TUTTI_NCCL(ncclResult_t, WaitSignal, int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t) {
  return guarded_in_group([&] {
    constexpr const char* kName = "ncclWaitSignal";
    CommPtr found;
    std::shared_ptr<Windows> windows;
    if (const auto there = find_windows(kName, comm, &found, &windows); there != ncclSuccess) return there;
    if (nDesc < 1 || signalDescs == nullptr) {
      return fail_in(kName, fmt::format("{} descriptions: give at least one", nDesc));
    }
    const std::vector<ncclWaitSignalDesc_t> wanted(signalDescs, signalDescs + nDesc);
    for (const ncclWaitSignalDesc_t& one : wanted) {
      const Signal signal{.peer = one.peer, .index = one.sigIdx, .context = one.ctx};
      if (const auto right = check_signal(kName, *found, signal, 0); right != ncclSuccess) return right;
      if (one.opCnt < 0) return fail_in(kName, fmt::format("{} signals are waited for", one.opCnt));
    }
    const auto body = [=] {
      const auto scope = found->enter_device();
      if (!scope) return fail(scope.error());
      for (const ncclWaitSignalDesc_t& one : wanted) {
        const Signal signal{.peer = one.peer, .index = one.sigIdx, .context = one.ctx};
        const Status waited = windows->wait(signal, static_cast<std::uint64_t>(one.opCnt));
        if (!waited.ok()) return fail(waited.error());
      }
      return ncclSuccess;
    };
    return run_one_sided({.waits = true, .body = body});
  });
}

}  // namespace tutti::nccl
