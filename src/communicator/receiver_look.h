// For a face of the library that sends without waiting (src/nccl): a look at the receiver before such a send.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/communicator.h"

namespace tutti::detail {

// Whether `peer`, which is not this rank, can receive a message of so many bytes. It takes part in nothing, and waits
// for other threads for milliseconds at most. False: its process may have ended; ask again. That takes less than a
// second to find out. Errors: as of a send to it, for example kPeerLost if its process has ended.
Result<bool> can_receive(Communicator& communicator, std::size_t bytes, std::int32_t peer);

}  // namespace tutti::detail
