// Key, Wiped, WipesText, SecretText: secrets in memory. They are overwritten when they are destroyed. Keys are also
// excluded from core dumps, if the kernel supports that (since Linux 3.4), because a core dump may be written to disk
// or sent to other machines. May be used in any thread.
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

// 32 secret bytes. They are stored in pages that the kernel excludes from core dumps if it can (MADV_DONTDUMP), and the
// destructor overwrites them. So copy the Key and never its bytes. The constructors throw std::bad_alloc if there is no
// memory.
class Key {
 public:
  static constexpr std::size_t kBytes = 32;

  Key();                                           // all bytes are zero
  Key(std::initializer_list<std::uint8_t> first);  // the first bytes; the others are zero
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
  bool operator==(const Key& other) const;  // in constant time

 private:
  std::uint8_t* const bytes_;
};

// A T for short-lived secrets on the stack. The destructor overwrites it.
template <class T>
struct Wiped : T {
  static_assert(std::is_trivially_copyable_v<T>);
  Wiped() : T{} {}
  Wiped(const T& value) : T(value) {}  // NOLINT: implicit, so that it can be used like a T
  Wiped(const T&& value) = delete;     // a temporary would leave a copy that is not overwritten: assign in place
  Wiped(const Wiped&) = default;
  Wiped& operator=(const Wiped&) = default;
  ~Wiped() { explicit_bzero(this, sizeof(*this)); }
};

// The destructor overwrites `text`. The text must not grow while the object exists, because a reallocation would leave
// a copy that is not overwritten.
class WipesText {
 public:
  explicit WipesText(std::string& text) : text_(text) {}
  ~WipesText() { explicit_bzero(text_.data(), text_.size()); }
  WipesText(const WipesText&) = delete;
  WipesText& operator=(const WipesText&) = delete;

 private:
  std::string& text_;
};

// A secret text on the heap, for example owned by a callback. The destructor overwrites it.
struct SecretText {
  std::string text;
  explicit SecretText(std::string value) : text(std::move(value)) {}
  ~SecretText() { explicit_bzero(text.data(), text.size()); }
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
};

inline std::string_view bytes_of(const Key& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

}  // namespace tutti
