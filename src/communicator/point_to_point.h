// Sends and receives of one message: transfer(), start_transfer(), next_sender() and try_next_sender(). Free
// functions that any thread may call. Internal to src/communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "communicator/communicator_impl.h"
#include "executor/exchange.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// Implements Communicator::send() and receive().
Status transfer(CommunicatorImpl& communicator, Direction direction, const void* data, std::size_t count, DataType type,
                std::int32_t peer, const CallOptions& options);
// Implements start_send() and start_receive().
Result<Work> start_transfer(CommunicatorImpl& communicator, Direction direction, const void* data, std::size_t count,
                            DataType type, std::int32_t peer, const CallOptions& options);

// Implement Communicator::next_sender() and try_next_sender(): find a peer that has sent a message for which this rank
// has called no receive.
Result<std::int32_t> next_sender(CommunicatorImpl& communicator, const CallOptions& options);
Result<std::optional<std::int32_t>> try_next_sender(CommunicatorImpl& communicator);

}  // namespace tutti::detail
