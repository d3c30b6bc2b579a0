// simgrid_us(): an independent check of the simulator with SimGrid. SimGrid's actors execute the same plan over the
// same links, and SimGrid computes how messages share the links. Only tests use it, and only if SimGrid (LGPL) is
// installed.
//
// The code is written from the recurrences in docs/decisions/0016-cost-model.md. Of the model's code it uses only
// the links and routes of the network. It implements ports (a NIC sends one message after the other), credits, waits
// and latencies itself. SimGrid provides the clock and the duration of messages that share links.
#pragma once

#include <cstdint>

#include "model/network.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::judge {

struct Call {
  double message_bytes = 0;  // all messages have the same length
  std::uint64_t tiles = 1;
  double latency_us = 1;
  double gbytes_per_s = 0;  // limit for a single message; 0: limited only by the links
  std::uint32_t slots = 4;  // at least the number that the plan needs
};

// Returns the time until the last rank is done, in microseconds. Each machine must have one rank, so that all
// messages use NICs. SimGrid can run only one simulation in a process, so this function forks; therefore no other
// threads may run in this process. Errors: kSystem.
Result<double> simgrid_us(const Plan& plan, const Call& call, const Network& network);

}  // namespace tutti::judge
