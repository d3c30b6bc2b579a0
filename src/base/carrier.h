// How the bytes of one message reach the receiver. Plans, transports and device code share the enumeration.
#pragma once

#include <cstdint>

namespace tutti {

enum class Carrier : std::uint8_t {
  kSlot = 0,       // copied into a slot of the connection
  kPublished = 1,  // left in the sender's registered memory: the receiver reads them there
  kDelivered = 2,  // written by the sender into the receiver's output
  kReplied = 3,    // written by the sender into the slot of a message that it has received from this receiver
};

}  // namespace tutti
