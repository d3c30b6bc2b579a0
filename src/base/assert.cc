#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace tutti {

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "tutti: assertion failed at %s:%d: %s %s\n", file, line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace tutti
