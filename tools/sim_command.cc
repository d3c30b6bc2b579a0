#include "tools/sim_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "algorithms/algorithms.h"
#include "model/in_switch.h"
#include "tools/exit_status.h"
#include "tools/file.h"
#include "tools/sim_options.h"
#include "tools/sim_report.h"
#include "tools/sim_svg.h"

namespace tutti::tool {
namespace {

// Of what is waited for, on stderr where that is a terminal.
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

int fail(const Error& error) {
  fmt::print(stderr, "tutti sim: {}\n", to_string(error));
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure;
}

// By the quickest of the task's protocols.
Result<SimRow> run_one(const SimTask& task, const Network& network, Algorithm algorithm, Bar& bar) {
  const Result<Generator> generator = find_generator(task.collective, algorithm);
  if (!generator.ok()) return generator.error();
  SimulateOptions options = task.options;
  options.progress = [&](double part) { bar.show(part, to_string(algorithm)); };
  const auto start = std::chrono::steady_clock::now();
  std::optional<SimRow> best;
  for (const Protocol protocol : task.protocols) {
    options.protocol = protocol;
    Result<SimulateResult> result = simulate(*generator, task.block_bytes, network, task.parameters, options);
    bar.clear();
    if (!result.ok()) return std::move(result).error();
    if (best && best->result.time_us <= result->time_us) continue;
    best = SimRow{.algorithm = algorithm, .protocol = protocol, .result = *std::move(result)};
  }
  // The sweep and the events do not let messages share links. What the busiest link has to carry is a bound.
  const double most = best->result.busiest.empty() ? 0 : best->result.busiest.front().utilisation;
  if (most > 1) {
    best->bounded = true;
    best->result.time_us = time_by_links_us(best->result);
    for (LinkLoad& each : best->result.busiest) each.utilisation /= most;
  }
  best->wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return *std::move(best);
}

Result<SimRow> run_in_switch(const SimTask& task) {
  const Result<InSwitch> in_switch = InSwitch::create(task.cluster);
  if (!in_switch.ok()) return in_switch.error();
  const Result<double> time_us = in_switch->all_reduce_us(task.block_bytes, task.parameters);
  if (!time_us.ok()) return time_us.error();
  return SimRow{.algorithm = Algorithm::kAuto, .result = {.time_us = *time_us}};
}

// One algorithm, or all that fit.
Result<SimReport> run_all(const SimTask& task, const Network& network) {
  SimReport report;
  Bar bar;
  const std::vector<Algorithm> algorithms =
      task.algorithm ? std::vector{*task.algorithm} : algorithms_of(task.collective.kind);
  Error last;
  for (const Algorithm algorithm : algorithms) {
    Result<SimRow> row = run_one(task, network, algorithm, bar);
    if (row.ok()) {
      report.rows.push_back(*std::move(row));
      continue;
    }
    last = std::move(row).error();
    if (last.code != ErrorCode::kUnsupported) return last;
    report.left_out.push_back(fmt::format("{}: {}", to_string(algorithm), last.message));
  }
  if (report.rows.empty()) return last;
  if (task.in_switch) {
    Result<SimRow> row = run_in_switch(task);
    if (!row.ok()) return std::move(row).error();
    report.rows.push_back(*std::move(row));
  }
  std::stable_sort(report.rows.begin(), report.rows.end(),
                   [](const SimRow& a, const SimRow& b) { return a.result.time_us < b.result.time_us; });
  return report;
}

// The best plan's row again, with its time lines where it is small enough to have some.
Status draw(const SimTask& task, const Network& network, const SimRow& best, const std::string& path) {
  const std::string title =
      fmt::format("{}, {}, {} bytes, {} ranks on {}: {:.3f} us", to_string(task.collective.kind),
                  to_string(best.algorithm), task.bytes, task.collective.ranks, task.cluster.name, best.result.time_us);
  Result<Generator> generator = find_generator(task.collective, best.algorithm);
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
  const Result<SimReport> report = run_all(*task, *network);
  if (!report.ok()) return fail(report.error());
  const std::string text = to_text(*task, *report);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fputs("tutti sim: standard output takes nothing more\n", stderr);
    return kExitFailure;
  }
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
                     "RANK:FACTOR: all that this rank does takes so many times as long");
  command.add_option("--dead-rank", options.dead_ranks, "This rank never starts; says who waits for it");
  command.add_option("--dead-link", options.dead_links, "A link by its name, as in the list of busiest links");
  command.add_option("--jitter", options.jitter, "Every duration is longer by so many times an exponential of mean 1");
  command.add_option("--seed", options.seed, "Of the jitter")->capture_default_str();
}

}  // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("sim", "Simulate a collective on a machine that need not be there");
  const auto options = std::make_shared<SimArguments>();  // shared with the callback, which outlives this function
  command->footer("Without --algorithm all that fit are simulated, the quickest first. docs/sim.md tells the models.");
  command->add_option("collective", options->collective, "all_reduce, all_gather, ...")->capture_default_str();
  command
      ->add_option("--shape", options->shape,
                   "A ready-made machine by name; a name that is none is answered with those that there are")
      ->capture_default_str();
  command->add_option("--nodes", options->machines, "How many of them")->capture_default_str();
  command->add_option("--ranks-per-node", options->ranks, "Of machines without GPUs; default: one for each CPU");
  command->add_option("--bytes", options->bytes, "The message: 8, 64K, 1M, 1G; all blocks together, as tutti perf")
      ->capture_default_str();
  command->add_option("--algorithm", options->algorithm, "Only this one; default: all that fit");
  command->add_option("--protocol", options->protocol, "simple, ll, ll128, window, or best: the quickest of these")
      ->capture_default_str();
  command->add_option("--slot-bytes", options->slot_bytes, "The longest message; default: the parameters'");
  command->add_flag("--in-switch", options->in_switch, "Also what sums made by the machines' switches would take");
  command->add_option("--parameters", options->parameters_path, "A file of `tutti tune`; default: of the shape");
  command->add_option("--channels", options->channels, "Copies of the plan that share the message; default: theirs");
  command->add_option("--root", options->root, "Of collectives that have one")->capture_default_str();
  command->add_option("--model", options->model, "auto, sweep, events, flows")->capture_default_str();
  command->add_option("--fabric", options->fabric, "fat-tree or rail-optimised; default: the shape's");
  command->add_option("--oversubscription", options->oversubscription, "Of the leaf switches, 1 to 64")
      ->capture_default_str();
  command->add_option("--nics", options->nics, "Of each machine; default: the shape's");
  command->add_option("--machines-per-leaf", options->machines_per_leaf, "Default: the shape's");
  add_faults(*command, *options);
  command->add_option("--json", options->json_path, "Write the results to this file");
  command->add_option("--svg", options->svg_path, "Draw the best one: time lines of the first ranks, link loads");
  command->callback([options, &exit_code] { exit_code = run_sim(*options); });
}

}  // namespace tutti::tool
