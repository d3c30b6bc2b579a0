// `tutti plan --goal FILE --chakra DIRECTORY`: the plan of one call of a stated size, for other simulators. One thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

struct ExportOptions {
  std::string goal_path;
  std::string chakra_folder;
  std::string bytes;  // as tutti perf takes them: of the whole message, whatever the number of its blocks
  std::string element_bytes = "4";
  std::string slot_bytes = "512K";

  bool wanted() const { return !goal_path.empty() || !chakra_folder.empty(); }
};

void add_export_options(CLI::App& command, ExportOptions& options);

// Before the plan is built. Errors: kInvalidArgument.
Status check_export(const ExportOptions& options);

// Does nothing where no export is asked for. Errors as CallOperations::create() and write_file().
Status export_plan(const Plan& plan, const ExportOptions& options);

}  // namespace tutti::tool
