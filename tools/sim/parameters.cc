#include "tools/sim/parameters.h"

#include <fmt/format.h>

#include <utility>

#include "tools/common/file.h"
#include "tools/common/messages.h"

namespace tutti::tool {

Result<Parameters> read_parameters(const std::string& path) {
  // Read one byte more than the limit, so that parse_parameters() detects a file that is too long.
  const Result<std::string> text = read_file(path, kMostParameterBytes + 1);
  if (!text) return text.error();
  Result<Parameters> parameters = parse_parameters(*text);
  if (parameters) return parameters;
  return wrong_content(fmt::format("{}: {}", path, parameters.error().message));
}

}  // namespace tutti::tool
