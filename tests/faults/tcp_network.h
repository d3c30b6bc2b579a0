// TcpNetwork: provides the unchanged transports/tcp for the ranks of a simulation. Each rank has a kernel, a
// listener and a clock, as if it were a process.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "faults/sim_kernel.h"
#include "transports/tcp/endpoint.h"
#include "transports/transport.h"

namespace tutti::faults {

inline constexpr std::uint64_t kCommunicator = 1;  // number of the first communicator

class TcpNetwork {
 public:
  explicit TcpNetwork(SimEnvironment& environment)
      : environment_(environment), kernel_(environment), addresses_(environment.options().ranks) {}
  // Call it in the thread of the rank. `clock` must outlive the endpoint.
  std::shared_ptr<TcpEndpoint> listen(std::uint32_t rank, Clock& clock);
  // Call it in the thread of the rank, after listen(). Returns the addresses of all ranks, including this one,
  // indexed by rank. It waits for the other ranks for a limited time; the entry of a rank that does not come in time
  // is an address at which no process listens.
  std::vector<std::string> addresses(std::uint32_t rank);
  std::unique_ptr<Transport> transport(std::uint32_t rank, Clock& clock, std::shared_ptr<TcpEndpoint> endpoint,
                                       std::vector<std::string> addresses);
  std::size_t open_descriptors() const { return kernel_.open_descriptors(); }

 private:
  SimEnvironment& environment_;
  SimKernel kernel_;
  std::vector<std::string> addresses_;
};

}  // namespace tutti::faults
