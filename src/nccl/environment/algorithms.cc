#include "nccl/environment/algorithms.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <optional>
#include <string>

namespace tutti::nccl {
namespace {

// A word of algSelection without its underscores and in lower case: "COLLNET_DIRECT_SIMPLE" and "CollNetDirect_simple"
// give the same text.
std::string plain(std::string_view word) {
  std::string text;
  for (const char c : word) {
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Protocols by algorithm: element i is the set of protocols for kAlgorithmWords[i].
using Pairs = std::array<std::uint32_t, kAlgorithmWords.size()>;

// Adds the pairs that `word` names. Returns false if it is no valid word.
bool add_word(std::string_view word, Pairs& pairs) {
  const std::string text = plain(word);
  bool known = text.starts_with("symk");
  for (std::size_t algorithm = 0; algorithm < kAlgorithmWords.size(); ++algorithm) {
    const std::string name = plain(kAlgorithmWords[algorithm]);
    if (text == name) {
      pairs[algorithm] = kAllProtocols;
      known = true;
    }
    for (std::size_t protocol = 0; protocol < kProtocolWords.size(); ++protocol) {
      if (text != name + plain(kProtocolWords[protocol])) continue;
      pairs[algorithm] |= 1u << protocol;
      known = true;
    }
  }
  return known;
}

}  // namespace

Counterparts counterparts(CollectiveKind kind, std::uint32_t algorithms) {
  Counterparts found;
  for (const Counterpart& one : kCounterparts) {
    if (one.kind != kind) continue;
    ++found.known;
    if ((algorithms & one.bit()) != 0) found.allowed.push_back(one.algorithm);
  }
  return found;
}

Result<AlgorithmSelection> parse_algorithm_selection(std::string_view text) {
  AlgorithmSelection selection;
  if (text.empty()) return selection;
  selection.excludes = text.starts_with('^');
  std::string_view rest = text.substr(selection.excludes ? 1 : 0);
  Pairs named{};
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    if (!add_word(word, named)) {
      return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                   fmt::format("algSelection \"{}\": \"{}\" is no algorithm of NCCL: the names are those of NCCL_ALGO, "
                               "alone or with a protocol (ring, tree_ll128), and symk",
                               text, word)};
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  selection.algorithms = 0;
  for (std::size_t algorithm = 0; algorithm < kAlgorithmWords.size(); ++algorithm) {
    const std::uint32_t allowed = selection.excludes ? kAllProtocols & ~named[algorithm] : named[algorithm];
    if (allowed == 0) continue;
    selection.algorithms |= 1u << algorithm;
    selection.limits_protocols |= allowed != kAllProtocols;
  }
  return selection;
}

}  // namespace tutti::nccl
