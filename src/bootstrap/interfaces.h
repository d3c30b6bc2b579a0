// Selects the addresses of this machine on which to listen. Any thread may call these functions. Each call reads
// the network interfaces again.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "tutti/result.h"

namespace tutti {

struct InterfaceAddress {
  std::string name;     // for example "eth0"
  std::string address;  // numeric; ends with %name if it is link-local
};

// Returns the addresses of the interfaces that are up, in the system's order. This function and those below fail
// with kSystem if the process has no free descriptors or no memory to ask the system.
Result<std::vector<InterfaceAddress>> interface_addresses();

// Selects an address from `there`. `wanted` is a comma-separated list of names ("eth0"), subnets ("10.1.0.0/16",
// "fd00::/8") or addresses, in order of preference. The first entry that matches is used. For a name or subnet,
// that is its first IPv4 address, or its first IPv6 address if it has no IPv4 address. A link-local IPv6 address is
// used only if it is given in full ("fe80::1%eth0"), because it has a different meaning on every machine. Errors:
// kConfig (the message lists the available interfaces). Pure function.
Result<std::string> select_address(std::string_view wanted, std::span<const InterfaceAddress> there);

// Selects one of this machine's addresses in the same way.
Result<std::string> interface_address(std::string_view wanted);

bool is_own_address(const std::string& address);
bool is_loopback_address(const std::string& address);

// Returns this machine's own address on the route to `peer`, which must be numeric. Sends no packet. Returns an
// empty text if there is no route.
Result<std::string> route_address(const std::string& peer);

// Returns an address of this machine that other machines can probably reach: the one on the default route or, if
// there is none, the first one that is neither loopback nor link-local. Errors: kConfig.
Result<std::string> outward_address();

// Returns the address on which this rank's data sockets should listen: the one that TUTTI_INTERFACE selects or, if
// it is not set, this rank's own address on the route to `towards`. That is Bootstrap::local_address() or the
// address of the rendezvous server. If the server is on loopback, the result is loopback. Errors: kConfig.
Result<std::string> data_address(const Config& config, const std::string& towards);

// For a rank on the server's machine. Its address on the connection to the server may be one that other machines
// cannot reach: loopback, or an address in another network. `addresses` holds the results of data_address() on all
// ranks. Returns this machine's address on the route to the first rank on another machine, or `own` if there is
// none.
Result<std::string> route_to_others(const std::string& own, const std::vector<std::string>& addresses);

}  // namespace tutti
