// Keys and other secrets in memory: overwritten when they are no longer needed, and left out of core dumps, which
// programs write to disk or send elsewhere. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tutti {

using Digest = std::array<std::uint8_t, 32>;

// 32 secret bytes. They lie in pages that the system leaves out of core dumps (MADV_DONTDUMP), and are overwritten when
// the Key ends; so copy a Key, and never its bytes. Throws std::bad_alloc if the system gives no memory.
class Key {
 public:
  static constexpr std::size_t kBytes = 32;

  Key();  // zeros
  Key(std::initializer_list<std::uint8_t> first);
  explicit Key(const Digest& bytes);
  Key(const Key& other);
  Key& operator=(const Key& other);
  ~Key();

  std::uint8_t* data() { return bytes_; }
  const std::uint8_t* data() const { return bytes_; }
  static constexpr std::size_t size() { return kBytes; }
  std::uint8_t* begin() { return bytes_; }
  std::uint8_t* end() { return bytes_ + kBytes; }
  const std::uint8_t* begin() const { return bytes_; }
  const std::uint8_t* end() const { return bytes_ + kBytes; }
  bool operator==(const Key& other) const;  // takes the same time wherever the first difference is

 private:
  std::uint8_t* const bytes_;
};

// A secret of a moment on the stack: as T, and overwritten when it ends.
template <class T>
struct Wiped : T {
  static_assert(std::is_trivially_copyable_v<T>);
  Wiped() : T{} {}
  Wiped(const T& value) : T(value) {}  // NOLINT: as T
  Wiped(const T&& value) = delete;     // a temporary is a copy that nobody wipes: fill the secret in place
  Wiped(const Wiped&) = default;
  Wiped& operator=(const Wiped&) = default;
  ~Wiped() { explicit_bzero(this, sizeof(*this)); }
};

// Overwrites a text when it ends. The text must not grow meanwhile, which would leave a copy behind.
class WipesText {
 public:
  explicit WipesText(std::string& text) : text_(text) {}
  ~WipesText() { explicit_bzero(text_.data(), text_.size()); }
  WipesText(const WipesText&) = delete;
  WipesText& operator=(const WipesText&) = delete;

 private:
  std::string& text_;
};

// A secret text on the heap that a callback owns; overwritten when it ends.
struct SecretText {
  std::string text;
  explicit SecretText(std::string value) : text(std::move(value)) {}
  ~SecretText() { explicit_bzero(text.data(), text.size()); }
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
};

inline std::string_view bytes_of(const Key& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

}  // namespace tutti
