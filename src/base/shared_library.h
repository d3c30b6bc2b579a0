// A shared library that is opened at run time, so that Tutti also starts on machines that do not have it.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti {

// An object is used by one thread; several threads may open the same library. Destroying the object leaves the
// library open, because other threads may still be calling into it when the process ends.
class SharedLibrary {
 public:
  // Opens `file`, for example "libssl.so.3", so that other libraries do not see its symbols (RTLD_LOCAL). `flags`:
  // further flags of dlopen(). The error is kUnsupported, and its message is the reason that the system gives, or that
  // the library is not loaded (RTLD_NOLOAD).
  static Result<SharedLibrary> open(const char* file, int flags = 0);

  // Sets `function` to the library's function `name`, or to null if the library has no such function. See missing().
  template <class Function>
  void find(Function& function, const char* name) {
    find_optional(function, name);
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  // Like find(), but for a function that is not required: missing() never returns its name.
  template <class Function>
  void find_optional(Function& function, const char* name) {
    function = reinterpret_cast<Function>(address(name));
  }
  // The first function name that find() did not find; null if find() has found all functions.
  const char* missing() const { return missing_; }

  // Closes the library. Its functions and data must not be used any more.
  void close();

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}
  void* address(const char* name) const;

  void* handle_;
  const char* missing_ = nullptr;
};

}  // namespace tutti
