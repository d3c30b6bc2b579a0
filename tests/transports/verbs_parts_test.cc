// Tests of the parts of the verbs transport that need no device: the choice of addresses, the offers of ports, and
// advertised outputs. RegistrationCache are tested in registrations_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "transports/verbs/device_filter.h"
#include "transports/verbs/gid.h"
#include "transports/verbs/offer.h"
#include "transports/verbs/receive_targets.h"
#include "transports/verbs/stripes.h"

namespace tutti {
namespace {

Gid ipv4(std::uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}; }
Gid ipv6(std::uint8_t last) { return {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }
Gid link_local(std::uint8_t last) { return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last}; }

std::int32_t chosen(const std::vector<GidEntry>& entries, bool ethernet = true,
                    std::optional<std::int32_t> wanted = {}) {
  std::string reason;
  const auto choice = choose_gid(entries, ethernet, wanted, reason);
  EXPECT_FALSE((choice ? choice->reason : reason).empty());
  return choice ? choice->entry.index : -1;
}

TEST(VerbsGid, IsChosenByRule) {
  const GidEntry v1{.index = 0, .gid = ipv4(1), .type = GidType::kRoceV1};
  const GidEntry link{.index = 1, .gid = link_local(1), .type = GidType::kRoceV2};
  const GidEntry six{.index = 2, .gid = ipv6(1), .type = GidType::kRoceV2};
  const GidEntry four{.index = 3, .gid = ipv4(1), .type = GidType::kRoceV2};
  const GidEntry four_too{.index = 5, .gid = ipv4(2), .type = GidType::kRoceV2};
  EXPECT_EQ(chosen({v1, link, six, four, four_too}), 3);
  EXPECT_EQ(chosen({four_too, four, six}), 3) << "of equally good addresses the lowest one, in any order";
  EXPECT_EQ(chosen({v1, link, six}), 2);
  EXPECT_EQ(chosen({v1, link}), 1);
  EXPECT_EQ(chosen({v1}), 0);
  EXPECT_EQ(chosen({v1, link, six, four}, true, 1), 1) << "the user's choice";
  EXPECT_EQ(chosen({v1, four}, true, 7), -1);
  EXPECT_EQ(chosen({}), -1);
  EXPECT_EQ(chosen({{.index = 0, .gid = link_local(9), .type = GidType::kInfiniBand}}, false), 0);
}

VerbsPort port(const std::string& device, const Gid& gid, bool ethernet = true) {
  VerbsPort made;
  made.device = device;
  made.number = 2;
  made.ethernet = ethernet;
  made.mbps = 400'000;
  made.mtu = 5;
  made.lid = 77;
  made.gid = gid;
  return made;
}

VerbsPort on_rail(std::uint16_t rail, const Gid& gid, bool ethernet = true) {
  VerbsPort made = port("mlx5_" + std::to_string(rail), gid, ethernet);
  made.rail = rail;
  return made;
}

TEST(VerbsOffer, ComesBackAsItWas) {
  const std::vector<VerbsPort> ports = {on_rail(1, ipv4(1)), on_rail(700, ipv6(200), false)};
  const auto parsed = parse_offer(print_offer(ports));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed->size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*parsed)[i].device, ports[i].device);
    EXPECT_EQ((*parsed)[i].number, ports[i].number);
    EXPECT_EQ((*parsed)[i].rail, ports[i].rail);
    EXPECT_EQ((*parsed)[i].ethernet, ports[i].ethernet);
    EXPECT_EQ((*parsed)[i].mbps, ports[i].mbps);
    EXPECT_EQ((*parsed)[i].mtu, ports[i].mtu);
    EXPECT_EQ((*parsed)[i].lid, ports[i].lid);
    EXPECT_EQ((*parsed)[i].gid, ports[i].gid);
  }
  EXPECT_TRUE(parse_offer("")->empty());
}

