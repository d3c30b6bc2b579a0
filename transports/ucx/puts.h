// UcxPuts: whether long messages over UCX are written directly into the memory of the receiver (ucp_put_nbx).
#pragma once

#include <cstdint>

namespace tutti {

// If no NIC can write into the memory of a peer, UCX emulates such writes, for example with messages over TCP. A UCX
// context that permits remote writes also executes requests to write to any address of its process, and these may come
// from any process that can connect to its TCP ports. Therefore remote writes are by default enabled only if a NIC
// executes them.
enum class UcxPuts : std::uint8_t {
  kByCards,  // only if a NIC executes them; see is_nic_write_transport()
  kAlways,   // for tests: also if UCX emulates them
};

}  // namespace tutti
