// Makes text from a file or a peer safe to print on a terminal. Pure functions; may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

// Returns the length in bytes of the first character of `text`, or 0 if it must not be printed: invalid UTF-8, a
// control character (also U+0080 to U+009F, which some terminals interpret as escape sequences), a line or paragraph
// separator (U+2028, U+2029), or a character that changes the direction of the text around it. 0 also for an empty
// text.
inline std::size_t printable_bytes(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return byte(0) < 0x20 || byte(0) == 0x7f ? 0 : 1;
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return 0;
  std::uint32_t character = byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    character = character << 6U | (byte(i) & 0x3fU);
  }
  const std::uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0xa0;
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  const bool directs = character == 0x61c || character == 0x200e || character == 0x200f ||
                       (character >= 0x2028 && character <= 0x202e) || (character >= 0x2066 && character <= 0x2069);
  return character < least || character > 0x10ffff || surrogate || directs ? 0 : bytes;
}

// Replaces every byte that is not part of a printable character by '?'.
inline std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text);
    shown += bytes == 0 ? "?" : text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return shown;
}

}  // namespace tutti
