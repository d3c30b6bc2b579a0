// Control: the functions by which a test controls the fake CUDA driver. A test can register kernels, inject faults, set
// limits and ask for leaks. The fake driver is a shared library with the name libcuda.so.1; a test finds it at run time
// with control() and does not link it.
//
// Any thread may call these functions. Change a setting before the driver calls that it should affect.
//
// Environment variables describe the fake machine; defaults are in parentheses. Their names do not begin with TUTTI_,
// because the library rejects unknown TUTTI_ variables.
//   FAKE_CUDA_DEVICES (2)       number of devices; must be the same in every process of a test
//   FAKE_CUDA_BYTES (1 GiB)     memory of each device that one process can use
//   FAKE_CUDA_P2P (1)           1 if the devices can access each other's memory
//   FAKE_CUDA_LOSES_WRITES (0)  1: what this process writes into memory of other processes is lost
//   FAKE_CUDA_BLOCKS (16)       blocks that a device can run at once, for all launches of one process
//   FAKE_CUDA_VMM (1)           1 if the devices support virtual memory management (cuMemCreate ...)
//   FAKE_CUDA_VERSION (13000)   version of the driver; functions that are newer than this version are missing
//   FAKE_CUDA_INIT (0)          the result of cuInit
//   FAKE_CUDA_WITHOUT           name of a function that is missing
//   FAKE_CUDA_STUB (0)          1 to behave as the stub library of the CUDA toolkit
//   FAKE_CUDA_FAIL              for example "cuMemAlloc:3:2": the third call of cuMemAlloc fails with result 2
//   FAKE_CUDA_STUCK_MS (60000)  timeout of every wait inside the fake driver, in ms. The default is 30 s more than
//                               patience() (tests/support/patience.h): a test's own waits end first, and ctest's
//                               limit is later, also with a sanitizer
//   FAKE_CUDA_IMPLICIT_WAITS (0)  1 if module loads and unloads, the first launch in a context, and launches that need
//                                 more local memory than all before wait for the work of the context, as on a real
//                                 driver. Calls that free memory always wait
//   FAKE_CUDA_LEAKS (0)         1 to report leaks on stderr when the process exits
//
// A variable of the real driver works, too. It is read when a context is made:
//   CUDA_DEVICE_MAX_CONNECTIONS (0)  hardware queues that the streams of a context share, 1 to 32; see Channel in
//                                    queue.h. A real driver has 8 by default; 0 means that no streams share one
//
// Differences from a real driver:
// - The host can access device memory, so a wrong access from the host is not detected.
// - If a kernel uses an invalid address, the process crashes; the context does not get kIllegalAddress.
// - The limits of a device and the order of work apply within one process. Processes that use the same device do not
//   compete for its blocks or memory.
// - Managed memory does not migrate.
// - The nodes of a graph take no place in a channel, and a kernel that waits for free blocks counts as begun.
// - A launch in a graph does not count as the first launch in a context, and needs no more local memory than others.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cuda/driver_types.h"

namespace tutti::cuda::fake {

// One launch of a kernel. `arguments` points to copies of the arguments, made when the kernel was launched.
struct FakeLaunch {
  int device = 0;
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  unsigned shared_bytes = 0;
  void** arguments = nullptr;
  unsigned resident_blocks = 0;  // how many blocks of the launch the device can run at once
};

// A kernel. `run` executes a whole launch, with all of its blocks and threads, and returns when they have finished. If
// the result is not kSuccess (for example kIllegalAddress or kLaunchTimeout), it becomes the error of the context.
//
// A thread of the stream calls `run`. Other launches run on the device at the same time if there are enough blocks for
// them (FAKE_CUDA_BLOCKS). Therefore kernels can wait for each other under the same conditions as on a real device.
// Device pointers are ordinary addresses of the process.
struct FakeKernel {
  std::string name;
  std::vector<std::size_t> argument_bytes;  // size of each argument
  std::function<CUresult(const FakeLaunch&)> run;
  unsigned max_threads = 1024;  // maximum number of threads in a block; a launch with more threads fails
  std::size_t local_bytes = 0;  // local memory of a thread, for FunctionAttribute::kLocalBytes and the implicit waits
};

struct Control {
  // Makes a kernel available in every module. A kernel that is registered later replaces one of the same name, except
  // in modules that have already returned the function of that name.
  void (*register_kernel)(FakeKernel kernel);

  // Makes the nth call of `function` from now on (1 is the next call) fail with `result`.
  void (*fail)(const char* function, unsigned nth, CUresult result);
  // Makes the next call of `function` by the calling thread fail with `result`. For tests whose ranks are threads: the
  // other ranks may call the same function at the same time.
  void (*fail_here)(const char* function, CUresult result);
  void (*forget_faults)();                  // cancels all injected faults that have not happened yet
  unsigned (*calls)(const char* function);  // number of calls of `function` so far

  // Holds back one copy: the nth call of `function` from now on (1 is the next call). `function` is one of the
  // asynchronous copy functions, for example "cuMemcpyHtoDAsync". The stream of the copy waits until release() is
  // called. Each function has at most one copy that is held back; release() releases those of all functions.
  void (*hold_copy)(const char* function, unsigned nth);
  void (*release)();
  unsigned (*copies_done)(const char* function);  // number of copies by `function` that have finished so far

  void (*set_memory_limit)(int device, std::size_t bytes);
  void (*set_peer_access)(int device, int peer, bool can);  // whether `device` can access `peer`; not the reverse
  // Sets the timeout of waits inside the fake driver; 0: the default. A wait that times out prints a message and fails.
  void (*set_stuck_ms)(unsigned milliseconds);

  // create_context() makes a context that is not the primary one. destroy_context() destroys any context, with all
  // objects that were made in it, as a reset of the device does. Work that its streams have not started never runs.
  CUcontext (*create_context)(int device);
  void (*destroy_context)(CUcontext context);
  void (*set_deinitialized)(bool gone);  // if true, calls fail with kDeinitialized, as while a process exits

  // Allocates device memory for which IPC handles are not supported, like memory of cuMemAllocAsync. The memory belongs
  // to the device of the current context, and cuMemFree() frees it. Returns 0 if there is not enough memory.
  CUdeviceptr (*allocate_from_pool)(std::size_t bytes);

  // Describes the objects that were created and not released, one line for each; empty if there are none. Objects that
  // were destroyed together with a primary context count as leaks, too, but only one call of leaks() reports them.
  std::string (*leaks)();

  // Registers a function that is called with 1 when a thread enters the code of the fake driver, and with -1 when the
  // thread leaves it. A host function of a stream is code of the program: the fake driver calls watcher(-1) before it
  // and watcher(1) after it. Call watch_threads() before any work is submitted to a stream.
  void (*watch_threads)(void (*watcher)(int by));
};

using GetControl = const Control* (*)();

// Loads libcuda.so.1 and returns the controls of the fake driver. Returns null if libcuda.so.1 cannot be loaded or is
// not the fake driver.
inline const Control* control() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto get = reinterpret_cast<GetControl>(dlsym(library, "fake_cuda_control"));
  return get == nullptr ? nullptr : get();
}

}  // namespace tutti::cuda::fake
