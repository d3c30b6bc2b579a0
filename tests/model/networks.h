// Small networks and round parameters, for tests with results that are computed by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "model/network.h"
#include "model/parameters.h"
#include "model/simulate.h"
#include "topology/cluster.h"

namespace tutti::testing {

// All parameters have different values, so that a test fails if one is used in place of another.
inline Parameters round_parameters() {
  Parameters p;
  p.name = "round";
  for (const Level level : {Level::kMemory, Level::kNvLink, Level::kPcie}) {
    p.cost(level, Protocol::kSimple) = {.post_us = 0.5, .latency_us = 1.25, .gap_us = 0, .gbytes_per_s = 100};
  }
  p.cost(Level::kNic, Protocol::kSimple) = {.post_us = 0.75, .latency_us = 3, .gap_us = 0.125, .gbytes_per_s = 10};
  p.cost(Level::kSpine, Protocol::kSimple) = {.post_us = 0.75, .latency_us = 4, .gap_us = 0.125, .gbytes_per_s = 10};
  p.launch_us = 7;
  p.step_us = 0.25;
  p.slot_bytes = 1 << 20;
  p.slots = 4;
  p.channels = 1;
  return p;
}

inline Network make_network(const std::string& shape, std::uint32_t machines, ShapeOptions options = {}) {
  options.name = shape;
  options.machines = machines;
  const Result<Cluster> cluster = make_shape(options);
  EXPECT_TRUE(cluster.ok()) << to_string(cluster.error());
  Result<Network> network = Network::create(*cluster);
  EXPECT_TRUE(network.ok()) << to_string(network.error());
  return *std::move(network);
}

inline Generator plan_for(const Network& network, CollectiveKind kind, Algorithm algorithm, std::uint32_t root = 0,
                          Messages messages = Messages::kOneChunk) {
  Collective collective{.kind = kind, .ranks = network.ranks(), .root = root};
  for (std::uint32_t rank = 0; network.ranks() > network.ranks_per_machine() && rank < network.ranks(); ++rank) {
    collective.nodes.push_back(rank / network.ranks_per_machine());
  }
  const Result<Generator> generator = find_generator(collective, algorithm, messages);
  EXPECT_TRUE(generator.ok()) << to_string(generator.error());
  return *generator;
}

inline double time_of(const Generator& generator, std::uint64_t bytes, const Network& network,
                      const Parameters& parameters, const SimulateOptions& options = {}) {
  const Result<SimulateResult> result = simulate(generator, bytes, network, parameters, options);
  EXPECT_TRUE(result.ok()) << to_string(result.error());
  return result.ok() ? result->time_us : -1;
}

}  // namespace tutti::testing
