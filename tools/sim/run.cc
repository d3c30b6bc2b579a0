#include "tools/sim/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "model/in_switch.h"

namespace tutti::tool {
namespace {

// Simulates one algorithm with each of the task's protocols by this model, and returns the row of the fastest
// protocol. Returns an error as soon as one simulation fails.
Result<SimRow> run_one(const SimTask& task, const Network& network, Algorithm algorithm, SimulationModel model,
                       const SimProgress& progress) {
  const Result<Generator> generator = find_generator(task.collective, algorithm, messages_of(task));
  if (!generator.ok()) return generator.error();
  SimulateOptions options = task.options;
  options.model = model;
  if (progress) options.progress = [&](double part) { progress(part, to_string(algorithm)); };
  const auto start = std::chrono::steady_clock::now();
  std::optional<SimRow> best;
  for (const Protocol protocol : task.protocols) {
    options.protocol = protocol;
    Result<SimulateResult> result = simulate(*generator, task.block_bytes, network, task.parameters, options);
    if (progress) progress(std::nullopt, {});
    if (!result.ok()) return std::move(result).error();
    if (best && best->result.time_us <= result->time_us) continue;
    best = SimRow{.algorithm = algorithm, .protocol = protocol, .result = *std::move(result)};
  }
  // In the models kSweep and kEvents, messages do not share the bandwidth of links, so a link can carry more than its
  // capacity. The call cannot be shorter than the time that the busiest link needs for all its bytes, so that time
  // is used if it is longer.
  const double most = best->result.busiest.empty() ? 0 : best->result.busiest.front().utilisation;
  if (most > 1) {
    best->bounded = true;
    best->result.time_us = time_by_links_us(best->result);
    for (LinkLoad& each : best->result.busiest) each.utilisation /= most;
  }
  best->wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return *std::move(best);
}

// Returns a greater number for a less detailed model.
int coarseness(SimulationModel model) {
  if (model == SimulationModel::kFlows) return 0;
  return model == SimulationModel::kEvents ? 1 : 2;
}

// Models consider different effects, so rows can only be compared if the same model simulated them. This function finds
// the least detailed of the models that simulated these rows, and simulates the rows of other models again with it. A
// row for which that model fails keeps its result.
void rerun_with_one_model(const SimTask& task, const Network& network, std::vector<SimRow>& rows,
                          const SimProgress& progress) {
  SimulationModel common = SimulationModel::kFlows;
  for (const SimRow& row : rows) {
    if (coarseness(row.result.model) > coarseness(common)) common = row.result.model;
  }
  for (SimRow& row : rows) {
    if (row.result.model == common) continue;
    Result<SimRow> again = run_one(task, network, row.algorithm, common, progress);
    if (again.ok()) row = *std::move(again);
  }
}

Result<SimRow> run_in_switch(const SimTask& task) {
  const Result<InSwitch> in_switch = InSwitch::create(task.cluster);
  if (!in_switch.ok()) return in_switch.error();
  const Result<double> time_us = in_switch->all_reduce_us(task.block_bytes, task.parameters);
  if (!time_us.ok()) return time_us.error();
  return SimRow{.algorithm = Algorithm::kAuto, .result = {.time_us = *time_us}};
}

}  // namespace

Messages messages_of(const SimTask& task) {
  const bool on_gpus = task.cluster.machines == 1 && !nodes_of(task.cluster.machine, NodeKind::kGpu).empty();
  if (on_gpus) return Messages::kOneChunk;
  return messages_for(task.collective, task.block_bytes, {task.parameters.slot_bytes, task.cluster.machines == 1});
}

Result<SimReport> run_sim_task(const SimTask& task, const Network& network, const SimProgress& progress) {
  SimReport report;
  const std::vector<Algorithm> algorithms =
      task.algorithm ? std::vector{*task.algorithm} : algorithms_of(task.collective.kind);
  Error last;
  for (const Algorithm algorithm : algorithms) {
    Result<SimRow> row = run_one(task, network, algorithm, task.options.model, progress);
    if (row.ok()) {
      report.rows.push_back(*std::move(row));
      continue;
    }
    last = std::move(row).error();
    if (last.code != ErrorCode::kUnsupported) return last;
    report.left_out.push_back(fmt::format("{}: {}", to_string(algorithm), last.message));
  }
  if (report.rows.empty()) return last;
  if (task.options.model == SimulationModel::kAuto) rerun_with_one_model(task, network, report.rows, progress);
  if (task.in_switch) {
    Result<SimRow> row = run_in_switch(task);
    if (!row.ok()) return std::move(row).error();
    report.rows.push_back(*std::move(row));
  }
  std::stable_sort(report.rows.begin(), report.rows.end(),
                   [](const SimRow& a, const SimRow& b) { return a.result.time_us < b.result.time_us; });
  return report;
}

}  // namespace tutti::tool
