// Shared code of the fuzz targets: checks, and the splitting of an input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace tutti::fuzz {

// Ends the process if the condition is false. libFuzzer reports this as a finding.
inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// An input that is consumed from its beginning. Bytes after its end are zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::size_t bytes = std::min(sizeof(T), rest_.size());
    std::memcpy(static_cast<void*>(&value), rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return value;
  }
  // Returns at most this number of bytes.
  std::string_view take_text(std::size_t bytes) {
    const std::string_view text = rest_.substr(0, bytes);
    rest_.remove_prefix(text.size());
    return text;
  }
  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace tutti::fuzz
