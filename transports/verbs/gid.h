// Selects the address (GID) of a port that its queue pairs use as their source address. A wrong GID is a common
// configuration error of RoCE, so the selection follows fixed rules and returns its reason for the log. All functions
// are pure.
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
bool is_link_local(const Gid& gid);  // fe80::/10
std::string text_of(const Gid& gid);

// `entries`: the GIDs of one port that are in use. `ethernet`: true for a RoCE port, false for an InfiniBand port.
// `wanted`: the index that the user has configured with TUTTI_RDMA_GID_INDEX, if any. The order of preference is:
//
//   1. the GID with the index that the user has configured
//   2. RoCE v2 with an IPv4 address
//   3. RoCE v2 with a routable IPv6 address
//   4. RoCE v2 with a link-local address
//   5. RoCE v1
//
// On InfiniBand the first GID is used, unless the user has configured one. If several GIDs are equally good, the one
// with the lowest index is used. Returns nothing if the port has no GID, or none with the index `wanted`; `reason` then
// contains the explanation.
std::optional<GidChoice> choose_gid(const std::vector<GidEntry>& entries, bool ethernet,
                                    std::optional<std::int32_t> wanted, std::string& reason);

// True if queue pairs with these two source addresses can reach each other, as far as the addresses show. That is
// the case if both are RoCE addresses of the same IP family, or both are InfiniBand addresses of the same subnet.
bool same_family(const Gid& a, bool a_ethernet, const Gid& b, bool b_ethernet);

}  // namespace tutti
