// `tutti verify`: proves every algorithm's plans of every collective for a range of rank counts, and the verifier by
// mutations.
// docs/verifier.md.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::tool {

struct RankRange {
  std::uint32_t first = 2;
  std::uint32_t last = 64;

  bool operator==(const RankRange&) const = default;
};

// "2..64" or "8"; nothing for anything else, for 0 ranks and for a range that ends before it starts.
std::optional<RankRange> parse_rank_range(const std::string& text);

// Sets `exit_code` when the command has run: 0 when everything was proved and no mutation missed.
void add_verify_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
