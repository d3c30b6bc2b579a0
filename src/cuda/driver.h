// The CUDA driver, opened at run time: nothing of CUDA is needed to build Tutti or to start it. Whoever touches a
// device goes through here: the runtime at set-up (open), every call on buffers (loaded), the tools. Any thread.
//
// Invariants: at most one driver in a process, never closed again; a Driver that was handed out stays valid until the
// process ends, and is constant. The driver keeps state that is the process's too (its current context is the
// thread's).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/driver_api.h"
#include "tutti/result.h"

namespace tutti::cuda {

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

class Driver {
 public:
  // Opens and initialises the driver; after a success, only returns it. Errors (kUnsupported), each saying what to do:
  // no driver, the toolkit's stub in its place, too old, no device; all of them leave host memory usable.
  static Result<const Driver*> open();

  // The driver, where this process has loaded it for itself, else null. Without it no pointer can be a device's, so
  // this is the first look at a buffer: about 12 ns while no driver is there, and less than 1 ns afterwards (measured
  // on a virtual machine; asking dlopen() each time took 21,000 ns).
  static const Driver* loaded();

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }  // 13020 is CUDA 13.2

  // Errors (kUnsupported): the driver is older than `version`; `what` needs it, "the device code" for instance.
  Status require(int version, std::string_view what) const;

  Result<int> device_count() const;

  // Success, or what `call` (a driver function, with what it was about) failed with.
  Status check(CUresult result, std::string_view call) const {
    if (result == CUresult::kSuccess) [[likely]]
      return {};
    return error(result, call);
  }
  Error error(CUresult result, std::string_view call) const;

 private:
  friend class DriverLoader;
  DriverApi api_;
  int version_ = 0;
};

// "13.2" of 13020.
std::string version_text(int version);

// Whether the result says that the context is gone with all that was in it: destroyed, lost to a failed kernel or to
// failing hardware, or the driver has shut down.
bool is_lost(CUresult result);

}  // namespace tutti::cuda
