#include "cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <type_traits>

#include "base/assert.h"
#include "base/shared_library.h"

namespace tutti::cuda {
namespace {

constexpr std::string_view kHostWorks = "host memory works without it";

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

// The remedy that is added to the message of an error; empty if none is known.
std::string_view advice(CUresult result) {
  switch (result) {
    case CUresult::kOutOfMemory: return "free device or pinned memory, or use fewer or smaller slots";
    case CUresult::kNotInitialized:
      return "a process that is forked after CUDA was used cannot use it: start it afresh (exec, spawn)";
    case CUresult::kStubLibrary:
      return "this is the toolkit's stub, for linking only: take its folder out of LD_LIBRARY_PATH";
    case CUresult::kNoDevice: return "is a GPU there, and visible (CUDA_VISIBLE_DEVICES, the container's --gpus)?";
    case CUresult::kSystemDriverMismatch:
      return "the driver's library and its kernel module differ: reboot, or reload the module";
    case CUresult::kNoBinaryForGpu:
    case CUresult::kInvalidImage:
    case CUresult::kUnsupportedPtxVersion:
      return "the device code has nothing for this GPU and this driver: update the driver (code that nvcc 13 has built "
             "needs driver 580), or build for this GPU, with nvcc 12.8 or 12.9 if the driver is older";
    case CUresult::kInvalidContext: return "no context is current, or it is another device's";
    case CUresult::kIllegalAddress:
    case CUresult::kLaunchFailed:
    case CUresult::kLaunchTimeout: return "the context is lost with all its memory: end the process";
    default: return {};
  }
}

ErrorCode code_of(CUresult result) {
  switch (result) {
    case CUresult::kStubLibrary:
    case CUresult::kCallRequiresNewerDriver:
    case CUresult::kNoDevice:
    case CUresult::kNoBinaryForGpu:
    case CUresult::kInvalidImage:
    case CUresult::kPeerAccessUnsupported:
    case CUresult::kUnsupportedPtxVersion:
    case CUresult::kNotSupported:
    case CUresult::kSystemDriverMismatch: return ErrorCode::kUnsupported;
    default: return ErrorCode::kDevice;
  }
}

// The number of libraries that this process has ever loaded. It changes when a library is loaded, and reading it is
// cheaper than searching for a library.
std::uint64_t loads_so_far() {
  std::uint64_t loads = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uint64_t*>(out) = info->dlpi_adds;
        return 1;  // every entry has the same counter, so stop after the first one
      },
      &loads);
  return loads;
}

// The driver of this process. It is a static variable because a second Driver would be the same library with the same
// state. It is never destroyed, because other threads may still call it while the process exits.
struct Process {
  std::mutex opening;
  std::optional<Driver> driver;                    // written once, while the mutex `opening` is held
  std::atomic<const Driver*> opened{nullptr};      // stored with release order after `driver` is written
  std::atomic<std::uint64_t> loads_without_it{0};  // loads_so_far() before the last search that found no usable driver
};
static_assert(std::is_trivially_destructible_v<Driver>);

Process& process() {
  static Process process;
  return process;
}

}  // namespace

// Makes a Driver from a library that dlopen() has opened.
class DriverLoader {
 public:
  static Result<Driver> load(SharedLibrary& library) {
    Driver driver;
    ProcAddress address = nullptr;
    library.find(address, "cuGetProcAddress_v2");
    if (address == nullptr) return too_old(old_version(library));
    TUTTI_TRY(fill(address, driver.api_));
    if (const CUresult result = driver.api_.driver_get_version(&driver.version_); result != CUresult::kSuccess) {
      return driver.error(result, "cuDriverGetVersion");
    }
    if (const CUresult result = driver.api_.init(0); result != CUresult::kSuccess) {
      Error error = driver.error(result, "cuInit");
      error.code = ErrorCode::kUnsupported;
      return error;
    }
    return driver;
  }

