// Checks whether the system allows this process to share memory with the ranks of other processes.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "transports/shm/unix_exchange.h"

namespace tutti {

// Returns the address that the other ranks need to share memory with this one. It is empty if the system forbids
// memfd_create. Then the other ranks treat this rank as if it were alone on a machine, and all its traffic goes over
// TCP or another network path. A warning is logged, unless TUTTI_TRANSPORT names a network path anyway. Another warning
// is logged if LD_PRELOAD names libtutti_heap.so, but malloc() of this process does not use it. Errors: that of
// Mapping::refusal(), if TUTTI_TRANSPORT is shm, which leaves no other path.
Result<std::string> shared_memory_address(const Config& config, const UnixExchange& exchange, std::uint32_t rank);

}  // namespace tutti
