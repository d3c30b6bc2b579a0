// Tests the addresses of the host of rank 0. Names that resolve late, or to several addresses, need a special hosts
// file; they are tested in tests/machines.
#include "bootstrap/root_addresses.h"

#include <gtest/gtest.h>

#include "bootstrap/interfaces.h"
#include "tests/support/patience.h"

namespace tutti {
namespace {

using Addresses = std::vector<std::string>;

TEST(RootAddresses, NumericOnesStayAsTheyAre) {
  for (const char* numeric : {"127.0.0.1", "::1", "198.51.100.7", "2001:db8::7"}) {
    RootAddresses root(numeric);
    EXPECT_TRUE(root.list().empty());
    root.look_up(test::patience());
    EXPECT_EQ(root.list(), Addresses{numeric});
    EXPECT_EQ(root.text(), numeric);
    EXPECT_EQ(root.trouble(), "");
    EXPECT_FALSE(root.is_loopback_by_hosts_file());
  }
}

TEST(RootAddresses, LocalhostIsLoopbackByItsName) {
  RootAddresses root("localhost");
  root.look_up(test::patience());
  ASSERT_FALSE(root.list().empty()) << root.trouble();
  for (const std::string& address : root.list()) EXPECT_TRUE(is_loopback_address(address)) << address;
  EXPECT_FALSE(root.is_loopback_by_hosts_file());
  EXPECT_EQ(root.text().find("localhost ("), 0u) << root.text();
}

TEST(RootAddresses, FixedOnesAreNotLookedUpAgain) {
  RootAddresses root("localhost");
  root.fix({"198.51.100.7", "198.51.100.8"});
  root.look_up(test::patience());
  EXPECT_EQ(root.list(), (Addresses{"198.51.100.7", "198.51.100.8"}));
}

}  // namespace
}  // namespace tutti
