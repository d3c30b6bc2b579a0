#include "nccl/plugins/plugin_log.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string_view>

#include "base/config.h"
#include "nccl/environment/environment.h"

namespace tutti::nccl {
namespace {

// NCCL's numbers for the levels of its log.
enum NcclLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kAbort = 4, kTrace = 5 };

LogLevel log_level_of(int level) {
  switch (level) {
    case kNone: return LogLevel::kOff;
    case kWarn: return LogLevel::kWarn;
    case kTrace: return LogLevel::kDebug;
    default: return LogLevel::kInfo;
  }
}

}  // namespace

const Log& plugin_log() {
  // Made once, because NCCL's logger has no argument that could pass an object to it.
  static const Log log = [] {
    const auto& environment = process_settings();
    const Variables defaults = environment.ok() ? environment->overlay : Variables();
    const auto config = parse_config(with_defaults(environment_variables(), defaults));
    return Log(config.ok() ? config->log_level : Config().log_level, -1);
  }();
  return log;
}

void write_plugin_log(int level, unsigned long /*subsystems*/, const char* /*file*/, int /*line*/, const char* format,
                      ...) {
  const LogLevel its_level = log_level_of(level);
  if (format == nullptr || its_level == LogLevel::kOff || !plugin_log().enabled(its_level)) return;
  std::array<char, 1024> text{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::string_view message(text.data());
  while (message.ends_with('\n')) message.remove_suffix(1);
  plugin_log().write(its_level, "plugin: {}", message);
}

}  // namespace tutti::nccl
