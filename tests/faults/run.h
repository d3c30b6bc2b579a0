// Runs a scenario with the production code of the runtime, the executor and (over TCP) the transport, and checks the
// outcome.
//
// The ranks run as threads of a simulation, one at a time; see SimEnvironment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "faults/scenario.h"
#include "faults/survivors.h"
#include "job/verified_plan_cache.h"

namespace tutti::faults {

struct CallOutcome {
  std::optional<Error> error;
  bool right = true;  // without an error: whether the output is right
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  bool operator==(const CallOutcome&) const = default;
};

struct RankOutcome {
  std::vector<CallOutcome> calls;  // the calls that it made while it was alive
  bool died = false;
  bool left_early = false;             // left after an error of one call
  std::optional<CallOutcome> refused;  // one more call, after an error that broke the communicator
  std::optional<Error> finalize;
  bool ending = false;                   // it has begun its ending (agree() or shrink())
  std::vector<AgreeOutcome> agreements;  // indexed by attempt
  std::optional<ShrinkOutcome> shrink;
  bool operator==(const RankOutcome&) const = default;
};

struct Outcome {
  std::vector<RankOutcome> ranks;
  std::vector<bool> fired;  // indexed by fault: whether it has taken place
  Extent extent;
  std::uint64_t fingerprint = 0;
  bool overran = false;
  std::size_t open_windows = 0;
  std::size_t open_connections = 0;
  std::size_t late_stores = 0;
  std::size_t refused_writes = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const Scenario& scenario, const std::shared_ptr<VerifiedPlanCache>& plan_cache);

// Returns the violations of the invariant, as text; empty if there are none.
std::vector<std::string> judge(const Scenario& scenario, const Outcome& outcome);

// For a scenario with an ending. `guilty`: the ranks that were hit by a fault or caused one.
std::vector<std::string> judge_survivors(const Scenario& scenario, const Outcome& outcome,
                                         const std::set<std::uint32_t>& guilty);

// Describes each rank's calls and how they ended.
std::string describe(const Scenario& scenario, const Outcome& outcome);

}  // namespace tutti::faults
