// The command `tutti verify`. By default, it proves the plans of every algorithm of every collective for a range of
// numbers of ranks. It also tests the verifier: it changes (mutates) plans and checks that the verifier rejects them,
// if the change is not harmless. Options select one collective or algorithm, or a user's plan from a file.
// docs/verifier.md describes the command.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti::tool {

// Numbers of ranks, both ends included.
struct RankRange {
  std::uint32_t first = 2;
  std::uint32_t last = 64;

  bool operator==(const RankRange&) const = default;
};

// Parses "2..64", or "8" for 8..8. Returns nothing for any other text, for 0 ranks, and for a range that ends
// before it starts.
std::optional<RankRange> parse_rank_range(const std::string& text);

// Adds the command to `app`. When the command line selects this command, app.parse() runs it and stores its exit code
// in `exit_code`, which must outlive the parsing. The exit code is 0 if at least one plan was proved, no proof failed,
// and the verifier detected every mutation that is not harmless. Plans that were left out or only partly checked do not
// change it. With --plan, the exit code is 0 if the plan was proved.
void add_verify_command(CLI::App& app, int& exit_code);

}  // namespace tutti::tool
