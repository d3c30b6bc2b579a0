#include "transports/verbs/gid.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

namespace tutti {
namespace {

// Preference of a RoCE address; lower is better. The result is an index into kReasons.
int rank_of(const GidEntry& entry) {
  if (entry.type == GidType::kRoceV1) return 3;
  if (is_ipv4(entry.gid)) return 0;
  return is_link_local(entry.gid) ? 2 : 1;
}

constexpr std::array<std::string_view, 4> kReasons = {
    "the first RoCE v2 address of IPv4", "the first routable RoCE v2 address of IPv6, because there is none of IPv4",
    "the first link-local RoCE v2 address, because there is no other",
    "the first RoCE v1 address, because there is none of v2"};

}  // namespace

bool is_zero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool is_ipv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) && gid[10] == 0xff &&
         gid[11] == 0xff;
}

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

std::string text_of(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET6, gid.data(), text.data(), text.size()) != nullptr ? text.data() : "?";
}

std::optional<GidChoice> choose_gid(const std::vector<GidEntry>& entries, bool ethernet,
                                    std::optional<std::int32_t> wanted, std::string& reason) {
  if (wanted) {
    const auto found =
        std::find_if(entries.begin(), entries.end(), [&](const GidEntry& entry) { return entry.index == *wanted; });
    if (found != entries.end()) return GidChoice{.entry = *found, .reason = "TUTTI_RDMA_GID_INDEX names it"};
    reason = fmt::format("it has no GID {}, which TUTTI_RDMA_GID_INDEX names", *wanted);
    return std::nullopt;
  }
  if (entries.empty()) {
    reason =
        ethernet ? "it has no GID: give its network interface an address" : "it has no GID: is a subnet manager up?";
    return std::nullopt;
  }
  if (!ethernet) return GidChoice{.entry = entries.front(), .reason = "the first GID of the InfiniBand port"};
  const auto best = std::min_element(entries.begin(), entries.end(), [](const GidEntry& a, const GidEntry& b) {
    return std::pair(rank_of(a), a.index) < std::pair(rank_of(b), b.index);
  });
  return GidChoice{.entry = *best, .reason = std::string(kReasons[static_cast<std::size_t>(rank_of(*best))])};
}

bool same_family(const Gid& a, bool a_ethernet, const Gid& b, bool b_ethernet) {
  if (a_ethernet != b_ethernet) return false;
  return a_ethernet ? is_ipv4(a) == is_ipv4(b) : std::equal(a.begin(), a.begin() + 8, b.begin());
}

}  // namespace tutti
