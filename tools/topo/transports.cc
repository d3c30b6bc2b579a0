#include "tools/topo/transports.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/config.h"
#include "job/data_paths.h"

namespace tutti::tool {
namespace {

std::string_view state_of(const detail::PathCandidate& candidate) {
  if (candidate.chosen) return "chosen";
  return candidate.usable ? "usable" : "not usable";
}

}  // namespace

Result<std::string> list_transports(bool as_json) {
  auto config = parse_config(environment_variables());
  if (!config) return config.error();
  const std::vector<detail::PathCandidate> candidates = detail::path_candidates(*config);
  if (as_json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const detail::PathCandidate& one : candidates) {
      list.push_back({{"name", one.name}, {"usable", one.usable}, {"chosen", one.chosen}, {"words", one.words}});
    }
    return nlohmann::ordered_json{{"transports", list}}.dump(2) + "\n";
  }
  std::string text =
      "Between machines; inside one, ranks share memory. A pair of ranks takes the first that both have.\n";
  for (const detail::PathCandidate& one : candidates) {
    text += fmt::format("{:<6} {}\n", one.name, state_of(one));
    for (const std::string& word : one.words) text += fmt::format("       {}\n", word);
  }
  return text;
}

}  // namespace tutti::tool
