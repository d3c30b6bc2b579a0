// The command `tutti verify`. It proves the plans of every algorithm of every collective for a range of rank counts,
// and tests the verifier by mutating plans. docs/verifier.md describes it.
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

// Parses "2..64" or "8". Returns nothing for any other text, for 0 ranks, and for a range that ends before it starts.
std::optional<RankRange> parse_rank_range(const std::string& text);

// Adds the command to `app`. Stores the result in `exit_code` when the command has run: 0 if everything was proved and
// the verifier detected every mutation.
void add_verify_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
