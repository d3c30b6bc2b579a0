// Runs a scenario with the production code of the runtime, the executor and, over TCP, the transport, and judges how it
// ended: see judge().
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

struct CallEnd {
  std::optional<Error> error;
  bool right = true;  // of a call without an error: its output is what the collective gives
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  bool operator==(const CallEnd&) const = default;
};

struct RankEnd {
  std::vector<CallEnd> calls;  // that it made while it lived
  bool died = false;
  bool left_early = false;         // after an error of one call
  std::optional<CallEnd> refused;  // one more call, after an error that broke the communicator
  std::optional<Error> finalize;
  bool ending = false;               // it has begun its ending
  std::vector<AgreeEnd> agreements;  // tries
  std::optional<ShrinkEnd> shrink;
  bool operator==(const RankEnd&) const = default;
};

struct Outcome {
  std::vector<RankEnd> ranks;
  std::vector<bool> fired;  // by fault
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

// What breaks the invariant, in words; empty: nothing.
std::vector<std::string> judge(const Scenario& scenario, const Outcome& outcome);

// Of a scenario with an ending. `guilty`: the ranks that something was done to, or that did something.
std::vector<std::string> judge_survivors(const Scenario& scenario, const Outcome& outcome,
                                         const std::set<std::uint32_t>& guilty);

// Each rank's calls and how they ended.
std::string describe(const Scenario& scenario, const Outcome& outcome);

}  // namespace tutti::faults
