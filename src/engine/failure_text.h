// Texts for error messages and warnings. Stateless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/call_tag.h"
#include "executor/exchange.h"

namespace tutti {

std::string rank_list(const std::vector<std::uint32_t>& ranks);  // for example "rank 1" or "ranks 1, 2"
// The ranks that a warning about a long wait names. If this rank waits for no other rank, its own data is on its way.
std::string late_ranks(const std::vector<std::uint32_t>& ranks);
// The end of an error message "rank 1 gave it up (...)": the resource or permission that rank 1 lacked; may be empty.
std::string_view shortage(CallArgument lacked);
// The remedy if ranks passed different values of `argument`. `passed`: the arguments of these ranks.
std::string_view advice(CallArgument argument, std::span<const CallTag> passed);

// Describes a transfer, for example "receive #3 of 8 float32 from rank 2" or "all_to_all_v, receive #3 of ...".
std::string describe(const Transfer& transfer);
// Describes the unfinished transfers of an exchange by the first of them and the number of the others. For a probe the
// text is "next_sender()". If all transfers have ended, it is "a group of sends and receives".
std::string describe_unfinished(const Exchange& exchange);
// The peers of the unfinished transfers, in ascending order and without repetitions.
std::vector<std::uint32_t> unfinished_peers(const Exchange& exchange);

}  // namespace tutti
