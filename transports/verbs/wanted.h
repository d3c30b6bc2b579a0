// Which ports of which devices the user wants: TUTTI_RDMA_DEVICES. A pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

// `list`: "mlx5_0:1,mlx5_2,ib*": names, with a comma between, each with a port behind a colon or all of its ports; a
// star at a name's end is any end. "^" in front: all but these. "none": none. Empty: all.
bool is_wanted(std::string_view list, std::string_view device, std::uint8_t port);

// Where in the list a port is named, from 0; behind all where it is not.
std::size_t place_in(std::string_view list, std::string_view device, std::uint8_t port);

}  // namespace tutti
