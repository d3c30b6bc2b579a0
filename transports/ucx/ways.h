// By which of UCX's transports and devices an endpoint goes, as far as UCX 1.13 tells: it has no call for it, but
// writes it down for a person. Where these words are others than expected, nothing is known, and nothing is lost but
// that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transports/ucx/library.h"

namespace tutti {

struct UcxWay {
  std::string transport;  // "rc_verbs", "tcp"
  std::string device;     // "rxe0:1", "lo"

  bool operator==(const UcxWay&) const = default;
};

// Of what ucp_ep_print_info() writes: each once, in its order.
std::vector<UcxWay> parse_ucx_ways(std::string_view text);
std::vector<UcxWay> ways_of(const UcxLibrary& ucx, ucp_ep_h endpoint);
// "rxe0 port 1 (rc_verbs), eth0 (tcp)". Empty: nothing is known.
std::string describe(const std::vector<UcxWay>& ways);
// A network card writes into the memory of the peer: InfiniBand's and RoCE's reliable connections. All others emulate
// that by messages, or do not reach memory that is not theirs (1.13).
bool writes_by_card(std::string_view transport);
// What ucp_context_print_info() writes names such a transport.
bool names_card(std::string_view text);

}  // namespace tutti
