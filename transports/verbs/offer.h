// What a rank tells its peers at set-up of its ports, and which of two ranks' ports speak to each other. Pure
// functions; what is parsed is a peer's and is not trusted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transports/verbs/verbs_maker.h"

namespace tutti {

// "verbs2;rxe0,1,2,1000,3,0,00..01,0;..." (2: RoCE v2, 1: v1, i: InfiniBand; last the rail): printable, without '|'.
// `ports`: by rail.
std::string print_offer(const std::vector<VerbsPort>& ports);
// By rail, each once. Errors: kRefused: it is no such text, of another version (a job's ranks have one build), or has
// more ports than kMostPorts. An empty one has no ports.
Result<std::vector<VerbsPort>> parse_offer(const std::string& text);
inline constexpr std::size_t kMostPorts = 32;

// Pairs of indexes, ours and theirs: ports of the same rail where these can speak, so that rails stay apart. Each
// side's by rail. Both ranks find the same. Empty: no way.
std::vector<std::pair<std::size_t, std::size_t>> match_rails(const std::vector<VerbsPort>& ours,
                                                             const std::vector<VerbsPort>& theirs);

}  // namespace tutti
