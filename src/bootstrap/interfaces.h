// Selects the addresses of this machine on which to listen. Any thread may call these functions. Functions that
// depend on the network interfaces read them anew in each call.
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
  std::string address;  // numeric; an IPv6 link-local address ends with %name
};

// Returns the IPv4 and IPv6 addresses of the interfaces that are up, in the order of the operating system. This
// function, and those below that return a Result, except select_address(), can fail with kSystem, for example if the
// process lacks file descriptors to query the system.
Result<std::vector<InterfaceAddress>> interface_addresses();

// Selects an address from `there`. `wanted` is a comma-separated list of interface names ("eth0"), subnets
// ("10.1.0.0/16", "fd00::/8") or addresses, in order of preference. The first entry that matches a usable address in
// `there` is used. If that entry is a name or a subnet, the result is its first IPv4 address, or its first IPv6
// address if it has no IPv4 address. A link-local IPv6 address is used only if it is given in full
// ("fe80::1%eth0"), because it has a different meaning on every machine. Errors: kConfig if no entry matches a usable
// address (the message lists the available interfaces), or if an entry before the first match is empty or a malformed
// subnet. Pure function.
Result<std::string> select_address(std::string_view wanted, std::span<const InterfaceAddress> there);

// Selects one of this machine's addresses by the rules of select_address(). If `wanted` names interfaces that exist but
// are down, the message of a kConfig error also names one of them.
Result<std::string> interface_address(std::string_view wanted);

bool is_own_address(const std::string& address);
bool is_loopback_address(const std::string& address);

// Returns the source address that this machine uses for packets to `peer`, a numeric address. Sends no packet.
// Returns an empty text if `peer` is not a numeric address, or if there is no source address, for example because there
// is no route to `peer`.
Result<std::string> route_address(const std::string& peer);

// Returns an address of this machine that other machines can probably reach: the source address of the default route
// (IPv4 is tried before IPv6) or, if there is none or it is a loopback address, the first address that is neither
// loopback nor IPv6 link-local. Errors: kConfig if there is no such address.
Result<std::string> outward_address();

// Returns the address on which this rank's data sockets should listen: the one that `config.interface` selects
// (TUTTI_INTERFACE or CommunicatorOptions::interface) or, if that is empty, this machine's source address on the route
// to `towards`. The caller passes Bootstrap::local_address() as `towards`, so if no interface is configured, the result
// is normally the address by which this rank has reached the rendezvous server. If that is a loopback address, so is
// the result. Errors: kConfig if `config.interface` matches no usable address or is malformed, or if there is no route.
Result<std::string> data_address(const Config& config, const std::string& towards);

// Corrects the data address of a rank that runs on the machine of the rendezvous server. The address of its
// connection to the server may be one that other machines cannot reach, for example loopback. `own` is the result
// of data_address() on this rank, and `addresses` holds the results of all ranks. Returns this machine's source
// address on the route to the first rank whose address does not belong to this machine. Returns `own` if all
// addresses belong to this machine or there is no such route.
Result<std::string> route_to_others(const std::string& own, const std::vector<std::string>& addresses);

}  // namespace tutti
