// The static part of the verifier: checks a plan as far as is possible without running it, and builds a Wiring, a
// set of flat tables for the run. Internal to this folder. A Wiring keeps a pointer to its Plan, which must
// outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// In the verifier, a thread is one channel of one rank. The threads of all ranks are numbered rank by rank, and
// within a rank in the order of the channels.
struct ThreadInfo {
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;
  std::uint32_t first_port = 0;  // index into Wiring::port_connection of the channel's port 0
  const Channel* program = nullptr;
};

// One connection, and the range of its messages in the tables of messages of one tile.
struct ConnectionInfo {
  std::uint32_t sender = 0;    // index of the sending thread in Wiring::threads
  std::uint32_t receiver = 0;  // index of the receiving thread in Wiring::threads
  std::uint16_t lane = 0;
  std::uint32_t first_message = 0;  // index of its first message in Wiring::sender_step and Wiring::receiver_step
  std::uint32_t messages = 0;       // number of messages per tile
};

struct Wiring {
  const Plan* plan = nullptr;
  std::vector<ThreadInfo> threads;
  // indexed by rank: its first thread; one more entry at the end holds the number of threads
  std::vector<std::uint32_t> first_thread;
  // The connection of each port: an index into `connections`. Indexed by ThreadInfo::first_port + index of the
  // port in its channel.
  std::vector<std::uint32_t> port_connection;
  std::vector<ConnectionInfo> connections;
  // Indexed by message of a tile. sender_step: the step of the sending channel. receiver_step: the step of the
  // receiving channel.
  std::vector<std::uint32_t> sender_step;
  std::vector<std::uint32_t> receiver_step;
};

// The name of a step in error messages, for example "rank 2 channel 0 step 3".
std::string step_name(const Wiring& wiring, std::uint32_t thread, std::uint32_t step);
// The text of a slice, for example "out[3]". "none" if the space of the slice is kNone.
std::string to_string(const Slice& slice);

Error plan_error(std::uint32_t rank, std::string message);

// Checks that every field is in bounds, that every connection has exactly one channel at each end, and that its sender
// sends as many messages per tile as its receiver receives. Also checks the rules for runs (Step::run): the two steps
// of a message have runs of the same length, and the equations of a run do not depend on each other. Errors:
// kInvalidPlan.
Result<Wiring> check_structure(const Plan& plan);

}  // namespace tutti
