// The static half of the verifier: everything that can be refused without running the plan, and the flat tables that
// the run needs. Internal to this folder. A Wiring borrows its Plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// A thread is one channel of one rank; threads are numbered rank by rank.
struct ThreadInfo {
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;
  std::uint32_t first_port = 0;  // into Wiring::port_connection
  const Channel* program = nullptr;
};

// One connection, with the steps of both ends that its messages of one tile pair.
struct ConnectionInfo {
  std::uint32_t sender = 0;    // thread
  std::uint32_t receiver = 0;  // thread
  std::uint16_t lane = 0;
  std::uint32_t first_message = 0;  // into Wiring::sender_step and ::receiver_step
  std::uint32_t messages = 0;       // of one tile
};

struct Wiring {
  const Plan* plan = nullptr;
  std::vector<ThreadInfo> threads;
  std::vector<std::uint32_t> first_thread;     // of each rank, and one past the last
  std::vector<std::uint32_t> port_connection;  // connection of each port, ThreadInfo::first_port + index
  std::vector<ConnectionInfo> connections;
  std::vector<std::uint32_t> sender_step;  // of each message of a tile
  std::vector<std::uint32_t> receiver_step;
};

// "rank 2 channel 0 step 3"
std::string place_name(const Wiring& wiring, std::uint32_t thread, std::uint32_t step);
// "out[3]"
std::string to_string(const Slice& slice);

Error plan_error(std::uint32_t rank, std::string message);

// Bounds of every field, one channel at each end of every connection, as many messages sent as received in every tile.
Result<Wiring> check_structure(const Plan& plan);

}  // namespace tutti
