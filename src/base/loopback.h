// The loopback interface, which the processes of one machine use for set-up unless another interface is configured. May
// be called from any thread. Each call reads the list of interfaces again.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti {

// Returns the numeric loopback address of this machine: ::1 if loopback interfaces have ::1 but not 127.0.0.1, and
// otherwise 127.0.0.1, even if the interfaces cannot be listed.
std::string loopback_address();

// Checks that a loopback interface is up. If it is down, all connections between the processes of a machine fail or
// hang, even those to the addresses of other interfaces. Errors: kSystem with the name of the interface that is down.
// Returns success if the interfaces cannot be listed, or if there is no loopback interface.
Status check_loopback();

}  // namespace tutti
