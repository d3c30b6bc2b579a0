// The program that open_test.cc starts. It opens the driver and NVML as any program would, and prints the results.
// With the argument `leak` it allocates memory and does not free it. With `behind` it first loads the driver by itself.
#include <dlfcn.h>

#include <cstdio>
#include <string_view>

#include "cuda/nvml.h"
#include "cuda/pointer.h"
#include "cuda/resources.h"

namespace {

using namespace tutti::cuda;

int leak(const Driver& driver) {
  const auto primary = PrimaryContext::retain(driver, 0);
  if (!primary) return 1;
  const auto scope = ContextScope::enter(driver, primary->context());
  CUdeviceptr address = 0;
  return scope.ok() && driver.api().mem_alloc(&address, 4096) == CUresult::kSuccess ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const int local = 0;
  const bool host = classify(&local).ok() && classify(&local)->kind == MemoryKind::kHost;
  std::printf("before: %s, host memory %s\n", Driver::loaded() == nullptr ? "not loaded" : "loaded",
              host ? "is the host's" : "is not the host's");
  if (mode == "behind") {  // load the driver without the library, which must notice it
    void* library = dlopen(kDriverLibrary, RTLD_NOW | RTLD_LOCAL);
    std::printf("behind our back: %s\n", library != nullptr && Driver::loaded() != nullptr ? "noticed" : "not noticed");
  }
  const auto driver = Driver::open();
  if (driver) {
    std::printf("opened: version %s, %d devices\n", version_text((*driver)->version()).c_str(),
                (*driver)->device_count().value());
  } else {
    std::printf("refused: %s\n", to_string(driver.error()).c_str());
  }
  const auto nvml = Nvml::open();
  std::printf("nvml: %s\n", nvml ? "opened" : to_string(nvml.error()).c_str());
  if (mode == "leak" && driver) return leak(**driver);
  return 0;
}
