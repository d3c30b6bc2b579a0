// The static part of the verifier: checks a plan as far as is possible without running it, and builds flat tables
// for the run. Internal to this folder. A Wiring keeps a pointer to its Plan, which must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// A thread is one channel of one rank. The threads are numbered rank by rank.
struct ThreadInfo {
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;
  std::uint32_t first_port = 0;  // index into Wiring::port_connection
  const Channel* program = nullptr;
};

// One connection, and the range of its messages of one tile.
struct ConnectionInfo {
  std::uint32_t sender = 0;    // thread
  std::uint32_t receiver = 0;  // thread
  std::uint16_t lane = 0;
  std::uint32_t first_message = 0;  // index into Wiring::sender_step and ::receiver_step
  std::uint32_t messages = 0;       // number of messages per tile
};

struct Wiring {
  const Plan* plan = nullptr;
  std::vector<ThreadInfo> threads;
  std::vector<std::uint32_t> first_thread;  // indexed by rank, with one more entry at the end
  // connection of each port, indexed by ThreadInfo::first_port + index of the port
  std::vector<std::uint32_t> port_connection;
  std::vector<ConnectionInfo> connections;
  std::vector<std::uint32_t> sender_step;  // indexed by message of a tile
  std::vector<std::uint32_t> receiver_step;
};

// For example "rank 2 channel 0 step 3".
std::string step_name(const Wiring& wiring, std::uint32_t thread, std::uint32_t step);
// For example "out[3]".
std::string to_string(const Slice& slice);

Error plan_error(std::uint32_t rank, std::string message);

// Checks that every field is in bounds, that every connection has one channel at each end, and that as many
// messages are sent as received in every tile.
Result<Wiring> check_structure(const Plan& plan);

}  // namespace tutti
