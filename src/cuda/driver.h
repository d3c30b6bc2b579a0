// Driver: the CUDA driver, opened at run time, so that Tutti builds and starts without CUDA. All code that uses a GPU
// calls it through this class. Set-up with a named GPU, topology discovery and the tools use open(). Calls on buffers
// use loaded(), which does not load the driver into a program that has not loaded it. May be used from any thread.
//
// Invariants: a process has at most one Driver for each library of Tutti that it has loaded (libtutti, libnccl), and
// never closes it. A Driver is constant, and stays valid until the process exits. The driver itself has state that it
// shares with the rest of the process, for example the current context of each thread.
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
  // Opens and initialises the driver. After a success, later calls only return it. Errors (almost always kUnsupported,
  // with a remedy): for example, there is no driver, the library is the toolkit's stub, the driver is too old, or there
  // is no device. Calls on host memory work in all of these cases.
  static Result<const Driver*> open();

  // Returns the driver if its library is already loaded into this process, by Tutti or by the program. Returns null if
  // the library is not loaded, or if it cannot be used. Without the library no pointer can be device memory, so buffers
  // are examined only if the result is not null. The function takes about 12 ns while the driver is not loaded, and
  // less than 1 ns afterwards (measured on a virtual machine; calling dlopen() each time took 21,000 ns).
  static const Driver* loaded();

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }  // for example 13020 for CUDA 13.2

  Result<int> device_count() const;

  // Turns a result of the driver into a Status. `call` is the beginning of an error message: the driver function and
  // its object, for example "cuMemAlloc of 64 bytes".
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

// Formats a version, for example "13.2" for 13020.
std::string version_text(int version);

// Whether the result means that the context and all its contents are lost: the context was destroyed, a kernel or the
// hardware failed, or the driver has shut down.
bool is_lost(CUresult result);

}  // namespace tutti::cuda
