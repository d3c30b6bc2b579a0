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

// Parses an integer: decimal, hexadecimal (0x...) or octal (0...), with an optional sign. Returns nothing for any other
// text, and for a number whose magnitude is greater than 2^63 - 1.
std::optional<std::int64_t> parse_number(std::string_view text);

bool same_word(std::string_view a, std::string_view b);  // compares without regard to case

// The collectives to which NCCL_ALGO and NCCL_PROTO apply, by the names that users write in these variables. For the
// other collectives NCCL has nothing to choose.
inline constexpr std::size_t kListedFunctions = 5;
inline constexpr std::array<std::string_view, kListedFunctions> kFunctionNames = {"Broadcast", "Reduce", "AllGather",
                                                                                  "ReduceScatter", "AllReduce"};

// The result of parse_allowed_values(): bit i of allowed[f] is set if words[i] may be used for the collective
// kFunctionNames[f].
struct AllowedValues {
  std::array<std::uint32_t, kListedFunctions> allowed{};
  std::array<bool, kListedFunctions> named{};  // whether the list has an entry with the name of this collective
};

// Parses a value of NCCL_ALGO or NCCL_PROTO such as "ring,tree", "^nvls" (all except nvls),
// "allreduce:tree,ring;allgather:ring" or "^LL128;allreduce:LL128". Entries are separated by semicolons. Only the first
// entry may have no function name; it then applies to all functions. A later entry replaces an earlier one for the same
// function. `words` are the valid values, and `variable` is the name for error messages. Errors: kConfig (an unknown
// word or function; an entry without any word; a later entry without a function name).
Result<AllowedValues> parse_allowed_values(std::string_view variable, std::string_view text,
                                           std::span<const std::string_view> words);

enum class SocketFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

// The interfaces in `there` that match `pattern` (a value of NCCL_SOCKET_IFNAME) and `family`, in the order of `there`.
// "eth,ib" matches names with these prefixes; "=eth0,eth1" matches exactly these names; "^docker" matches all names
// without this prefix, and "^=docker0" all names except docker0. Link-local IPv6 addresses are left out.
std::vector<InterfaceAddress> filter_interfaces(std::string_view pattern, SocketFamily family,
                                                std::span<const InterfaceAddress> there);

// Checks the form of a value of NCCL_COMM_ID: "host:port", "IPv4 address:port" or "[IPv6 address]:port". Error
// (kConfig): the text has another form, or the port is not 1 to 65535. The host must not be empty or contain a colon;
// neither it nor the text in brackets is checked further.
Status check_root_address(std::string_view text);

// The NAME=VALUE lines of a configuration file. Lines that begin with # and lines without = are skipped, as in NCCL.
std::vector<std::pair<std::string, std::string>> parse_conf(std::string_view text);

}  // namespace tutti::nccl
