#include "base/shared_library.h"

#include <dlfcn.h>

namespace tutti {

Result<SharedLibrary> SharedLibrary::open(const char* file, int flags) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | flags);
  if (handle != nullptr) return SharedLibrary(handle);
  const char* const reason = dlerror();  // null if RTLD_NOLOAD was passed and the library is not loaded
  return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
               reason == nullptr ? std::string(file) + " is not loaded" : reason};
}

void* SharedLibrary::address(const char* name) const { return dlsym(handle_, name); }

void SharedLibrary::close() { dlclose(handle_); }

}  // namespace tutti