 private:
  static Status fill(ProcAddress address, DriverApi& api) {
    std::string missing;
    CUresult failed = CUresult::kSuccess;
    for_each_function(api, [&](const char* name, int version, auto& function) {
      void* found = nullptr;
      const CUresult result = address(name, &found, version, kProcAddressDefault, nullptr);
      if (result != CUresult::kSuccess && result != CUresult::kNotFound) failed = result;
      if (result != CUresult::kSuccess || found == nullptr) {
        missing = missing.empty() ? name : missing;
      } else {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      }
    });
    if (missing.empty()) return {};
    if (failed == CUresult::kStubLibrary) {
      return unsupported(fmt::format("{} is not the CUDA driver (CUDA_ERROR_STUB_LIBRARY): {}; {}", kDriverLibrary,
                                     advice(failed), kHostWorks));
    }
    int version = 0;
    if (api.driver_get_version != nullptr) api.driver_get_version(&version);
    return too_old(version, missing);
  }

  static int old_version(SharedLibrary& library) {
    CUresult (*get)(int*) = nullptr;
    library.find(get, "cuDriverGetVersion");
    int version = 0;
    if (get != nullptr && get(&version) == CUresult::kSuccess) return version;
    return 0;
  }

  static Error too_old(int version, std::string_view missing = "cuGetProcAddress_v2") {
    return unsupported(
        fmt::format("the CUDA driver{} is too old for Tutti: it lacks {}; {} or newer is needed: "
                    "update the driver; {}",
                    version > 0 ? " " + version_text(version) : "", missing, version_text(kOldestDriver), kHostWorks));
  }
};

namespace {

// Opens the driver, or returns the one that is open. With `flags` RTLD_NOLOAD it succeeds only if the process has
// already loaded the library.
Result<const Driver*> open_with(int flags) {
  Process& own = process();
  const std::lock_guard lock(own.opening);
  if (own.driver) return &*own.driver;
  auto library = SharedLibrary::open(kDriverLibrary, flags);
  if (!library) {
    return unsupported(
        fmt::format("no CUDA driver: {}; install NVIDIA's driver, or let the container see it (--gpus all); {}",
                    library.error().message, kHostWorks));
  }
  auto driver = DriverLoader::load(*library);
  if (!driver) {
    library->close();
    return std::move(driver).error();
  }
  own.driver = *std::move(driver);  // the library is never closed, so that its function pointers stay valid
  own.opened.store(&*own.driver, std::memory_order_release);
  return &*own.driver;
}

}  // namespace

Result<const Driver*> Driver::open() {
  if (const Driver* driver = process().opened.load(std::memory_order_acquire)) return driver;
  return open_with(0);
}

const Driver* Driver::loaded() {
  Process& own = process();
  if (const Driver* driver = own.opened.load(std::memory_order_acquire)) return driver;
  const std::uint64_t loads = loads_so_far();  // read first, so that a load during the search is noticed next time
  if (own.loads_without_it.load(std::memory_order_relaxed) == loads) return nullptr;
  auto driver = open_with(RTLD_NOLOAD);
  if (driver) return *driver;
  own.loads_without_it.store(loads, std::memory_order_relaxed);
  return nullptr;
}

Result<int> Driver::device_count() const {
  int count = 0;
  TUTTI_TRY(check(api_.device_get_count(&count), "cuDeviceGetCount"));
  return count;
}

Error Driver::error(CUresult result, std::string_view call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.get_error_name(result, &name) != CUresult::kSuccess || name == nullptr) name = "an unknown error";
  if (api_.get_error_string(result, &text) != CUresult::kSuccess || text == nullptr) text = "no description";
  const std::string_view todo = advice(result);
  return {code_of(result), is_lost(result) ? ErrorScope::kProcess : ErrorScope::kCall, -1,
          fmt::format("{} fails: {} ({}, {}){}{}", call, name, static_cast<int>(result), text, todo.empty() ? "" : "; ",
                      todo)};
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

bool is_lost(CUresult result) {
  switch (result) {
    case CUresult::kDeinitialized:
    case CUresult::kContextIsDestroyed:
    case CUresult::kEccUncorrectable:
    case CUresult::kNvlinkUncorrectable:
    case CUresult::kContained:
    case CUresult::kIllegalAddress:
    case CUresult::kLaunchTimeout:
    case CUresult::kAssert:
    case CUresult::kHardwareStackError:
    case CUresult::kIllegalInstruction:
    case CUresult::kMisalignedAddress:
    case CUresult::kInvalidAddressSpace:
    case CUresult::kInvalidPc:
    case CUresult::kLaunchFailed: return true;
    default: return false;
  }
}

}  // namespace tutti::cuda
