// Finds out which transports and devices of UCX an endpoint uses. UCX 1.13 has no function for that, but it prints the
// information for people, and this file parses that text. If the text has an unexpected form, the information is
// missing: error messages do not contain it, and with UcxPuts::kByCards long messages are not written into slots of the
// receiver, but sent as active messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transports/ucx/library.h"

namespace tutti {

// A transport of UCX on a device. UCX calls this a resource.
struct UcxResource {
  std::string transport;  // for example "rc_verbs" or "tcp"
  std::string device;     // for example "rxe0:1" or "lo"

  bool operator==(const UcxResource&) const = default;
};

// The resources in the output of ucp_ep_print_info(): each one once, in the order of the text.
std::vector<UcxResource> parse_ucx_resources(std::string_view text);
std::vector<UcxResource> resources_of(const UcxLibrary& ucx, ucp_ep_h endpoint);
// A description such as "rxe0 port 1 (rc_verbs), eth0 (tcp)". Empty if nothing is known.
std::string describe(const std::vector<UcxResource>& resources);
// True for the transports rc_* and dc_*: the reliable connections of InfiniBand and RoCE, with which a NIC writes into
// the memory of the peer. False for all other transports; for example, UCX 1.13 emulates such writes with messages over
// tcp.
bool is_nic_write_transport(std::string_view transport);
// True if the output of ucp_context_print_info() contains a transport for which is_nic_write_transport() is true.
bool contains_nic_write_transport(std::string_view text);

}  // namespace tutti