TEST(VerbsOffer, IsRefusedWhereItCannotBeRead) {
  const std::string good = print_offer({port("mlx5_0", ipv4(1))});
  for (std::size_t length = 1; length < good.size(); ++length) {
    const auto parsed = parse_offer(good.substr(0, length));
    EXPECT_TRUE(!parsed.ok() || parsed->empty()) << good.substr(0, length);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    text[random() % text.size()] = static_cast<char>(random() % 256);
    const auto parsed = parse_offer(text);  // must not crash, and every accepted offer must be valid
    if (!parsed.ok()) continue;
    for (const VerbsPort& one : *parsed) {
      EXPECT_TRUE(one.mtu >= 1 && one.mtu <= 5);
      EXPECT_GT(one.number, 0);
    }
  }
  std::vector<VerbsPort> many;
  for (std::uint16_t i = 0; i < 40; ++i) many.push_back(on_rail(i, ipv4(1)));
  EXPECT_EQ(parse_offer(print_offer(many))->size(), kMaxPorts);
  EXPECT_FALSE(parse_offer(print_offer(many) + print_offer({on_rail(99, ipv4(1))}).substr(6)).ok()) << "too many ports";
  EXPECT_FALSE(parse_offer(print_offer({on_rail(3, ipv4(1)), on_rail(3, ipv4(2))})).ok())
      << "the same rail occurs twice";
  EXPECT_FALSE(parse_offer(print_offer({on_rail(3, ipv4(1)), on_rail(2, ipv4(2))})).ok())
      << "rails must be in ascending order";
}

TEST(VerbsOffer, OfAnotherVersionIsRefused) {
  for (const std::string version : {"verbs1", "verbs3", "verbs12"}) {
    const auto parsed = parse_offer(version + print_offer({on_rail(0, ipv4(1))}).substr(6));
    ASSERT_FALSE(parsed.ok()) << version;
    EXPECT_EQ(parsed.error().code, ErrorCode::kRefused);
    EXPECT_NE(parsed.error().message.find(version + ", this rank's verbs2"), std::string::npos)
        << parsed.error().message;
  }
}

TEST(VerbsOffer, RailsStayApart) {
  const std::vector<VerbsPort> two = {on_rail(0, ipv4(1)), on_rail(1, ipv4(2))};
  const std::vector<VerbsPort> mixed = {on_rail(0, ipv6(1)), on_rail(1, ipv4(3)), on_rail(2, ipv4(4))};
  using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(match_rails(two, two), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(match_rails(two, mixed), (Pairs{{1, 1}}));
  std::vector<VerbsPort> many;
  for (std::uint16_t i = 0; i < 40; ++i) many.push_back(on_rail(i, ipv4(1)));
  EXPECT_EQ(match_rails(many, {on_rail(31, ipv4(2)), on_rail(32, ipv4(3))}), (Pairs{{31, 0}}))
      << "rail 32 is not in this rank's offer";
  EXPECT_EQ(match_rails(two, {}), Pairs{});
  EXPECT_EQ(match_rails({on_rail(0, ipv4(1), false)}, two), Pairs{}) << "InfiniBand cannot be connected to Ethernet";
  // A port that is down leaves its rail empty. No other port takes that rail.
  const std::vector<VerbsPort> second = {on_rail(1, ipv4(5))};
  EXPECT_EQ(match_rails(second, two), (Pairs{{0, 1}}));
  EXPECT_EQ(match_rails(two, second), (Pairs{{1, 0}}));
  EXPECT_EQ(match_rails(second, {on_rail(0, ipv4(6))}), Pairs{}) << "the machines have no rail in common";
  EXPECT_EQ(match_rails({on_rail(0, ipv4(1)), on_rail(2, ipv4(2)), on_rail(5, ipv4(3))},
                        {on_rail(1, ipv4(4)), on_rail(2, ipv4(5)), on_rail(3, ipv4(6)), on_rail(5, ipv4(7))}),
            (Pairs{{1, 1}, {2, 3}}));
}

// Rails are assigned to all ports of a machine, in any order and independently of their state.
TEST(VerbsDevices, KeepTheirRails) {
  const std::vector<PortName> ports = {{"mlx5_1", 1}, {"mlx5_0", 2}, {"mlx5_0", 1}, {"hfi", 1, true}};
  using Rails = std::vector<std::size_t>;
  EXPECT_EQ(assign_rails("", ports), (Rails{2, 1, 0, 3})) << "ordered by name, with software devices last";
  EXPECT_EQ(assign_rails("^mlx5_0:1", ports), (Rails{1, 0, kNoRail, 2}));
  EXPECT_EQ(assign_rails("mlx5_1,mlx5_0", ports), (Rails{0, 2, 1, kNoRail})) << "the user's order is kept";
  EXPECT_EQ(assign_rails("mlx5_7,mlx5_1", ports), (Rails{1, kNoRail, kNoRail, kNoRail}))
      << "a device that this machine lacks keeps its rail number";
  EXPECT_EQ(assign_rails("hfi,mlx5*:1", ports), (Rails{2, kNoRail, 1, 0}));
  EXPECT_EQ(assign_rails("none", ports), (Rails{kNoRail, kNoRail, kNoRail, kNoRail}));
  EXPECT_EQ(assign_rails("mlx5_0:1,mlx5_0", ports), (Rails{kNoRail, 1, 0, kNoRail}))
      << "a port is counted where it is named first";
}

// The ports of a device that cannot be opened or queried.
TEST(VerbsDevices, HavePortsAsTheSystemListsThem) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("tutti_verbs_device_" + std::to_string(::getpid()));
  EXPECT_EQ(listed_ports(folder), std::vector<std::uint8_t>{1}) << "the system lists no port, so assume port 1";
  for (const char* name : {"10", "2", "1", "0", "x", "3x", "300"}) fs::create_directories(folder / "ports" / name);
  EXPECT_EQ(listed_ports(folder), (std::vector<std::uint8_t>{1, 2, 10}));
  fs::remove_all(folder);
}

