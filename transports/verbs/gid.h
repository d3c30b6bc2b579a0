// Which of a RoCE port's addresses (GIDs) a queue pair speaks from. By rule, with the reason for the log: the field's
// most common fault is a wrong guess. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

using Gid = std::array<std::uint8_t, 16>;

enum class GidType : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct GidEntry {
  std::int32_t index = 0;
  Gid gid{};
  GidType type = GidType::kInfiniBand;
};

struct GidChoice {
  GidEntry entry;
  std::string reason;
};

bool is_zero(const Gid& gid);
bool is_ipv4(const Gid& gid);        // ::ffff:a.b.c.d
bool is_link_local(const Gid& gid);  // fe80::/64
std::string text_of(const Gid& gid);
std::string_view to_string(GidType type);

// `entries`: those of one port that are in use. `wanted`: the user's index. In order: the user's; RoCE v2 of IPv4; RoCE
// v2 of IPv6 that is routable; RoCE v2 of a link-local address; RoCE v1; on InfiniBand the first. Of several that are
// equal the one with the lowest index. Nothing where there is none; `reason` then says why.
std::optional<GidChoice> choose_gid(const std::vector<GidEntry>& entries, bool ethernet,
                                    std::optional<std::int32_t> wanted, std::string& reason);

// Whether queue pairs at these two can speak to each other, as far as addresses tell: both RoCE of one IP family, or
// both InfiniBand of one subnet.
bool same_family(const Gid& a, bool a_ethernet, const Gid& b, bool b_ethernet);

}  // namespace tutti
