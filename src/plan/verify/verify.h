// The verifier: proves that a plan is correct before it runs. See docs/decisions/0001-step-equation.md and
// docs/verifier.md.
//
// A plan is a Kahn process network (see plan/evaluate.h). So a single run of the plan shows, for every possible
// interleaving of its channels, the result and whether the plan deadlocks. The same run also detects races with
// vector clocks, because the happens-before relation does not depend on the interleaving either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

struct VerifyOptions {
  // True: every rank's call is in place, so input and output share memory (output_alias() in plan/collective.h).
  bool in_place = false;
  // True: all input and output buffers are mapped, so messages may travel without copies (plan/windows.h).
  bool windows = false;
  std::uint16_t slots = 0;  // number of messages that a connection can hold; 0: PlanShape::slots
  // True: freedom from races is checked only with the order among each rank's own channels
  // (plan/verify/own_order.h), without vector clocks, because the cost of these grows with the square of the
  // number of channels of all ranks. If this order is not sufficient, VerifyReport::race_free is false, but
  // verify() succeeds. Not allowed together with `windows`.
  bool own_order_only = false;
  std::uint32_t tiles = 2;
  std::uint32_t calls = 2;
};

// The amount of work that a verification has done, for output to users, and whether races are excluded.
struct VerifyReport {
  std::uint64_t steps = 0;  // number of steps that were run, over all ranks, tiles and calls
  std::uint64_t messages = 0;
  std::uint64_t race_checks = 0;  // number of comparisons of two accesses by vector clocks
  bool race_free = true;          // false: not known whether there are races; only with VerifyOptions::own_order_only
};

// Proves that:
// - the plan's shape is valid
// - every slice, port and list index is in bounds, and each connection has one channel at each end
// - the two steps of a message have runs of the same length, and no equation of a run stores to a chunk that another
//   equation of the run reads (Step::run)
// - with the given number of slots, the plan does not deadlock, and every message is received
// - every operand is valid: output and scratch are read only after they were written in the same tile, no input is read
//   after it was overwritten in place, all operands of a sum belong to the same datum (collective.h), and no rank's
//   contribution is added twice
// - a value that a peer reads in this rank's memory is not overwritten before, and a value that a peer writes into it
//   is not read before the step that receives it
// - every output chunk of every rank is written exactly once per tile and call, with the contents that
//   collective.h requires
// - sums are added in the order that the shape promises, and in the same order and grouping on all ranks
// - Step::completes is 1 in exactly the steps in which a value becomes the sum over all ranks
// - there are no races: conflicting accesses to the same memory are ordered, whether they are made by steps, by peers
//   through windows, or by the user between two calls (exception: VerifyOptions::own_order_only)
//
// Errors: kInvalidPlan if one of these properties does not hold; if the fault is in one step, the message names the
// rank, channel and step. kUnsupported if the vector clocks would need more than 2 GiB, because the plan has too many
// channels, or too many messages under way at the same time.
Result<VerifyReport> verify(const Plan& plan, const VerifyOptions& options = {});

// Calls verify() for all four combinations of in_place and windows, with two tiles and two calls. Returns the sum
// of the reports, or the first error.
Result<VerifyReport> verify_all(const Plan& plan);

// Returns, for each datum, the additions that make its sum, as text. They are the same on every rank. For example
// "((r0+r1)+r2)": r0 is the contribution of rank 0, and the operands of one step are added from left to right.
// Only for small plans, because each string has about 5 * ranks characters. Errors: kUnsupported if the collective
// does not add; otherwise those of verify() for one tile and one call, out of place and without windows.
Result<std::vector<std::string>> addition_order(const Plan& plan);

}  // namespace tutti
