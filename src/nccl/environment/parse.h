// The forms that values of NCCL's variables have. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/interfaces.h"
#include "tutti/result.h"

namespace tutti::nccl {

// A whole number, decimal, 0x... or 0...; nothing for anything else.
std::optional<std::int64_t> parse_number(std::string_view text);

bool same_word(std::string_view a, std::string_view b);  // upper and lower case alike

// For which collectives NCCL_ALGO and NCCL_PROTO can say something; the others have no choice in NCCL.
inline constexpr std::size_t kListedFunctions = 5;
inline constexpr std::array<std::string_view, kListedFunctions> kFunctionNames = {"Broadcast", "Reduce", "AllGather",
                                                                                  "ReduceScatter", "AllReduce"};

// What such a list leaves: bit i of allowed[f] is set where words[i] may serve kFunctionNames[f].
struct Choice {
  std::array<std::uint32_t, kListedFunctions> allowed{};
  std::array<bool, kListedFunctions> named{};  // the function has an entry of its own
};

// "ring,tree", "^nvls", "allreduce:tree,ring;allgather:ring", "^LL128;allreduce:LL128": entries with a semicolon
// between, the first without a function for all of them; a later entry replaces what an earlier one said. Errors:
// kConfig (a word, a function that there is not; a later entry without a function).
Result<Choice> parse_choice(std::string_view variable, std::string_view text, std::span<const std::string_view> words);

enum class SocketFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

// NCCL_SOCKET_IFNAME: "eth,ib": interfaces whose names begin so; "=eth0,eth1": with just these names; "^docker",
// "^=docker0": all but those. Of `there`, in its order, without link-local addresses of IPv6.
std::vector<InterfaceAddress> filter_interfaces(std::string_view pattern, SocketFamily family,
                                                std::span<const InterfaceAddress> there);

// NCCL_COMM_ID: "host:port", "address:port" or "[v6]:port". Errors: kConfig.
Status check_place(std::string_view text);

// The NAME=VALUE lines of a file of settings; lines that begin with # and those without = are left out, as NCCL does.
std::vector<std::pair<std::string, std::string>> parse_conf(std::string_view text);

}  // namespace tutti::nccl
