// Predicts calls that run a plan by simulating them (model kSweep), and the other methods by formulas.
#include "model/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "model/simulate.h"
#include "plan/collective.h"
#include "plan/tiling.h"

namespace tutti {
namespace {

// Prediction::latency_us is the time of the call with blocks of this many bytes, or with its own blocks if they are
// shorter.
constexpr std::uint64_t kNextToNothing = 8;
// Reading a message from a socket takes about half as much time of the core as writing it: 1.0 to 1.5 us, compared
// with 2.6 us (docs/results/2026-11-21-host-speed.md).
constexpr double kReadOverWrite = 0.5;

Error refusal(std::string message) { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, std::move(message)}; }

// A cluster for calls on the host: each machine has one CPU, at which all its ranks are, and one NIC if there are
// several machines. The NIC is as fast as the parameters say. All machines are connected to one switch.
Cluster host_cluster(const Parameters& parameters, std::uint32_t machines, std::uint32_t ranks_per_machine) {
  Cluster cluster;
  cluster.name = "hosts";
  cluster.machines = machines;
  cluster.ranks_per_machine = ranks_per_machine;
  cluster.machine.nodes.push_back({.kind = NodeKind::kCpu, .name = "cpu0"});
  cluster.machine.nodes.back().numa = 0;
  if (machines > 1) {
    GraphNode nic{.kind = NodeKind::kNic, .name = "nic0"};
    const double gbytes_per_s = std::max(parameters.cost(Level::kNic, Protocol::kSimple).gbytes_per_s, 0.001);
    nic.nic.device = 0;
    nic.nic.megabits_per_s = 8000 * gbytes_per_s;
    cluster.machine.nodes.push_back(nic);
    cluster.machine.links.push_back({.from = 0, .to = 1, .kind = LinkKind::kPci, .gbytes_per_s = gbytes_per_s});
    cluster.fabric.kind = FabricKind::kFatTree;
    cluster.fabric.machines_per_leaf = machines;
  }
  return cluster;
}

// Returns the number of ranks of each machine if it is the same for all machines, and if ranks are numbered machine
// by machine (rank r is on machine r / result). Otherwise returns 0.
std::uint32_t ranks_per_machine(const TunerOptions& options) {
  if (options.nodes.empty()) return options.ranks;
  std::uint32_t machines = 0;
  for (const std::uint32_t node : options.nodes) machines = std::max(machines, node + 1);
  if (options.nodes.size() != options.ranks || options.ranks % machines != 0) return 0;
  const std::uint32_t each = options.ranks / machines;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    if (options.nodes[rank] != rank / each) return 0;
  }
  return each;
}

double over(double bytes, double gbytes_per_s) { return gbytes_per_s > 0 ? bytes / (gbytes_per_s * 1e3) : 0; }

// Returns {loads, stores} for kByMemory and kByCalls: the bytes that a rank loads from the memory of other ranks,
// and those that it stores into it. `bytes` is the length of one block.
std::pair<double, double> bytes_in_memory(const Collective& collective, double bytes) {
  const CollectiveRow& row = row_of(collective.kind);
  if (!row.has_data || row.input == BlockSet::kNone) return {0, 0};
  const double others = collective.ranks - 1.0;
  const double share = bytes / collective.ranks;
  // All-reduce and reduce: each rank adds up one share of the values of all ranks, and stores the sum to all others
  // or to the root.
  if (row.reduces && !has_blocks(row.kind)) {
    return {share * others, row.root == RootHas::kNothing ? share * others : share};
  }
  // The other collectives with a root: all ranks share the work of moving the bytes.
  if (has_root(row.kind)) return {share * others, 0};
  return {bytes * others, 0};
}

}  // namespace

Result<Tuner> Tuner::create(const TunerOptions& options) {
  if (options.ranks > kMostTunedRanks)
    return refusal(fmt::format("{} ranks: at most {}", options.ranks, kMostTunedRanks));
  const std::uint32_t each = ranks_per_machine(options);
  if (each == 0) return refusal("the machines have different numbers of ranks, or ranks are not numbered by machine");
  Parameters parameters = options.parameters;
  if (!options.memory) {
    parameters.costs[static_cast<std::size_t>(Level::kMemory)] = {};
    parameters.cost(Level::kMemory, Protocol::kSimple) = parameters.cost(Level::kNic, Protocol::kSimple);
  }
  auto network = Network::create(host_cluster(parameters, options.ranks / each, each));
  if (!network) return network.error();
  const bool sockets = !options.memory || options.ranks > each;
  return Tuner(std::move(parameters), *std::move(network), sockets);
}

