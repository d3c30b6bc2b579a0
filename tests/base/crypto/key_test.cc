// Tests that keys are excluded from core dumps and overwritten when they are destroyed.
#include "base/crypto/key.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <type_traits>

#include "base/crypto/hmac.h"

namespace tutti {
namespace {

// Returns the flags that the kernel reports for the mapping with this address, such as "rd wr mr mw me dd".
std::string mapping_flags(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    const bool is_range = (words >> std::hex >> begin >> dash >> end) && dash == '-';
    if (is_range) inside = begin <= wanted && wanted < end;
    if (inside && line.starts_with("VmFlags:")) return line;
  }
  return {};
}

TEST(Key, IsLeftOutOfCoreDumps) {
  const Key key = {1, 2, 3};
  const std::string flags = mapping_flags(key.data());
  EXPECT_NE(flags.find(" dd"), std::string::npos) << flags;
}

TEST(Key, IsOverwrittenWhenItEnds) {
  const std::uint8_t* place = nullptr;
  {
    Key key;
    ASSERT_TRUE(random_bytes(key));
    place = key.data();
    EXPECT_NE(key, Key());
  }
  EXPECT_EQ(std::count(place, place + Key::kBytes, 0), std::ptrdiff_t{Key::kBytes});  // the memory stays mapped
}

TEST(Key, CopiesAreKeysOfTheirOwn) {
  Key key = {7};
  Key copy = key;
  EXPECT_EQ(copy, key);
  copy.data()[0] = 8;
  EXPECT_NE(copy, key);
  key = copy;
  EXPECT_EQ(copy, key);
  EXPECT_EQ(Key({8}), key);
  std::vector<Key> many(5000);  // more keys than one chunk of protected memory holds
  for (const Key& one : many) EXPECT_EQ(one, Key());
}

TEST(Wiped, LeavesNothingBehind) {
  alignas(Wiped<Digest>) std::array<std::byte, sizeof(Wiped<Digest>)> place{};
  static_assert(!std::is_constructible_v<Wiped<Digest>, Digest>, "the temporary would not be wiped");
  const Digest known = sha256({"a secret"});
  auto* const secret = new (place.data()) Wiped<Digest>(known);
  secret->~Wiped();
  EXPECT_EQ(std::count(place.begin(), place.end(), std::byte{}), std::ptrdiff_t{place.size()});
}

}  // namespace
}  // namespace tutti
