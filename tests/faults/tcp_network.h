// TcpNetwork: transports/tcp, as it is, for the ranks of a simulation: each has a kernel, a listener and a clock
// like a process of its own.
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

inline constexpr std::uint64_t kCommunicator = 1;  // the number of the first one

class TcpNetwork {
 public:
  explicit TcpNetwork(SimEnvironment& environment)
      : environment_(environment), kernel_(environment), addresses_(environment.options().ranks) {}
  // In the thread of that rank. `clock` outlives the endpoint.
  std::shared_ptr<TcpEndpoint> listen(std::uint32_t rank, Clock& clock);
  // Likewise, after listen(): by rank, this one's too. Waits for the others', within bounds; nobody listens at what
  // stands for those that do not come.
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
