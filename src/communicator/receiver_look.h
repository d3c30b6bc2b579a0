// can_receive(): checks the receiver before a send for which the caller will not wait. Used by src/nccl.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/communicator.h"

namespace tutti::detail {

// Whether `peer`, which must not be this rank, can receive a message of `bytes` bytes. Sends no message. If another
// thread is driving the engine, waits for it for at most kMaxDriverWait (engine/immediate_probe.cc). If a thread still
// drives after that, returns true without a check. False: the process of the peer may have ended; ask again a moment
// later, but limit the attempts. If it is called repeatedly, it normally returns true or an error after less than a
// second. Errors: those of a send to the peer, for example kPeerLost if its process has ended.
Result<bool> can_receive(Communicator& communicator, std::size_t bytes, std::int32_t peer);

}  // namespace tutti::detail
