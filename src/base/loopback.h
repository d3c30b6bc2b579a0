// The loopback interface, over which the processes of one machine meet. Any thread; reads the interfaces anew at each
// call.
#pragma once

#include <string>

#include "tutti/result.h"

namespace tutti {

// The machine's numeric loopback address: 127.0.0.1, or ::1 if the loopback interface has no IPv4 address. 127.0.0.1
// if the interfaces cannot be listed.
std::string loopback_address();

// Without a loopback interface that is up, connections between the processes of a machine fail or hang, to the
// addresses of its other interfaces as well. Errors: kSystem, with the name of the interface that is down. No error
// if the interfaces cannot be listed.
Status check_loopback();

}  // namespace tutti
