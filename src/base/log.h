// Log: writes log lines of one rank, or of the whole process if `rank` is negative, to stderr. A line has the form
// "tutti[rank]: level: text", or "tutti: level: text" without a rank, and is written by one write(). Thread-safe. If
// there is no memory for a line, the line is dropped and no exception is thrown, because destructors write log lines,
// too.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/exceptions.h"

namespace tutti {

enum class LogLevel : std::uint8_t { kOff = 0, kError, kWarn, kInfo, kDebug };

class Log {
 public:
  Log(LogLevel level, std::int32_t rank) : level_(level), rank_(rank) {}

  bool enabled(LogLevel level) const { return level <= level_; }
  template <class... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const noexcept {
    if (enabled(level)) runs_through([&] { emit(level, fmt::format(format, std::forward<Args>(args)...)); });
  }

 private:
  void emit(LogLevel level, const std::string& text) const;
  LogLevel level_;
  std::int32_t rank_;
};

}  // namespace tutti
