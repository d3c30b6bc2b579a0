// SimGrid as a judge of our simulator: the same plan walked by SimGrid's actors over the same links, whose sharing
// SimGrid works out. Only tests use it, only where SimGrid (LGPL) is installed, and nothing that users get links it.
//
// Written for itself, from the recurrences of docs/decisions/0016-cost-model.md: nothing of model/ but the network's
// links and routes is used. Ours are the ports (a NIC sends one message after the other), the credits, the waits and
// the latencies; SimGrid's are the clock and the time that messages which share links need.
#pragma once

#include <cstdint>

#include "model/network.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::judge {

struct Call {
  double message_bytes = 0;  // all messages are equally long
  std::uint64_t tiles = 1;
  double latency_us = 1;
  double gbytes_per_s = 0;  // of one message alone, at most; 0: what the links carry
  std::uint32_t slots = 4;  // at least the plan's
};

// The time until the last rank is done. One rank to a machine: all messages pass NICs. In a process of its own, since
// SimGrid runs one simulation in a process; so no threads may run in this one. Errors: kSystem.
Result<double> simgrid_us(const Plan& plan, const Call& call, const Network& network);

}  // namespace tutti::judge
