// The values of attributes in topology files, from their text. Pure functions; any thread. Nothing where the text does
// not say such a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

std::optional<double> parse_real(std::string_view text);                // "12.5"; finite
std::optional<std::int64_t> parse_integer(std::string_view text);       // "-1"
std::optional<std::uint32_t> parse_hexadecimal(std::string_view text);  // "0x10de", "10de"

// "16 GT/s", "16.0 GT/s PCIe", "16.0GT/s": 16. A sign and numbers out of reason are left to the caller.
std::optional<double> parse_link_speed(std::string_view text);

// "0000:3b:00.0" in lower case, from the same in any case or with a domain of up to eight digits.
std::optional<std::string> parse_bus_id(std::string_view text);

// CPU masks as the kernel writes them: words of 32 bits in hexadecimal, the last one lowest.
bool is_mask(std::string_view text);
bool masks_overlap(std::string_view one, std::string_view other);

}  // namespace tutti
