// can_receive(): asks the engine to look at the receiver of a send that is never submitted.
#include "communicator/receiver_look.h"

#include "communicator/communicator_impl.h"
#include "engine/arguments.h"

namespace tutti::detail {

Result<bool> can_receive(Communicator& communicator, std::size_t bytes, std::int32_t peer) {
  CommunicatorImpl& impl = CommunicatorImpl::of(communicator);
  return impl.guarded([&]() -> Result<bool> {
    Transfer send;
    send.direction = Direction::kSend;
    send.peer = static_cast<std::uint32_t>(peer);
    send.bytes = bytes;
    send.tag.kind = static_cast<std::uint8_t>(CollectiveKind::kSendReceive);
    send.tag.type = static_cast<std::uint8_t>(DataType::kUint8);
    send.tag.count = bytes;
    return impl.engine().look_at_receiver(send);
  });
}

}  // namespace tutti::detail
