// What authentication is made of: SHA-256 (OpenSSL's, linked in), HMAC on top of it (RFC 2104), keys, random bytes and
// a comparison that takes the same time whatever differs. Pure functions but for random_bytes(); any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/key.h"

namespace tutti {

using Tag = std::array<std::uint8_t, 16>;  // the first half of a Digest, which RFC 2104 allows

// Of the parts one after the other, as if they were one text. Where their lengths are not fixed, the caller tells them.
Digest sha256(std::initializer_list<std::string_view> parts);
Digest hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts);
// The same into `digest`, which may be a Wiped one: no other copy stays on the stack.
void hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts, Digest& digest);

// The same as a key, of which no copy stays behind.
Key hmac_key(std::string_view key, std::initializer_list<std::string_view> parts);

// A key for one purpose out of another key: HMAC over `label`, a zero byte and `context`.
Key derive_key(const Key& from, std::string_view label, std::string_view context = {});

// Takes the same time wherever the first difference is; different lengths are unequal at once.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// From the system's generator. False: it gives none.
[[nodiscard]] bool random_bytes(std::span<std::uint8_t> bytes);

// The bytes of a struct or an array, for the functions above.
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
