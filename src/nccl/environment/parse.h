// Parsers for the values of NCCL's variables. The functions have no state, and may be called from any thread.
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

// Parses an integer: decimal, hexadecimal (0x...) or octal (0...). Returns nothing for any other text.
std::optional<std::int64_t> parse_number(std::string_view text);

bool same_word(std::string_view a, std::string_view b);  // compares without regard to case

// The collectives to which NCCL_ALGO and NCCL_PROTO apply. For the others NCCL has no choice.
inline constexpr std::size_t kListedFunctions = 5;
inline constexpr std::array<std::string_view, kListedFunctions> kFunctionNames = {"Broadcast", "Reduce", "AllGather",
                                                                                  "ReduceScatter", "AllReduce"};

// The result of such a list: bit i of allowed[f] is set if words[i] may be used for kFunctionNames[f].
struct AllowedValues {
  std::array<std::uint32_t, kListedFunctions> allowed{};
  std::array<bool, kListedFunctions> named{};  // whether the list has an entry for this function
};

// Parses a list such as "ring,tree", "^nvls" (all except nvls), "allreduce:tree,ring;allgather:ring" or
// "^LL128;allreduce:LL128". Entries are separated by semicolons. Only the first entry may have no function; it then
// applies to all functions. A later entry replaces an earlier one for the same function. Errors: kConfig (an unknown
// word or function; a later entry without a function).
Result<AllowedValues> parse_allowed_values(std::string_view variable, std::string_view text,
                                           std::span<const std::string_view> words);

enum class SocketFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

// The interfaces in `there` that match NCCL_SOCKET_IFNAME, in the same order. "eth,ib" matches names with these
// prefixes; "=eth0,eth1" matches exactly these names; "^docker" and "^=docker0" match all others. Link-local IPv6
// addresses are left out.
std::vector<InterfaceAddress> filter_interfaces(std::string_view pattern, SocketFamily family,
                                                std::span<const InterfaceAddress> there);

// Checks the form of NCCL_COMM_ID: "host:port", "address:port" or "[v6]:port". Errors: kConfig.
Status check_root_address(std::string_view text);

// The NAME=VALUE lines of a configuration file. Lines that begin with # and lines without = are skipped, as in NCCL.
std::vector<std::pair<std::string, std::string>> parse_conf(std::string_view text);

}  // namespace tutti::nccl
