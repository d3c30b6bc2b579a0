// Which of this machine's addresses to listen on. Any thread; reads the interfaces anew at each call.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "tutti/result.h"

namespace tutti {

struct InterfaceAddress {
  std::string name;     // "eth0"
  std::string address;  // numeric; with %name where it is link-local
};

// Of the interfaces that are up, in the system's order. This and the functions below: kSystem if this process has no
// descriptors or no memory left to ask the system.
Result<std::vector<InterfaceAddress>> interface_addresses();

// `wanted`: names ("eth0"), subnets ("10.1.0.0/16", "fd00::/8") or addresses, a comma between several, by preference.
// The first that fits one of `there` is taken: of a name or subnet the first IPv4 address, else the first IPv6 one.
// A link-local IPv6 address is taken only where it is asked for in full ("fe80::1%eth0"): it means something else on
// every machine. Errors: kConfig (what there is is listed). Pure.
Result<std::string> select_address(std::string_view wanted, std::span<const InterfaceAddress> there);

// The same among this machine's.
Result<std::string> interface_address(std::string_view wanted);

bool is_own_address(const std::string& address);
bool is_loopback_address(const std::string& address);

// This machine's own address on the route to `peer` (numeric; no packet is sent). Empty: there is no route.
Result<std::string> route_address(const std::string& peer);

// An address of this machine that other machines may reach: on the default route, else the first that is neither
// loopback nor link-local. Errors: kConfig.
Result<std::string> outward_address();

// Where this rank's sockets for data should listen: on TUTTI_INTERFACE, else on this rank's own address on the route to
// `towards` (Bootstrap::local_address(), or the rendezvous' address): loopback if the rendezvous is on loopback.
// Errors: kConfig.
Result<std::string> data_address(const Config& config, const std::string& towards);

// For a rank that met the server on its own machine, by an address that other machines need not reach: loopback, or one
// of several networks. `addresses`: what data_address() gave to the ranks. Returns the address on the route to the
// first rank elsewhere, or `own` if there is none.
Result<std::string> route_to_others(const std::string& own, const std::vector<std::string>& addresses);

}  // namespace tutti