TEST(VerbsDevices, AreTakenAsTheUserLikes) {
  EXPECT_TRUE(is_port_accepted("", "mlx5_0", 1));
  EXPECT_TRUE(is_port_accepted("mlx5_0", "mlx5_0", 2)) << "a name without a port stands for all ports";
  EXPECT_TRUE(is_port_accepted("mlx5_1,mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(is_port_accepted("mlx5_1,mlx5_0:2", "mlx5_0", 1));
  EXPECT_FALSE(is_port_accepted("mlx5_1", "mlx5_10", 1)) << "names must match completely";
  EXPECT_TRUE(is_port_accepted("mlx5_1*", "mlx5_10", 1));
  EXPECT_TRUE(is_port_accepted("mlx5*:1", "mlx5_10", 1));
  EXPECT_FALSE(is_port_accepted("mlx5*:1", "mlx5_10", 2));
  EXPECT_FALSE(is_port_accepted("^mlx5_0", "mlx5_0", 1));
  EXPECT_TRUE(is_port_accepted("^mlx5_0", "mlx5_1", 1));
  EXPECT_FALSE(is_port_accepted("none", "mlx5_1", 1));
}

CallTag call_of(std::uint64_t sequence) { return {.sequence = sequence, .count = 10}; }

std::vector<std::uint64_t> ends(std::uint64_t bytes, std::size_t parts, const std::vector<std::uint32_t>& weights) {
  std::vector<std::uint64_t> all;
  for (std::size_t part = 0; part < parts; ++part) all.push_back(stripe_end(bytes, parts, weights, part));
  return all;
}

TEST(VerbsStripes, AreAsLongAsTheirPortsAreQuick) {
  using Ends = std::vector<std::uint64_t>;
  EXPECT_EQ(ends(1 << 20, 2, {200'000, 200'000}), (Ends{1 << 19, 1 << 20}));
  EXPECT_EQ(ends(1 << 20, 2, {}), (Ends{1 << 19, 1 << 20}));
  EXPECT_EQ(ends(4'000'000, 2, {400'000, 100'000}), (Ends{3'200'000, 4'000'000}));
  EXPECT_EQ(ends(4'000'000, 2, {100'000, 400'000, 7}), (Ends{800'000, 4'000'000}))
      << "only the first two weights count";
  EXPECT_EQ(ends(1 << 20, 3, {100'000, 1, 100'000}), (Ends{524'288, 524'352, 1 << 20}));
  EXPECT_EQ(ends(100, 3, {}), (Ends{64, 100, 100})) << "the last stripe is empty";
  EXPECT_EQ(ends(5, 1, {1}), (Ends{5}));
  EXPECT_EQ(ends(0, 2, {1, 1}), (Ends{0, 0}));
}

TEST(VerbsStripes, HaveEveryByteOnceAndNoneTwice) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t bytes = random() % (std::uint64_t{16} << 20);
    std::vector<std::uint32_t> weights(random() % 16 + 1);
    for (std::uint32_t& weight : weights) weight = random() % 800'000 + 1;
    std::uint64_t before = 0;
    for (const std::uint64_t end : ends(bytes, weights.size(), weights)) {
      ASSERT_GE(end, before);
      ASSERT_TRUE(end % 64 == 0 || end == bytes);
      before = end;
    }
    ASSERT_EQ(before, bytes);
  }
}

TEST(VerbsLandings, AreMadeAsFarAsThePeerHasSeen) {
  ReceiveTargets receive_targets;
  std::vector<std::byte> output(100);
  for (std::uint64_t call = 1; call <= ReceiveTargets::kDescriptors; ++call) {
    ASSERT_TRUE(receive_targets.can_advertise(call_of(call)));
    EXPECT_EQ(receive_targets.advertise(call_of(call), output, {}).number, call);
    EXPECT_FALSE(receive_targets.can_advertise(call_of(call))) << "it has already been advertised";
  }
  EXPECT_FALSE(receive_targets.can_advertise(call_of(9)));
  EXPECT_TRUE(receive_targets.note_received(2));
  EXPECT_TRUE(receive_targets.can_advertise(call_of(9)));
  EXPECT_TRUE(receive_targets.note_received(1)) << "a header may arrive late";
  EXPECT_FALSE(receive_targets.note_received(777)) << "only four descriptors have been advertised";
  EXPECT_FALSE(receive_targets.note_received(ReceiveTargets::kDescriptors + 1));
  for (std::uint64_t call = 9; call <= 10; ++call) receive_targets.advertise(call_of(call), output, {});
  EXPECT_FALSE(receive_targets.can_advertise(call_of(11)));
}

TEST(VerbsLandings, AreForMessagesOfTheirCallInsideOfThem) {
  ReceiveTargets receive_targets;
  std::vector<std::byte> output(100);
  EXPECT_FALSE(receive_targets.is_within(call_of(1), 0, 0));
  receive_targets.advertise(call_of(1), output, {});
  EXPECT_TRUE(receive_targets.is_within(call_of(1), 0, 100));
  EXPECT_TRUE(receive_targets.is_within(call_of(1), 100, 0));
  EXPECT_FALSE(receive_targets.is_within(call_of(1), 1, 100));
  EXPECT_FALSE(receive_targets.is_within(call_of(1), ~std::uint64_t{0} - 5, 50)) << "the sum overflows";
  EXPECT_FALSE(receive_targets.is_within(call_of(2), 0, 100));
  receive_targets.withdraw();
  EXPECT_FALSE(receive_targets.is_within(call_of(1), 0, 100));
}

TEST(VerbsLandings, AreRecalledOnce) {
  ReceiveTargets ours;
  ReceiveTargets theirs;
  std::vector<std::byte> output(100);
  EXPECT_FALSE(ours.revoke());
  EXPECT_TRUE(ours.is_revoked(2)) << "no output is advertised";
  ASSERT_TRUE(theirs.take(ours.advertise(call_of(1), output, {})));
  const auto number = ours.revoke();
  ASSERT_TRUE(number);
  EXPECT_FALSE(ours.revoke()) << "a revocation is requested only once";
  theirs.forget(static_cast<std::uint16_t>(*number + 1));
  EXPECT_NE(theirs.find(call_of(1), 100), nullptr) << "the number belongs to another output";
  theirs.forget(*number);
  EXPECT_EQ(theirs.find(call_of(1), 100), nullptr);
  ours.note_acknowledgement(*number);
  ours.note_acknowledgement(static_cast<std::uint16_t>(*number + 1));
  EXPECT_FALSE(ours.is_revoked(2)) << "only one of two queue pairs has confirmed it";
  ours.note_acknowledgement(*number);
  EXPECT_TRUE(ours.is_revoked(2));
  ASSERT_TRUE(theirs.take(ours.advertise(call_of(2), output, {}))) << "the numbering continues";
}

TEST(VerbsLandings, OfThePeerComeInTheirOrder) {
  ReceiveTargets theirs;
  ReceiveTargets ours;
  std::vector<std::byte> output(100);
  EXPECT_EQ(ours.find(call_of(1), 100), nullptr);
  EXPECT_EQ(ours.find(CallTag{}, 0), nullptr) << "an empty tag must not match";
  const ReceiveTargets::Descriptor first = theirs.advertise(call_of(1), output, {});
  const ReceiveTargets::Descriptor second = theirs.advertise(call_of(2), output, {});
  EXPECT_FALSE(ours.take(second));
  ASSERT_TRUE(ours.take(first));
  EXPECT_FALSE(ours.take(first)) << "the same advert must not be accepted twice";
  ASSERT_NE(ours.find(call_of(1), 100), nullptr);
  EXPECT_EQ(ours.find(call_of(1), 100)->address, reinterpret_cast<std::uintptr_t>(output.data()));
  EXPECT_EQ(ours.find(call_of(1), 99), nullptr);
  ASSERT_TRUE(ours.take(second));
  EXPECT_EQ(ours.find(call_of(1), 100), nullptr) << "the output has been replaced";
  EXPECT_EQ(ours.seen(), 2u);
}

}  // namespace
}  // namespace tutti
