#include "tools/sim/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "algorithms/algorithms.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "tools/sim/run.h"
#include "tools/sim/svg.h"
#include "topology/cluster.h"

namespace tutti::tool {
namespace {

// A progress bar on standard error. Prints nothing if standard error is not a terminal.
class Bar {
 public:
  void show(double part, std::string_view what) {
    const int percent = static_cast<int>(100 * std::clamp(part, 0.0, 1.0));
    if (!shown_ || percent == percent_) return;
    percent_ = percent;
    const auto filled = static_cast<std::size_t>(percent * kWidth / 100);
    fmt::print(stderr, "\r[{:<{}}] {:3}% {:<24}", std::string(filled, '#'), kWidth, percent, what);
    std::fflush(stderr);
  }
  void clear() {
    if (shown_ && percent_ >= 0) fmt::print(stderr, "\r{:{}}\r", "", kWidth + 34);
    percent_ = -1;
  }

 private:
  static constexpr int kWidth = 40;
  bool shown_ = isatty(STDERR_FILENO) == 1;
  int percent_ = -1;
};

int fail(const Error& error) { return report("sim", error); }

// Writes a drawing of `best`, the fastest algorithm that has a plan, to the file `path`. The algorithm is simulated
// again to record the time lines of the first ranks, with the model kEvents if the task uses the model kSweep. If
// simulate() does not support that, for example because the plan is too large, only the links are drawn.
Status draw(const SimTask& task, const Network& network, const SimRow& best, const std::string& path) {
  const std::string title =
      fmt::format("{}, {}, {} bytes, {} ranks on {}: {:.3f} us", to_string(task.collective.kind),
                  to_string(best.algorithm), task.bytes, task.collective.ranks, task.cluster.name, best.result.time_us);
  Result<Generator> generator = find_generator(task.collective, best.algorithm, messages_of(task));
  if (!generator.ok()) return std::move(generator).error();
  SimulateOptions options = task.options;
  options.protocol = best.protocol;
  options.traced_ranks = kDrawnRanks;
  if (options.model == SimulationModel::kSweep) options.model = SimulationModel::kEvents;
  Result<SimulateResult> traced = simulate(*generator, task.block_bytes, network, task.parameters, options);
  if (!traced.ok() && traced.error().code != ErrorCode::kUnsupported) return std::move(traced).error();
  return write_file(path, to_svg(traced.ok() ? *traced : best.result, title));
}

int run_sim(const SimArguments& arguments) {
  for (const std::string* path : {&arguments.json_path, &arguments.svg_path}) {
    if (path->empty()) continue;
    if (const Status writable = check_writable(*path); !writable.ok()) return fail(writable.error());
  }
  const Result<SimTask> task = resolve(arguments);
  if (!task.ok()) return fail(task.error());
  const Result<Network> network = Network::create(task->cluster);
  if (!network.ok()) return fail(network.error());
  Bar bar;
  const auto progress = [&](std::optional<double> part, std::string_view what) {
    part ? bar.show(*part, what) : bar.clear();
  };
  const Result<SimReport> report = run_sim_task(*task, *network, progress);
  if (!report.ok()) return fail(report.error());
  const std::string text = to_text(*task, *report);
  std::fputs(text.c_str(), stdout);
  if (!flush_output("sim")) return kExitFailure;
  if (!arguments.json_path.empty()) {
    if (const Status done = write_file(arguments.json_path, to_json(*task, *report)); !done.ok()) {
      return fail(done.error());
    }
  }
  if (!arguments.svg_path.empty()) {
    const auto plan = std::find_if(report->rows.begin(), report->rows.end(),
                                   [](const SimRow& row) { return row.algorithm != Algorithm::kAuto; });
    if (const Status done = draw(*task, *network, *plan, arguments.svg_path); !done.ok()) {
      return fail(done.error());
    }
  }
  return kExitSuccess;
}

void add_faults(CLI::App& command, SimArguments& options) {
  command.add_option("--straggler", options.stragglers,
                     "RANK:FACTOR: everything that this rank does takes FACTOR times as long");
  command.add_option("--dead-rank", options.dead_ranks, "This rank never starts; reports the ranks that wait for it");
  command.add_option("--dead-link", options.dead_links,
                     "This link is broken; its name as in the list of busiest links");
  command.add_option("--jitter", options.jitter,
                     "Lengthen every duration by this factor times an exponential random number with mean 1");
  command.add_option("--seed", options.seed, "Seed of the jitter")->capture_default_str();
}

}  // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("sim", "Simulate a collective on a machine that need not exist");
  const auto options = std::make_shared<SimArguments>();  // shared with the callback, which outlives this function
  command->footer(
      "Without --algorithm, all suitable algorithms are simulated and listed, the fastest first. docs/sim.md describes "
      "the models.");
  command->add_option("collective", options->collective, "all_reduce, all_gather, ...")->capture_default_str();
  command->add_option("--shape", options->shape, "A ready-made machine by name; default: dgx-h100")
      ->check(name_in(shape_names()));
  command->add_option("--xml", options->xml_path, "Instead of a shape: the machine in this file in NCCL's XML format");
  command->add_option("--nodes", options->machines, "Number of these machines")
      ->capture_default_str()
      ->check(number_in(1u, kMaxMachines));
  command
      ->add_option("--ranks-per-node", options->ranks, "Ranks on each machine without GPUs; default: one for each CPU")
      ->check(number_in(1u, kMaxRanksPerMachine));
  command
      ->add_option("--bytes", options->bytes,
                   "Length of the message, all blocks together: 8, 64K, 1M, 1GiB; as in tutti perf")
      ->capture_default_str();
  command->add_option("--algorithm", options->algorithm, "Simulate only this algorithm; default: all suitable ones");
  command->add_option("--protocol", options->protocol, "simple, ll, ll128, window, or best: the fastest of these")
      ->capture_default_str();
  command->add_option("--slot-bytes", options->slot_bytes,
                      "Longest message between two ranks; default: value of the parameters");
  command->add_flag("--in-switch", options->in_switch,
                    "Also predict the time if the machines' switches calculate the sums");
  command->add_option("--parameters", options->parameters_path,
                      "Parameters of the cost model, a file of `tutti tune`; default: those of the shape");
  command
      ->add_option("--channels", options->channels,
                   "Copies of the plan that share the message; default: value of the parameters")
      ->check(number_in(1u, 1024u));
  command->add_option("--root", options->root, "Root rank of a rooted collective")->capture_default_str();
  command->add_option("--model", options->model, "auto, sweep, events, flows")->capture_default_str();
  command->add_option("--fabric", options->fabric, "Network between machines; default: that of the shape")
      ->check(name_in({"fat-tree", "rail-optimised"}));
  command->add_option("--oversubscription", options->oversubscription, "Oversubscription of the leaf switches, 1 to 64")
      ->capture_default_str();
  command->add_option("--nics", options->nics, "NICs of each machine; default: as in the shape")
      ->check(number_in(1u, kMaxNics));
  command
      ->add_option("--machines-per-leaf", options->machines_per_leaf,
                   "Machines on each leaf switch; default: as in the shape, 32 for a file")
      ->check(number_in(1u, kMaxMachines));
  add_faults(*command, *options);
  command->add_option("--json", options->json_path, "Write the results to this file");
  command->add_option("--svg", options->svg_path,
                      "Draw the fastest algorithm: time lines of the first ranks, loads of links");
  command->callback([options, &exit_code] { exit_code = run_sim(*options); });
}

}  // namespace tutti::tool
