// Formats numbers of bytes for messages.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

// For example "1.5 GiB", "640 MiB", "12 KiB" or "8 bytes". The number has one decimal if it is below 10 and the unit is
// not bytes; otherwise it is a whole number. A pure function; may be called from any thread.
std::string text_of_bytes(std::uint64_t bytes);

}  // namespace tutti
