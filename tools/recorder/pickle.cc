#include "tools/recorder/pickle.h"

#include <bit>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace tutti::tool {
namespace {

// The opcodes, with the names of Python's module pickle.
constexpr std::string_view kPickleProto2 = "\x80\x02";
constexpr char kPickleMark = '(';
constexpr char kPickleEmptyDict = '}';
constexpr char kPickleSetItems = 'u';
constexpr char kPickleEmptyList = ']';
constexpr char kPickleAppends = 'e';
constexpr char kPickleTuple2 = '\x86';
constexpr char kPickleBinUnicode = 'X';  // a length of 4 bytes, then the text
constexpr char kPickleBinInt = 'J';      // 4 bytes
constexpr char kPickleLong1 = '\x8a';    // the number of bytes in 1 byte, then the bytes of the number
constexpr char kPickleBinFloat = 'G';    // 8 bytes, the most significant one first
constexpr char kPickleNewTrue = '\x88';
constexpr char kPickleNewFalse = '\x89';
constexpr char kPickleNone = 'N';
constexpr char kPickleStop = '.';

}  // namespace

PickleWriter::PickleWriter() : pickle_(kPickleProto2) {}

void PickleWriter::open_dict() {
  pickle_ += {kPickleEmptyDict, kPickleMark};
  ++open_;
}

void PickleWriter::close_dict() {
  TUTTI_ASSERT(open_-- > 0);
  pickle_ += kPickleSetItems;
}

void PickleWriter::open_list() {
  pickle_ += {kPickleEmptyList, kPickleMark};
  ++open_;
}

void PickleWriter::close_list() {
  TUTTI_ASSERT(open_-- > 0);
  pickle_ += kPickleAppends;
}

void PickleWriter::pair(std::string_view first, std::string_view second) {
  text(first);
  text(second);
  pickle_ += kPickleTuple2;
}

void PickleWriter::text(std::string_view value) {
  TUTTI_ASSERT(value.size() <= std::numeric_limits<std::uint32_t>::max());
  pickle_ += kPickleBinUnicode;
  little_endian(value.size(), 4);
  pickle_ += value;
}

void PickleWriter::integer(std::int64_t value) {
  const bool is_short =
      value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max();
  if (is_short) {
    pickle_ += kPickleBinInt;
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    pickle_ += {kPickleLong1, 8};
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
}

void PickleWriter::real(double value) {
  pickle_ += kPickleBinFloat;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int byte = 7; byte >= 0; --byte) pickle_ += static_cast<char>(bits >> (8 * byte));
}

void PickleWriter::boolean(bool value) { pickle_ += value ? kPickleNewTrue : kPickleNewFalse; }

void PickleWriter::none() { pickle_ += kPickleNone; }

std::string PickleWriter::finish() && {
  TUTTI_ASSERT(open_ == 0);
  pickle_ += kPickleStop;
  return std::move(pickle_);
}

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int byte = 0; byte < bytes; ++byte) pickle_ += static_cast<char>(value >> (8 * byte));
}

}  // namespace tutti::tool
