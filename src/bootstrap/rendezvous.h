// Determines the address at which the ranks meet, from the options and the environment. Reads the addresses of the
// network interfaces. It does not resolve names, and sends nothing.
#pragma once

#include <string>

#include "base/config.h"
#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

inline constexpr std::uint16_t kDefaultPort = 29477;

// Each setting is taken from the first of these that specifies it: the options, the TUTTI_* variables, the
// launcher's variables (bootstrap/launcher.h), the defaults. The launcher's address of rank 0 is used only if the
// launcher's number of ranks is also the one that is used. Errors:
// - kConfig: for example a host that can be neither a name nor an address, or an interface that does not exist (the
//   message lists the existing ones).
// - kInvalidArgument: a rank outside the range, or a missing size (the message lists the variables that were
//   searched).
Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config,
                                             const EnvironmentVariables& environment);

}  // namespace tutti
