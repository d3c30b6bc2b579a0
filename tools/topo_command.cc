#include "tools/topo_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "kernels/cpu/reduce.h"
#include "kernels/device/device_image.h"
#include "tools/exit_status.h"
#include "tools/topo_report.h"

namespace tutti::tool {
namespace {

int run_topo(bool as_json) {
  Machine machine;
  machine.host = discover_host();
  machine.simd = kernels::target_name();
  const auto architectures = kernels::device_architectures();
  machine.architectures.assign(architectures.begin(), architectures.end());
  Result<GpuTopology> gpus = discover_gpus();
  if (!gpus) {
    fmt::print(stderr, "tutti topo: {}\n", to_string(gpus.error()));
    return kExitFailure;
  }
  machine.gpus = *std::move(gpus);
  const std::string text = as_json ? to_json(machine) : to_text(machine);
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!written) fmt::print(stderr, "tutti topo: standard output takes nothing more\n");
  return written ? kExitSuccess : kExitFailure;
}

}  // namespace

void add_topo_command(CLI::App& app, int& exit_status) {
  auto as_json = std::make_shared<bool>(false);  // shared with the callback, which outlives this call
  CLI::App* command = app.add_subcommand("topo", "What this machine is: processors, GPUs, and how they are connected");
  command->footer(
      "Numbers of GPUs are the CUDA driver's: CUDA_VISIBLE_DEVICES counts. Without a driver or a GPU it says why and\n"
      "shows the rest. Exit status: 0; 1 where the driver or NVML fails, with the name of the failure.");
  command->add_flag("--json", *as_json, "One JSON object instead of text; docs/topo-json.md has its fields");
  command->callback([as_json, &exit_status] { exit_status = run_topo(*as_json); });
}

}  // namespace tutti::tool
