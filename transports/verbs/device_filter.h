// The device filter TUTTI_RDMA_DEVICES: which ports of which RDMA devices are used, and in which order. All
// functions are pure, except listed_ports(), which reads files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// True if the filter `list` accepts the port. The filter is a list of device names, separated by commas, for example
// "mlx5_0:1,mlx5_2,ib*". A name with ":N" means only port N, a name without it means all ports, and "*" at the end
// of a name matches any ending. A list that starts with "^" accepts all ports except those listed. "none" matches no
// device, so nothing is accepted. An empty list accepts everything.
bool is_port_accepted(std::string_view list, std::string_view device, std::uint8_t port);

struct PortName {
  std::string device;
  std::uint8_t number = 1;  // port number, counted from 1
  bool software = false;    // true if the device is implemented in software, for example rdma_rxe
};
inline constexpr std::size_t kNoRail = ~std::size_t{0};

// Returns the rail of each port: the ports that the filter accepts are numbered, whether or not they can be used. Ports
// that are not accepted get kNoRail. The rails follow the order of the filter: an item that matches several ports takes
// one rail for each of them. An item still takes one rail if it matches no port, or only ports that earlier items have
// matched. If the filter is empty or starts with "^", the rails follow the device names and port numbers, with software
// devices last. So a port that is down does not change the rails of the other ports. Nor does a missing device with one
// port that is listed by its full name.
std::vector<std::size_t> assign_rails(std::string_view list, const std::vector<PortName>& ports);

// Returns the port numbers of a device as the operating system lists them, in ascending order. This also works if
// the device cannot be opened. `folder`: the folder of the device in /sys/class/infiniband. Returns {1} if nothing
// is listed.
std::vector<std::uint8_t> listed_ports(const std::string& folder);

}  // namespace tutti
