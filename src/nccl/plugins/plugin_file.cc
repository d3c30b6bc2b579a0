#include "nccl/plugins/plugin_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "nccl/environment/parse.h"

namespace tutti::nccl {
namespace {

constexpr std::string_view kProgramItself = "the program itself";

const void* find_table(SharedLibrary& library, const char* symbol, int version) {
  const void* table = nullptr;
  library.find_optional(table, fmt::format("{}{}", symbol, version).c_str());
  return table;
}

// Looks for the newest version in the library. If there is none, writes a warning.
std::optional<PluginFile> find_version(const PluginType& type, SharedLibrary& library, std::string name,
                                       const Log& log) {
  for (const int version : type.versions) {
    if (const void* table = find_table(library, type.symbol, version); table != nullptr) {
      return PluginFile{.name = std::move(name), .version = version, .table = table};
    }
  }
  std::vector<int> others;
  for (const int version : type.other_versions) {
    if (find_table(library, type.symbol, version) != nullptr) others.push_back(version);
  }
  log.write(LogLevel::kWarn, "{}: {} is not used: it has {}, and Tutti supports {}", type.variable, name,
            others.empty() ? fmt::format("no table {}N", type.symbol)
                           : fmt::format("only version {} of {}", fmt::join(others, ", "), type.symbol),
            fmt::join(type.versions, ", "));
  return std::nullopt;
}

}  // namespace

std::vector<std::string> plugin_files(std::string_view file, const std::optional<std::string>& value) {
  if (!value) return {fmt::format("{}.so", file)};
  if (same_word(*value, "none")) return {};
  if (same_word(*value, "STATIC_PLUGIN")) return {""};
  std::vector<std::string> files = {*value};
  const bool is_library = value->starts_with("lib") && value->ends_with(".so");
  if (value->find('/') == std::string::npos && !is_library) files.push_back(fmt::format("{}-{}.so", file, *value));
  return files;
}

std::optional<PluginFile> open_plugin(const PluginType& type, const std::optional<std::string>& value, const Log& log) {
  const std::vector<std::string> files = plugin_files(type.file, value);
  std::vector<std::string> reasons;
  for (const std::string& file : files) {
    auto library = SharedLibrary::open(file.empty() ? nullptr : file.c_str());
    if (library.ok()) {
      return find_version(type, *library, file.empty() ? std::string(kProgramItself) : file, log);
    }
    reasons.push_back(library.error().message);
  }
  // The default file normally does not exist.
  const LogLevel level = value ? LogLevel::kWarn : LogLevel::kInfo;
  if (!files.empty()) {
    log.write(level, "{}={}: the plugin is not used, because it cannot be opened: {}", type.variable,
              value.value_or(files.front()), fmt::join(reasons, ", and "));
  }
  return std::nullopt;
}

}  // namespace tutti::nccl
