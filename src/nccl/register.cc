// The functions that register and deregister buffers (ncclCommRegister) and windows (ncclCommWindowRegister), and
// ncclWinGetUserPtr.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/group.h"
#include "nccl/memory.h"
#include "nccl/windows.h"

namespace tutti::nccl {
namespace {

ncclResult_t check_registration(const char* function, const void* data, std::size_t bytes, const void* place) {
  if (place != nullptr && data != nullptr && bytes > 0) return ncclSuccess;
  return fail(ncclInvalidArgument, fmt::format("{}: {}", function,
                                               place == nullptr  ? "the place for the handle is null"
                                               : data == nullptr ? "the buffer is null"
                                                                 : "0 bytes cannot be registered"));
}

ncclResult_t register_window(Comm& comm, void* data, std::size_t bytes, ncclWindow_t* place) {
  std::shared_ptr<Windows> windows;
  {
    const std::scoped_lock lock(comm.mutex);
    if (comm.windows == nullptr) comm.windows = std::make_shared<Windows>(comm.rank);
    windows = comm.windows;
  }
  auto window = windows->add(*comm.communicator, data, bytes);
  if (!window) return fail(window.error());
  *place = *window;
  return ncclSuccess;
}

// Finds the communicator and its windows. Errors: those of find(); ncclInvalidArgument if the communicator has never
// begun to register a window.
ncclResult_t find_windows(const char* function, ncclComm_t handle, CommPtr* comm, std::shared_ptr<Windows>* windows) {
  if (const ncclResult_t there = find(handle, function, comm); there != ncclSuccess) return there;
  const std::scoped_lock lock((*comm)->mutex);
  *windows = (*comm)->windows;
  if (*windows != nullptr) return ncclSuccess;
  return fail(ncclInvalidArgument, fmt::format("{}: this communicator has no window", function));
}

}  // namespace

// A local operation, as in NCCL: other ranks need not call it. Device memory could only be registered by all ranks
// together, so for device memory this function returns a handle but registers nothing.
TUTTI_NCCL(ncclResult_t, CommRegister, const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return guarded([&] {
    CommPtr found;
    if (const ncclResult_t right = check_registration("ncclCommRegister", buff, size, handle); right != ncclSuccess)
      return right;
    if (const ncclResult_t ready = find_ready(comm, "ncclCommRegister", &found); ready != ncclSuccess) return ready;
    Registration made;
    if (is_host_memory(buff)) {
      auto registered = register_if_useful(*found->communicator, buff, size);
      if (!registered) return fail(registered.error());
      made = *std::move(registered);
    }
    const std::scoped_lock lock(found->mutex);
    const std::uintptr_t number = ++found->last_registration;
    found->registrations[number] = std::move(made);
    *handle = reinterpret_cast<void*>(number);  // NOLINT: the handle is a number, not an address
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommDeregister, const ncclComm_t comm, void* handle) {
  return guarded([&] {
    CommPtr found;
    if (const ncclResult_t there = find(comm, "ncclCommDeregister", &found); there != ncclSuccess) return there;
    const std::scoped_lock lock(found->mutex);
    if (found->registrations.erase(reinterpret_cast<std::uintptr_t>(handle)) > 0) return ncclSuccess;
    return fail(ncclInvalidArgument,
                "ncclCommDeregister: the handle is none of this communicator's, or was deregistered already");
  });
}

TUTTI_NCCL(ncclResult_t, CommWindowRegister, ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
           int winFlags) {
  return guarded_in_group([&] {
    constexpr const char* kName = "ncclCommWindowRegister";
    CommPtr found;
    if (const ncclResult_t right = check_registration(kName, buff, size, win); right != ncclSuccess) return right;
    *win = nullptr;
    if (const ncclResult_t ready = find_ready(comm, kName, &found); ready != ncclSuccess) return ready;
    constexpr int kFlags =
        NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY | NCCL_WIN_CFT_COUNTED;
    if ((winFlags & ~kFlags) != 0) {
      return fail(ncclInvalidArgument, fmt::format("{}: flags {:#x} are none of NCCL's", kName, winFlags));
    }
    if (reinterpret_cast<std::uintptr_t>(buff) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
      return fail(ncclInvalidArgument, fmt::format("{}: {} is not aligned to {} bytes: take ncclMemAlloc()", kName,
                                                   buff, NCCL_WIN_REQUIRED_ALIGNMENT));
    }
    const auto body = [found, buff, size, win] { return register_window(*found, buff, size, win); };
    return run_job({.comm = found, .parent = nullptr, .body = body});
  });
}

TUTTI_NCCL(ncclResult_t, CommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  return guarded_in_group([&] {
    CommPtr found;
    std::shared_ptr<Windows> windows;
    if (win == nullptr) return ncclSuccess;  // as in NCCL
    const ncclResult_t there = find_windows("ncclCommWindowDeregister", comm, &found, &windows);
    if (there != ncclSuccess) return there;
    const Status removed = windows->remove(win);
    return removed.ok() ? ncclSuccess : fail(removed.error());
  });
}

TUTTI_NCCL(ncclResult_t, WinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  return guarded([&] {
    CommPtr found;
    std::shared_ptr<Windows> windows;
    if (outUserPtr == nullptr) return fail(ncclInvalidArgument, "ncclWinGetUserPtr: the place for the address is null");
    if (const auto there = find_windows("ncclWinGetUserPtr", comm, &found, &windows); there != ncclSuccess)
      return there;
    const auto data = windows->data_of(win);
    if (!data) return fail(data.error());
    *outUserPtr = *data;
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
