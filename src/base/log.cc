#include "base/log.h"

#include <unistd.h>

#include <array>

namespace tutti {

void Log::emit(LogLevel level, const std::string& text) const {
  constexpr std::array<std::string_view, 5> kNames = {"off", "error", "warn", "info", "debug"};
  // A line without a rank concerns the whole process.
  const std::string who = rank_ < 0 ? "tutti" : fmt::format("tutti[{}]", rank_);
  const std::string line = fmt::format("{}: {}: {}\n", who, kNames[static_cast<std::size_t>(level)], text);
  // A failure of write() is ignored, because a lost log line must not make a call fail.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace tutti
