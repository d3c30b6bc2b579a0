#include "base/log.h"

#include <unistd.h>

#include <array>

namespace tutti {

void Log::emit(LogLevel level, const std::string& text) const {
  constexpr std::array<std::string_view, 5> kNames = {"off", "error", "warn", "info", "debug"};
  const std::string who = rank_ < 0 ? "tutti" : fmt::format("tutti[{}]", rank_);  // none: the process as a whole
  const std::string line = fmt::format("{}: {}: {}\n", who, kNames[static_cast<std::size_t>(level)], text);
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line.data(), line.size());  // a lost log line is no error
}

}  // namespace tutti
