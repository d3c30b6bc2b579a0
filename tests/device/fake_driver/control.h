// What a test asks of the double beyond the driver's own functions: kernels to run, faults to inject, limits to set,
// leaks to report. The double is a libcuda.so.1 of its own; a test reaches it through control() and links nothing.
//
// Any thread. Set things up before the calls that they are to meet.
//
// The environment says what machine it is; the names do not begin with TUTTI_, since unknown ones that do are refused:
//   FAKE_CUDA_DEVICES (2)      how many devices, the same in every process of a test
//   FAKE_CUDA_BYTES (1 GiB)    memory of each, as one process may use it
//   FAKE_CUDA_P2P (1)          whether they reach each other
//   FAKE_CUDA_BLOCKS (16)      blocks that run at once on a device, of the launches of one process
//   FAKE_CUDA_VMM (1)          whether it has virtual memory
//   FAKE_CUDA_VERSION (13000)  of the driver; it has no functions that are newer
//   FAKE_CUDA_INIT (0), FAKE_CUDA_WITHOUT, FAKE_CUDA_STUB   see hooks.cc
//   FAKE_CUDA_FAIL             "cuMemAlloc:3:2": the third call of cuMemAlloc fails with 2
//   FAKE_CUDA_STUCK_MS (60000) after which a wait gives up; FAKE_CUDA_LEAKS (0) whether to report leaks at exit
//
// What it does not have: device memory that the host cannot touch (a wrong host access is not noticed here), a segment
// fault caught as an illegal address (the process dies), order between processes of one device, managed memory that
// moves.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cuda/driver_types.h"

namespace tutti::cuda::fake {

// One launch of a kernel. `arguments` points to copies that were taken when it was launched.
struct FakeLaunch {
  int device = 0;
  std::array<unsigned, 3> grid{};
  std::array<unsigned, 3> block{};
  unsigned shared_bytes = 0;
  void** arguments = nullptr;
  unsigned resident_blocks = 0;  // how many of its blocks have room on the device at once
};

// A kernel: a function that runs the whole launch, all blocks and threads of it, and returns when they have ended; its
// result becomes the context's (kSuccess, kIllegalAddress, kLaunchTimeout ...). It is called by a thread of the stream,
// at the same time as the other launches of the device that fit beside it (FAKE_CUDA_BLOCKS), so kernels may wait for
// each other exactly as far as they could on a device. Device pointers are addresses that it can use as they are.
struct FakeKernel {
  std::string name;
  std::vector<std::size_t> argument_bytes;  // of each argument
  std::function<CUresult(const FakeLaunch&)> run;
  unsigned most_threads = 1024;  // of a block; a launch of more is refused
};

struct Control {
  void (*register_kernel)(FakeKernel kernel);  // known from then on to every module; of one name, the last counts

  void (*fail)(const char* function, unsigned nth, CUresult result);  // its nth call from now, 1 the next, fails so
  void (*forget_faults)();
  unsigned (*calls)(const char* function);  // so far

  // Copies, by the function that was called for them. One at a time is held: the nth from now, 1 the next; its stream
  // waits for release().
  void (*hold_copy)(const char* function, unsigned nth);
  void (*release)();
  unsigned (*copies_done)(const char* function);  // so far

  void (*set_memory_limit)(int device, std::size_t bytes);
  void (*set_peer_access)(int device, int peer, bool can);  // one direction
  void (*set_stuck_ms)(unsigned milliseconds);              // after which a wait gives up and says so

  // Contexts that are not the primary one. Destroying one ends all that was made in it, as a reset of the device does;
  // what its streams have not begun never runs.
  CUcontext (*create_context)(int device);
  void (*destroy_context)(CUcontext context);
  void (*set_deinitialized)(bool gone);  // every call fails as it does while a process ends

  // Device memory that has no handle of its own, as cuMemAllocAsync gives: of the current context's device, freed by
  // cuMemFree. 0: there is not enough.
  CUdeviceptr (*allocate_from_pool)(std::size_t bytes);

  // What was handed out and not given back, a line each; empty: nothing. What went with a primary context that was
  // released counts, and is told once.
  std::string (*leaks)();

  // Has watcher(1) called when a thread begins to run the double's own code, and watcher(-1) when it ends that. A host
  // function is the caller's code: watcher(-1) is called before it, and watcher(1) after it. Call this before any work
  // is in a stream.
  void (*watch_threads)(void (*watcher)(int by));
};

using GetControl = const Control* (*)();

// The double's; null where libcuda.so.1 is another library or there is none. Loads it.
inline const Control* control() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto get = reinterpret_cast<GetControl>(dlsym(library, "fake_cuda_control"));
  return get == nullptr ? nullptr : get();
}

}  // namespace tutti::cuda::fake
