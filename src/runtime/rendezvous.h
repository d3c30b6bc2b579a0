// Where rank 0 is met: turns options and environment into a rendezvous. Pure but for reading the interfaces' addresses.
#pragma once

#include <string>

#include "base/config.h"
#include "runtime/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

inline constexpr std::uint16_t kDefaultPort = 29477;

// Options win over the environment, the environment over the defaults. Errors: kConfig, kInvalidArgument (rank outside,
// missing size, a host that is no address, an interface that does not exist: those that do are listed).
Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config);

// The first IPv4 address of a network interface, or the first IPv6 one.
Result<std::string> interface_address(const std::string& name);

}  // namespace tutti
