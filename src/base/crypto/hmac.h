// The functions that authentication uses: SHA-256 (from OpenSSL's static library), HMAC-SHA-256 (RFC 2104), key
// derivation, random bytes, and a comparison in constant time. All are pure functions, except random_bytes(). May be
// called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/crypto/key.h"

namespace tutti {

using Tag = std::array<std::uint8_t, 16>;  // the first half of a Digest; RFC 2104 permits such a truncation

// The digest of the concatenated parts. The boundaries of the parts do not affect the result, so a caller with parts of
// variable length must include their lengths.
Digest sha256(std::initializer_list<std::string_view> parts);
Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts);
// Stores the result in `digest`, which may be a Wiped<Digest>, so that no other copy remains on the stack.
void hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts, Digest& digest);

// Returns the HMAC as a Key. Intermediate copies are overwritten.
Key hmac_key(std::string_view key, std::initializer_list<std::string_view> parts);

// Derives a key for one purpose from another key: HMAC over `label`, a zero byte and `context`.
Key derive_key(const Key& from, std::string_view label, std::string_view context = {});

// The running time does not depend on the position of the first difference, so that an attacker cannot measure it.
// Texts of different length compare unequal at once.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// Fills `bytes` from the system's random number generator. Returns false if the generator fails.
[[nodiscard]] bool random_bytes(std::span<std::uint8_t> bytes);

// A view of the bytes of a struct or an array, as an argument for the functions above.
template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <class T>
std::string_view bytes_of(const Wiped<T>& value) {
  return bytes_of(static_cast<const T&>(value));
}

inline Tag tag_of(const Digest& digest) {
  Tag tag{};
  for (std::size_t i = 0; i < tag.size(); ++i) tag[i] = digest[i];
  return tag;
}

}  // namespace tutti
