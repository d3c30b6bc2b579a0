// Determines the address at which the ranks meet, from the options of the communicator and the environment. The
// function may read the addresses of this machine's network interfaces. It does not resolve names, and sends
// nothing.
#pragma once

#include <string>

#include "base/config.h"
#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

// The port of the rendezvous server if the port is not determined by the options, TUTTI_ROOT, TUTTI_PORT_RANGE, a
// unique id or a launcher other than `tutti run`.
inline constexpr std::uint16_t kDefaultPort = 29477;

// Each setting is taken from the first of these that specifies it: the options, the TUTTI_* variables, the
// launcher's variables (bootstrap/launcher.h), the defaults. The launcher's address of rank 0 and job id are used only
// if the launcher gives the same number of ranks as the result has, because otherwise the launcher's job is not this
// one. The caller must still set the fields for keys, `stop` and the log level. Errors:
// - kConfig: for example a host that can be neither a name nor an address, or an interface that does not exist (the
//   message lists the existing ones).
// - kInvalidArgument: a rank or size outside its range, a negative timeout, a job id in the options that is too long, a
//   damaged unique id, or a missing rank or size (the message lists the variables that were searched).
// - kSystem: the process lacks file descriptors or memory to read the network interfaces.
Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config,
                                             const EnvironmentVariables& environment);

}  // namespace tutti
