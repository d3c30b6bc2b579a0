// The options --goal and --chakra of `tutti plan`: they write the plan of one call of a given size in the formats
// of other simulators, GOAL for LogGOPSim and Chakra for ASTRA-sim. Used by one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

struct ExportOptions {
  // the file to write; empty: none
  std::string goal_path;
  // the folder for one file per rank; empty: none
  std::string chakra_folder;
  // length of the message, all its blocks together, in the syntax of `tutti perf`: 8, 4K, 64M
  std::string bytes;
  // length of one element in bytes, in the same syntax
  std::string element_bytes = "4";
  // length of the longest message that a connection can carry, in the same syntax
  std::string slot_bytes = "512K";

  // True if some file is to be written.
  bool wanted() const { return !goal_path.empty() || !chakra_folder.empty(); }
};

// Adds the options to `command`.
void add_export_options(CLI::App& command, ExportOptions& options);

// Checks the options. Call it before the plan is built, so that an error is reported without delay. Errors:
// kInvalidArgument.
Status check_export(const ExportOptions& options);

// Writes the requested files; does nothing if none is requested. Errors: those of check_export(),
// CallOperations::create() and write_file(); kSystem if the folder for Chakra cannot be created.
Status export_plan(const Plan& plan, const ExportOptions& options);

}  // namespace tutti::tool
