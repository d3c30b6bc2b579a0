// How the bytes of one message reach the receiver. Plans, transports and device code share the enumeration.
#pragma once

#include <cstdint>

namespace tutti {

enum class Carrier : std::uint8_t {
  kSlot = 0,       // the sender copies the bytes into a slot of the connection
  kPublished = 1,  // nothing is copied: the receiver reads the bytes in the sender's registered memory
  kDelivered = 2,  // the sender writes the bytes into the receiver's output
  kReplied = 3,    // the sender writes the bytes into the slot of a message that it has received from this receiver
};

}  // namespace tutti
