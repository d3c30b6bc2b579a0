#include "tools/common/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <utility>

#include "base/config.h"
#include "base/printable.h"
#include "tools/common/exit_status.h"
#include "tools/common/system_error.h"

namespace tutti::tool {
namespace {

// For messages: describes the texts that parse_size() (tools/perf/options.h) accepts.
constexpr std::string_view kSizeForms = "bytes like 8, 4K, 64M, 1G or 1GiB (powers of 1024, at most 1024G)";

}  // namespace

std::string not_one_of(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view nearest = nearest_name(word, known);
  return fmt::format("\"{}\" is not one of {}{}", printable(word), fmt::join(known, ", "),
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

std::string not_a_size(std::string_view word) {
  return fmt::format("\"{}\" is not a size; write {}", printable(word), kSizeForms);
}

std::string not_a_number(std::string_view word) { return fmt::format("\"{}\" is not a number", printable(word)); }

std::string not_a_number(std::string_view word, double least, std::optional<double> most) {
  // The format prints numbers as a user writes them: 1048576 and not 1.04858e+06.
  return fmt::format("{} from {:.15g}{}", not_a_number(word), least, most ? fmt::format(" to {:.15g}", *most) : " on");
}

Error wrong_option(std::string_view name, std::string_view text) {
  return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, fmt::format("{}: {}", name, text)};
}

Error cannot_open(std::string_view path, int error_number) {
  return system_error(fmt::format("cannot open {}", path), error_number);
}

Error cannot_read(std::string_view path, int error_number) {
  return system_error(fmt::format("cannot read {}", path), error_number);
}

Error cannot_write(std::string_view path, int error_number) {
  return system_error(fmt::format("cannot write {}", path), error_number);
}

Error wrong_content(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }

std::optional<int> report_environment(std::string_view command) {
  const Result<Config> config = parse_config(environment_variables());
  if (config) return std::nullopt;
  fmt::print(stderr, "tutti {}: {}\n", command, to_string(config.error()));
  return kExitUsage;
}

int report_usage(std::string_view command, std::string_view message) {
  fmt::print(stderr, "tutti {0}: {1}\nSee tutti {0} --help.\n", command, message);
  return kExitUsage;
}

int report(std::string_view command, const Error& error) {
  if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported) {
    return report_usage(command, error.message);
  }
  fmt::print(stderr, "tutti {}: {}\n", command, error.message);
  return kExitFailure;
}

}  // namespace tutti::tool
