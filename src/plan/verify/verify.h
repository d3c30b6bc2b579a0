// The verifier: proves a plan before it runs. See docs/decisions/0001-step-equation.md and docs/verifier.md.
//
// A plan is a Kahn network, so one run decides result and deadlock for every interleaving; races are decided in the
// same run by vector clocks, since happens-before does not depend on the interleaving either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

struct VerifyOptions {
  bool in_place = false;    // on every rank where the collective has an in-place form, see collective.h
  bool windows = false;     // all buffers are reachable by all ranks: zero-copy sends, see docs/verifier.md
  std::uint16_t slots = 0;  // messages a connection holds; 0: the shape's own requirement
  // Staged only: races are looked for in the order that each rank's own channels keep (plan/own_order.h), not by vector
  // clocks, which take the square of the channels. Where that shows no order, VerifyReport::race_free is false.
  bool own_order_only = false;
  std::uint32_t tiles = 2;
  std::uint32_t calls = 2;
};

// What was proved, for people to see.
struct VerifyReport {
  std::uint64_t steps = 0;  // evaluated, over all ranks, tiles and calls
  std::uint64_t messages = 0;
  std::uint64_t race_checks = 0;  // against vector clocks
  bool race_free = true;          // false: not found out, see VerifyOptions::own_order_only
};

// Proves: every slice, port and list index is in bounds; each connection has one channel at each end; the plan ends
// with the stated slots (no deadlock) and leaves no message behind; every operand is what it claims (one chunk, no rank
// twice, no unwritten memory, nothing of another tile); every output chunk of every rank is written exactly once per
// tile and call and holds what collective.h wants there; sums are added in the order that the shape promises and in the
// same order and grouping on all ranks; `completes` stands where a value becomes complete and nowhere else; no two
// accesses to the same memory, by steps, by peers through windows or by the user between two calls, are unordered. The
// error (kInvalidPlan) names rank, channel, step. kUnsupported where the vector clocks of a plan of very many channels
// would not fit into memory.
Result<VerifyReport> verify(const Plan& plan, const VerifyOptions& options = {});

// All four combinations of in_place and windows; the sum of the reports.
Result<VerifyReport> verify_all(const Plan& plan);

// The exact additions behind each datum, the same on every rank: "((r0+r1)+r2)", one step's operands added from
// left to right. kUnsupported for a collective that adds nothing. Verifies the plan on the way. Strings of about 5 *
// ranks characters per chunk: for small plans.
Result<std::vector<std::string>> addition_order(const Plan& plan);

}  // namespace tutti
