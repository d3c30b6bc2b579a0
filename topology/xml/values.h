// Parses the values of attributes in topology files and in sysfs. Pure functions; may be called by any thread. The
// parsers return nothing if the text does not have the stated form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

std::optional<double> parse_real(std::string_view text);                // for example "12.5"; must be finite
std::optional<std::int64_t> parse_integer(std::string_view text);       // for example "-1"
std::optional<std::uint32_t> parse_hexadecimal(std::string_view text);  // for example "0x10de" or "10de"

// Parses "16 GT/s", "16.0 GT/s PCIe" and "16.0GT/s" as 16. The caller must check for negative or unreasonable
// numbers.
std::optional<double> parse_link_speed(std::string_view text);

// Returns a PCI bus id in the form "0000:3b:00.0" (domain:bus:device.function), in lower case. The text may be in upper
// case, and its domain may have more than four digits, up to the value 0xffffffff.
std::optional<std::string> parse_bus_id(std::string_view text);

// CPU masks in the format of the kernel: 32-bit words in hexadecimal, separated by commas, the word of the CPUs 0 to 31
// last. masks_overlap() returns true if at least one CPU is in both masks, and false if a text is not a mask.
bool is_mask(std::string_view text);
bool masks_overlap(std::string_view one, std::string_view other);

}  // namespace tutti
