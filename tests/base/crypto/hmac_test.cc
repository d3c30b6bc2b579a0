// Tests SHA-256 and HMAC against the published vectors of FIPS 180-2 and RFC 4231.
#include "base/crypto/hmac.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>

namespace tutti {
namespace {

std::string hex(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

TEST(Hmac, Sha256IsThatOfTheStandard) {
  EXPECT_EQ(hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256({"abc"})), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256({"a", "", "bc"})), hex(sha256({"abc"}))) << "the parts must be hashed as one text";
  EXPECT_EQ(hex(sha256({std::string(1'000'000, 'a')})),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hmac, IsThatOfRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), {"Hi There"})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", {"what do ya want ", "for nothing?"})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), {std::string(50, '\xdd')})),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  // The key is longer than a block.
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), {"Test Using Larger Than Block-Size Key - Hash Key First"})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, KeysOfDifferentPurposesDiffer) {
  Key key{};
  ASSERT_TRUE(random_bytes(key));
  EXPECT_NE(derive_key(key, "a"), derive_key(key, "b"));
  EXPECT_NE(derive_key(key, "a", "x"), derive_key(key, "a", "y"));
  EXPECT_NE(derive_key(key, "a", "x"), derive_key(key, "ax"));
  Key other{};
  ASSERT_TRUE(random_bytes(other));
  EXPECT_NE(key, other);
  EXPECT_TRUE(equal_in_constant_time(bytes_of(key), bytes_of(key)));
  EXPECT_FALSE(equal_in_constant_time(bytes_of(key), bytes_of(other)));
  EXPECT_FALSE(equal_in_constant_time("ab", "a"));
}

}  // namespace
}  // namespace tutti
