// The verifier: proves that a plan is correct before it runs. See docs/decisions/0001-step-equation.md and
// docs/verifier.md.
//
// A plan is a Kahn network, so one run determines the result, and whether the plan deadlocks, for every
// interleaving. The same run also detects races with vector clocks, because the happens-before relation does not
// depend on the interleaving either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

struct VerifyOptions {
  bool in_place = false;    // in place on every rank, if the collective has an in-place form, see collective.h
  bool windows = false;     // all ranks reach all buffers, and messages may travel without copies, see plan/windows.h
  std::uint16_t slots = 0;  // messages that a connection holds; 0: PlanShape::slots
  // Only without windows: searches for races in the order among each rank's own channels
  // (plan/verify/own_order.h). Vector clocks are not used, because their cost grows with the square of the number
  // of channels. If this search does not find an order, VerifyReport::race_free is false.
  bool own_order_only = false;
  std::uint32_t tiles = 2;
  std::uint32_t calls = 2;
};

// The amount of work of a verification, for people.
struct VerifyReport {
  std::uint64_t steps = 0;  // steps evaluated, over all ranks, tiles and calls
  std::uint64_t messages = 0;
  std::uint64_t race_checks = 0;  // comparisons with vector clocks
  bool race_free = true;          // false: unknown, see VerifyOptions::own_order_only
};

// Proves that:
// - every slice, port and list index is in bounds, and each connection has one channel at each end
// - the plan ends with the given number of slots (no deadlock) and leaves no message unreceived
// - every operand is valid: one chunk, no rank twice, no unwritten memory, no data of another tile
// - every output chunk of every rank is written exactly once per tile and call, with the contents that
//   collective.h requires
// - sums are added in the order that the shape promises, and in the same order and grouping on all ranks
// - `completes` is set on exactly the steps in which a value becomes complete
// - accesses to the same memory are ordered, whether they are made by steps, by peers through windows, or by the
//   user between two calls
//
// The error (kInvalidPlan) contains rank, channel and step. kUnsupported: the plan has so many channels that the
// vector clocks would not fit into memory.
Result<VerifyReport> verify(const Plan& plan, const VerifyOptions& options = {});

// Verifies all four combinations of in_place and windows. Returns the sum of the reports.
Result<VerifyReport> verify_all(const Plan& plan);

// Returns the exact additions of each datum, which are the same on every rank. For example "((r0+r1)+r2)"; the
// operands of one step are added from left to right. Verifies the plan on the way. Only for small plans, because
// the string of each chunk has about 5 * ranks characters. Errors: those of verify(); kUnsupported if the
// collective does not add.
Result<std::vector<std::string>> addition_order(const Plan& plan);

}  // namespace tutti
