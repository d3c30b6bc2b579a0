// TcpNetwork: transports/tcp, as it is, for the ranks of a simulated world: each has a kernel, a listener and a clock
// like a process of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "faults/sim_kernel.h"
#include "transports/transport.h"

namespace tutti::faults {

class TcpNetwork {
 public:
  explicit TcpNetwork(SimWorld& world) : world_(world), kernel_(world), addresses_(world.options().ranks) {}
  // In the thread of that rank; waits for the addresses of the others, within bounds. `clock` outlives the transport.
  std::unique_ptr<Transport> transport(std::uint32_t rank, Clock& clock);
  std::size_t open_descriptors() const { return kernel_.open_descriptors(); }

 private:
  SimWorld& world_;
  SimKernel kernel_;
  std::vector<std::string> addresses_;
};

}  // namespace tutti::faults
