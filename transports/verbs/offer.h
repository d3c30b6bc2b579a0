// The offer: the text in which a rank describes its ports to its peers during set-up. This file also selects which
// ports of two ranks are connected to each other. All functions are pure. An offer that is parsed comes from a peer,
// so it is checked.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transports/verbs/verbs_maker.h"

namespace tutti {

// The offer of a rank, printable and without '|', for example "verbs2;rxe0,1,2,1000,3,0,00..01,0;...". "verbs2" is
// the format with its version. Then each port has these fields: device, port number, link type (2: RoCE v2, 1: RoCE
// v1, i: InfiniBand), speed in Mbit/s, MTU (ibv_mtu), LID, GID in hexadecimal digits, rail. `ports` must be sorted by
// rail; only the first kMaxPorts are included.
std::string print_offer(const std::vector<VerbsPort>& ports);
// Returns the ports sorted by rail, with each rail at most once. An empty text means no ports. Errors: kRefused if the
// text is not a well-formed offer, is of another version (all ranks of a job need the same build), has more than
// kMaxPorts ports, or has ports whose rails are not ascending.
Result<std::vector<VerbsPort>> parse_offer(const std::string& text);
inline constexpr std::size_t kMaxPorts = 32;

// Returns pairs of indexes into `ours` and `theirs`: ports of the same rail that can reach each other. Different
// rails are never connected, because their networks may be separate. Both lists must be sorted by rail. Only
// the first kMaxPorts of `ours` count, because an offer has no more. `theirs` are those of an offer (parse_offer()), so
// both ranks compute the same pairs. The result is empty if the two ranks cannot reach each other over any rail.
std::vector<std::pair<std::size_t, std::size_t>> match_rails(const std::vector<VerbsPort>& ours,
                                                             const std::vector<VerbsPort>& theirs);

}  // namespace tutti
