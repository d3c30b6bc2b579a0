// The options --goal and --chakra of `tutti plan`: they write the plan of one call of a given size in the formats of
// other simulators. Used by one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

struct ExportOptions {
  std::string goal_path;
  std::string chakra_folder;
  std::string bytes;  // in the syntax of tutti perf; the whole message, with all its blocks
  std::string element_bytes = "4";
  std::string slot_bytes = "512K";

  bool wanted() const { return !goal_path.empty() || !chakra_folder.empty(); }
};

// Adds the options to `command`.
void add_export_options(CLI::App& command, ExportOptions& options);

// Checks the options; to be called before the plan is built. Errors: kInvalidArgument.
Status check_export(const ExportOptions& options);

// Writes the requested files, if any. Errors: those of CallOperations::create() and write_file().
Status export_plan(const Plan& plan, const ExportOptions& options);

}  // namespace tutti::tool
