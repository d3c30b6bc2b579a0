// Formats numbers of bytes for messages.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

// For example "1.5 GiB", "640 MiB", "12 KiB" or "8 bytes": one decimal below 10 of a unit, otherwise a whole number. A
// pure function; may be called from any thread.
std::string text_of_bytes(std::uint64_t bytes);

}  // namespace tutti
