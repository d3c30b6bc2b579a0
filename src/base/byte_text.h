// Numbers of bytes, for people.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

// "1.5 GiB", "640 MiB", "12 KiB", "8 bytes": rounded to two or three digits. Pure; any thread.
std::string text_of_bytes(std::uint64_t bytes);

}  // namespace tutti
