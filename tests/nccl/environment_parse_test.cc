// Tests of the parsers for the values of NCCL's environment variables.
#include <gtest/gtest.h>

#include <map>

#include "nccl/environment/parse.h"

namespace tutti::nccl {
namespace {

constexpr std::array<std::string_view, 3> kWords = {"LL", "LL128", "Simple"};
constexpr std::size_t kBroadcast = 0, kAllReduce = 4;

TEST(ParseNumber, TakesDecimalHexadecimalAndOctalAndNothingElse) {
  EXPECT_EQ(parse_number("12"), 12);
  EXPECT_EQ(parse_number("-2"), -2);
  EXPECT_EQ(parse_number("+7"), 7);
  EXPECT_EQ(parse_number("0x10"), 16);
  EXPECT_EQ(parse_number("010"), 8);
  EXPECT_EQ(parse_number("0"), 0);
  for (const char* text : {"", "-", "1x", "x", "0x", "--1", "1 ", "99999999999999999999", "08"}) {
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  }
}

TEST(ParseChoice, AListWithoutAFunctionIsForAll) {
  const auto choice = parse_allowed_values("V", "ll,SIMPLE", kWords);
  ASSERT_TRUE(choice.ok());
  for (const std::uint32_t allowed : choice->allowed) EXPECT_EQ(allowed, 0b101u);
  for (const bool named : choice->named) EXPECT_FALSE(named);
}

TEST(ParseChoice, ACaretExcludes) {
  const auto choice = parse_allowed_values("V", "^LL128", kWords);
  ASSERT_TRUE(choice.ok());
  for (const std::uint32_t allowed : choice->allowed) EXPECT_EQ(allowed, 0b101u);
}

TEST(ParseChoice, AnEntryOfAFunctionReplacesWhatIsForAll) {
  const auto choice = parse_allowed_values("V", "^LL128;allreduce:LL128;", kWords);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->allowed[kBroadcast], 0b101u);
  EXPECT_FALSE(choice->named[kBroadcast]);
  EXPECT_EQ(choice->allowed[kAllReduce], 0b010u);
  EXPECT_TRUE(choice->named[kAllReduce]);
}

TEST(ParseChoice, FunctionsThatAreNotNamedKeepEverything) {
  const auto choice = parse_allowed_values("V", "AllReduce:^Simple", kWords);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->allowed[kBroadcast], 0b111u);
  EXPECT_EQ(choice->allowed[kAllReduce], 0b011u);
}

TEST(ParseChoice, WhatCannotBeReadIsRefusedAsNcclDoes) {
  const std::map<std::string, std::string> kWrong = {{"LL,Fast", "\"Fast\" is none of LL, LL128, Simple"},
                                                     {"gather:LL", "\"gather\" is none of Broadcast"},
                                                     {"allreduce:LL;Simple", "only the first entry"},
                                                     {"allreduce:", "names none of"},
                                                     {"^", "names none of"}};
  for (const auto& [text, message] : kWrong) {
    const auto choice = parse_allowed_values("V", text, kWords);
    ASSERT_FALSE(choice.ok()) << text;
    EXPECT_EQ(choice.error().code, ErrorCode::kConfig);
    EXPECT_NE(choice.error().message.find(message), std::string::npos) << choice.error().message;
  }
}

std::string chosen(std::string_view pattern, SocketFamily family = SocketFamily::kAny) {
  const std::vector<InterfaceAddress> there = {{"lo", "127.0.0.1"},   {"eth0", "10.0.0.1"}, {"eth1", "10.0.1.1"},
                                               {"eth10", "10.0.2.1"}, {"ib0", "10.1.0.1"},  {"docker0", "172.17.0.1"},
                                               {"lo", "::1"},         {"eth0", "fd00::1"},  {"eth0", "fe80::1%eth0"}};
  std::string list;
  for (const InterfaceAddress& one : filter_interfaces(pattern, family, there)) list += one.address + " ";
  return list;
}

TEST(FilterInterfaces, FollowsNcclsPatterns) {
  EXPECT_EQ(chosen("eth"), "10.0.0.1 10.0.1.1 10.0.2.1 fd00::1 ");
  EXPECT_EQ(chosen("eth1"), "10.0.1.1 10.0.2.1 ") << "matches a prefix";
  EXPECT_EQ(chosen("=eth1"), "10.0.1.1 ");
  EXPECT_EQ(chosen("=eth1,ib0"), "10.0.1.1 10.1.0.1 ") << "= applies to the whole list";
  EXPECT_EQ(chosen("ib,docker"), "10.1.0.1 172.17.0.1 ");
  EXPECT_EQ(chosen("^docker,lo,eth"), "10.1.0.1 ");
  EXPECT_EQ(chosen("^=eth1,lo"), "10.0.0.1 10.0.2.1 10.1.0.1 172.17.0.1 fd00::1 ");
  EXPECT_EQ(chosen("wlan"), "");
}

TEST(FilterInterfaces, KeepsToTheFamilyAndLeavesLinkLocalAddressesOut) {
  EXPECT_EQ(chosen("eth0", SocketFamily::kIpv4), "10.0.0.1 ");
  EXPECT_EQ(chosen("eth0", SocketFamily::kIpv6), "fd00::1 ");
  EXPECT_EQ(chosen("ib0", SocketFamily::kIpv6), "");
}

TEST(CheckPlace, TakesHostsAndAddressesWithAPort) {
  for (const char* text : {"10.0.0.1:1234", "node-1:65535", "[fd00::1]:5"})
    EXPECT_TRUE(check_root_address(text).ok()) << text;
  for (const char* text :
       {"10.0.0.1", ":1234", "host:0", "host:65536", "host:x", "fd00::1:5", "[]:5", "[fd00::1:5", ""}) {
    const Status place = check_root_address(text);
    ASSERT_FALSE(place.ok()) << text;
    EXPECT_EQ(place.error().code, ErrorCode::kConfig);
  }
}

TEST(ParseConf, TakesLinesWithAnEqualsSign) {
  const auto pairs = parse_conf("# comment=1\nNCCL_DEBUG=WARN\r\n\nno line\nNCCL_SOCKET_IFNAME==eth0\nNCCL_LAST=1");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"NCCL_DEBUG", "WARN"}, {"NCCL_SOCKET_IFNAME", "=eth0"}, {"NCCL_LAST", "1"}};
  EXPECT_EQ(pairs, expected);
  EXPECT_TRUE(parse_conf("").empty());
}

}  // namespace
}  // namespace tutti::nccl
