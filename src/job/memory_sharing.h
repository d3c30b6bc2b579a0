// Whether the ranks of other processes can share memory with this process, as the system allows it.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "transports/shm/unix_exchange.h"

namespace tutti {

// The address that the other ranks get to share memory with this one. It is empty if the system forbids memfd_create:
// the others then treat this rank as one on a machine of its own, and all traffic with it goes over TCP or another
// network path. A warning says so. Errors: that of Mapping::refusal(), if TUTTI_TRANSPORT=shm leaves no other path.
Result<std::string> place_to_share_memory(const Config& config, const UnixExchange& exchange, std::uint32_t rank);

}  // namespace tutti
