// Texts about sends and receives for error messages and warnings. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/exchange.h"

namespace tutti {

// Describes a transfer, for example "receive #3 of 8 float32 from rank 2" or "all_to_all_v, receive #3 of ...".
std::string describe(const Transfer& transfer);
// Describes the unfinished transfers of an exchange by the first of them and the number of the others. For a probe the
// text is "next_sender()". If all transfers have ended, it is "a group of sends and receives".
std::string describe_unfinished(const Exchange& exchange);
// The peers of the unfinished transfers, sorted, each once.
std::vector<std::uint32_t> unfinished_peers(const Exchange& exchange);

}  // namespace tutti
