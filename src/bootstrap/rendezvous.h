// Where the ranks meet: turns options and environment into a rendezvous. Reads the interfaces' addresses; resolves no
// names and sends nothing.
#pragma once

#include <string>

#include "base/config.h"
#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

inline constexpr std::uint16_t kDefaultPort = 29477;

// Each thing comes from the first of these that says it: the options, the TUTTI_* variables, the launcher's variables
// (runtime/launcher.h), the defaults. What a launcher says of the place to meet counts only where its number of ranks
// is the one that is used. Errors: kConfig, kInvalidArgument (rank outside, missing size: what was looked for is
// listed; a host that can be neither a name nor an address; an interface that does not exist: those that do are
// listed).
Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config,
                                             const EnvironmentVariables& environment);

}  // namespace tutti
