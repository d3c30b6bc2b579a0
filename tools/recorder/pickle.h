// PickleWriter: writes one Python value as a pickle of protocol 2, which every Python 3 reads. It knows only the types
// that a dump of PyTorch's flight recorder needs: dict, list, pair, str, int, float, bool and None. No opcode that it
// writes can import a module or call a function when the pickle is loaded.
//
// A pickle is a program for a machine with a stack. A container is pushed when it is opened, and its elements are
// pushed after a mark; closing it moves everything above the mark into the container. In a dict, keys and values take
// turns.
// Nothing is memoised, so a text that occurs twice is written twice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::tool {

class PickleWriter {
 public:
  PickleWriter();

  // Each open function needs its close function. Between open_dict() and close_dict(): an even number of values, of
  // which every first one is a key, that is, a text.
  void open_dict();
  void close_dict();
  void open_list();
  void close_list();
  void pair(std::string_view first, std::string_view second);  // a tuple of two texts
  void text(std::string_view value);  // UTF-8, at most 4 GiB; other bytes must have been replaced (base/printable.h)
  void integer(std::int64_t value);
  void real(double value);
  void boolean(bool value);
  void none();

  // Returns the whole pickle. Call it once, after the outermost value has been written.
  std::string finish() &&;

 private:
  void little_endian(std::uint64_t value, int bytes);

  std::string pickle_;
  int open_ = 0;  // containers that are open
};

}  // namespace tutti::tool
