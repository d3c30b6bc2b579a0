// Tests the text for a number of bytes in messages.
#include "base/byte_text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tutti {
namespace {

TEST(ByteText, IsRoundedToTwoOrThreeDigits) {
  EXPECT_EQ(text_of_bytes(8), "8 bytes");
  EXPECT_EQ(text_of_bytes(1536), "1.5 KiB");
  EXPECT_EQ(text_of_bytes(400u << 20), "400 MiB");
  EXPECT_EQ(text_of_bytes(std::uint64_t{4} << 40), "4.0 TiB");
}

}  // namespace
}  // namespace tutti
