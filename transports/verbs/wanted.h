// Which ports of which devices the user wants, and in which order: TUTTI_RDMA_DEVICES. Pure functions, but for
// listed_ports(), which looks at files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// `list`: "mlx5_0:1,mlx5_2,ib*": names, with a comma between, each with a port behind a colon or all of its ports; a
// star at a name's end is any end. "^" in front: all but these. "none": none. Empty: all.
bool is_wanted(std::string_view list, std::string_view device, std::uint8_t port);

struct PortName {
  std::string device;
  std::uint8_t number = 1;
  bool software = false;  // of its device
};
inline constexpr std::size_t kNoRail = ~std::size_t{0};

// The rail of each port that a machine has, by its place among those that are wanted, whether it can be used or not:
// kNoRail for one that is not. In the list's order, in which a word that fits several ports counts for each, and one
// that fits none for one; else by name, what is of software last. So a port that is down or has gone moves no other.
std::vector<std::size_t> rails_of(std::string_view list, const std::vector<PortName>& ports);

// The numbers of a device's ports as the system lists them, ascending, also where the device itself says nothing.
// `folder`: the device's of /sys/class/infiniband. Where nothing is listed: 1 alone.
std::vector<std::uint8_t> listed_ports(const std::string& folder);

}  // namespace tutti
