// TUTTI_ASSERT: checks an invariant, also in release builds. A failed assertion is a bug in Tutti or in its caller: it
// prints the location and the reason, and aborts the process. TUTTI_TRY: returns early on an error.
#pragma once

#include <fmt/format.h>

#include <string>

namespace tutti {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, const std::string& message);
}  // namespace tutti

// Usage: TUTTI_ASSERT(condition) or TUTTI_ASSERT(condition, "format", args...)
#define TUTTI_ASSERT(condition, ...)                                                            \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::tutti::assertion_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

// Evaluates a Status or Result; returns its error from the enclosing function if it failed.
#define TUTTI_TRY(expression)                                                      \
  do {                                                                             \
    if (auto tutti_try_result = (expression); !tutti_try_result.ok()) [[unlikely]] \
      return std::move(tutti_try_result).error();                                  \
  } while (false)