double Tuner::crowd() const {
  if (parameters_.cores == 0) return 1;
  return std::max(1.0, double{1} * network_.ranks_per_machine() / parameters_.cores);
}

// The work of a rank is the time in which its thread runs steps: the fixed time of each step, adding and copying, and
// writing messages (also reading them, if any ranks communicate over sockets), but no waiting. On the host one thread
// runs all channels of a rank in turn, so a call takes at least as long as the work of the rank with the most work. The
// cores of a machine share the work of all its ranks, so a call also takes at least the sum of their work divided by
// the number of cores, if that is limited. work_us() returns the longest of these times.
//
// by_messages() needs this bound, because the simulation can be shorter: it assumes that the channels of a rank run in
// parallel, like thread blocks of a GPU.
double Tuner::work_us(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const {
  const std::uint32_t each = network_.ranks_per_machine();
  const std::uint64_t longest = std::max<std::uint64_t>(parameters.slot_bytes / 64 * 64, 64);
  const Tiling tiling(bytes, 1, generator.shape.chunks, longest_chunk_bytes(longest, generator.shape.longest_run, 1));
  const double tiles = std::max<double>(1, static_cast<double>(tiling.tiles()));
  const double chunk = static_cast<double>(bytes) / tiles / generator.shape.chunks;
  const auto rank_us = [&](std::uint32_t rank) {
    double sum = 0;
    for (const Channel& channel : generator.build(generator.shape, rank).channels) {
      for (const Step& step : channel.steps) {
        const int operands = step.receive_count + (step.source.space != Space::kNone ? 1 : 0);
        const bool copies = step.sink.space != Space::kNone || step.send_count == 0;
        const double value = chunk * step.run;
        sum += parameters.step_us + std::max(over(value * (operands - 1), parameters.reduce_gbytes_per_s),
                                             copies ? over(value, parameters.copy_gbytes_per_s) : 0);
        const auto ends = [&](std::span<const std::uint16_t> ports, double part) {
          for (const std::uint16_t port : ports) {
            const MessageCost& cost =
                parameters.cost(network_.level(rank, channel.ports[port].peer), Protocol::kSimple);
            sum += part * (cost.post_us + over(value, cost.gbytes_per_s));
          }
        };
        ends(channel.sends(step), 1);
        if (with_sockets_) ends(channel.receives(step), kReadOverWrite);
      }
    }
    return sum;
  };
  double busiest = 0;
  for (std::uint32_t first = 0; first < network_.ranks(); first += each) {
    double sum = 0;
    for (std::uint32_t rank = first; rank < first + each; ++rank) {
      const double one = rank_us(rank);
      busiest = std::max(busiest, one);
      sum += one;
    }
    if (parameters.cores > 0) busiest = std::max(busiest, sum / parameters.cores);
  }
  return busiest * tiles;
}

Result<double> Tuner::by_messages(const Generator& generator, std::uint64_t bytes, const Parameters& parameters) const {
  auto simulated = simulate(generator, bytes, network_, parameters, {.model = SimulationModel::kSweep});
  if (!simulated) return simulated.error();
  const double alone_us =
      parameters.launch_us + std::max(simulated->time_us - parameters.launch_us, work_us(generator, bytes, parameters));
  if (crowd() <= 1) return alone_us;
  // There are more ranks than cores. Count the rounds of the plan by a simulation in which a message takes 1 us and
  // everything else takes no time: the result in us is the number of rounds. In each round, the rank that waits for
  // a message must get a core again.
  Parameters rounds;
  rounds.slots = parameters.slots;
  for (auto& level : rounds.costs) {
    level[static_cast<std::size_t>(Protocol::kSimple)] = {.latency_us = 1, .gbytes_per_s = 1e12};
  }
  auto depth = simulate(generator, kNextToNothing, network_, rounds, {.model = SimulationModel::kSweep});
  if (!depth) return depth.error();
  return alone_us + depth->time_us * crowd() * parameters.handover_us;
}

double Tuner::without_messages(const Collective& collective, std::uint64_t bytes, ExecutionMethod way) const {
  const double turns = crowd() > 1 ? crowd() * parameters_.handover_us : 0;
  const double length = static_cast<double>(bytes);
  if (way == ExecutionMethod::kByMailbox) {
    const MessageCost& line = parameters_.cost(Level::kMemory, Protocol::kLl);
    const CollectiveRow& row = row_of(collective.kind);
    const bool all = row.reduces || (row.output == BlockSet::kAll && row.root == RootHas::kNothing);
    const double values = all ? collective.ranks - 1.0 : 1;
    return parameters_.launch_us + line.post_us * collective.ranks + line.latency_us +
           values * crowd() * over(length, line.gbytes_per_s) + turns;
  }
  const MessageCost& window = parameters_.cost(Level::kMemory, Protocol::kWindow);
  const auto [loads, stores] = bytes_in_memory(collective, length);
  double work = over(loads + stores, window.gbytes_per_s);
  if (way == ExecutionMethod::kByCalls) {
    const double peers = collective.ranks - 1.0;
    work = (stores > 0 ? 2 : 1) * peers * parameters_.attach_us + over(loads + stores, parameters_.attach_gbytes_per_s);
  }
  return parameters_.launch_us + 2 * (window.post_us + window.latency_us) + crowd() * work + turns;
}

Result<Prediction> Tuner::predict(const Collective& collective, std::uint64_t bytes, Candidate candidate) const {
  const std::uint64_t slot_bytes = candidate.chunk_bytes > 0 ? candidate.chunk_bytes : parameters_.slot_bytes;
  auto generator =
      find_generator(collective, candidate.algorithm, messages_for(collective, bytes, {slot_bytes, !with_sockets_}));
  if (!generator) return generator.error();
  const std::uint64_t little = std::min(bytes, kNextToNothing);
  Prediction prediction{.candidate = candidate};
  if (candidate.way == ExecutionMethod::kByCalls && parameters_.attach_gbytes_per_s <= 0) {
    return refusal("the costs say that ranks cannot reach each other's memory (attach_gbytes_per_s is 0)");
  }
  if (candidate.way != ExecutionMethod::kByMessages) {
    prediction.latency_us = without_messages(collective, little, candidate.way);
    prediction.bandwidth_us = without_messages(collective, bytes, candidate.way) - prediction.latency_us;
    if (!std::isfinite(prediction.total_us())) return refusal("the costs give no finite time");
    return prediction;
  }
  Parameters cut = parameters_;
  cut.slot_bytes = slot_bytes;
  auto latency_us = by_messages(*generator, little, cut);
  if (!latency_us) return latency_us.error();
  auto total_us = bytes > little ? by_messages(*generator, bytes, cut) : latency_us;
  if (!total_us) return total_us.error();
  if (!std::isfinite(*total_us)) return refusal("the costs give no finite time");
  prediction.latency_us = std::min(*latency_us, *total_us);
  prediction.bandwidth_us = *total_us - prediction.latency_us;
  return prediction;
}

std::vector<Prediction> Tuner::predict_all(const Collective& collective, std::uint64_t bytes,
                                           std::span<const Candidate> candidates) const {
  std::vector<Prediction> predictions;
  for (const Candidate candidate : candidates) {
    auto prediction = predict(collective, bytes, candidate);
    if (prediction) predictions.push_back(*prediction);
  }
  std::stable_sort(predictions.begin(), predictions.end(),
                   [](const Prediction& a, const Prediction& b) { return a.total_us() < b.total_us(); });
  return predictions;
}

std::string_view to_string(ExecutionMethod way) {
  switch (way) {
    case ExecutionMethod::kByMessages: return "messages";
    case ExecutionMethod::kByMailbox: return "mailboxes";
    case ExecutionMethod::kByMemory: return "memory";
    case ExecutionMethod::kByCalls: return "attached";
  }
  return "invalid";
}

}  // namespace tutti
