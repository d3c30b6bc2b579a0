// The data that the two ends of a VerbsLane write to each other: the header in front of a message, and the immediate
// data that announces writes. Constants and value types without state, so they can be used in any thread.
#pragma once

#include <cstdint>

#include "base/call_tag.h"
#include "transports/verbs/receive_targets.h"

namespace tutti {

struct LaneHeader {  // precedes the payload in a slot
  CallTag tag;
  std::uint64_t bytes = 0;
  // number of the message, counted from 0; the lower 32 bits
  std::uint32_t number = 0;
  // number of messages of the other direction that the sender of this header has released so far; the lower 32 bits
  std::uint32_t released = 0;
  // offset in the output that the receiver advertises, in bytes; kInSlot if the payload follows this header
  std::uint64_t output_offset = ReceiveTargets::kInSlot;
  // number of descriptors of advertised outputs that the sender of this header has received so far from the receiver of
  // this header; the lower 32 bits
  std::uint32_t seen = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(LaneHeader) == 64);

// Layout of the immediate data. At most one of the following four flags is set. If none is set, the write announces a
// part of a message: bits 0 to 15 contain the index of the slot, and bits 16 to 27 contain the number of parts minus 1.
// If a flag is set, the lower bits contain a number:
//   kIsReleased          the lower 24 bits of the number of messages that the sender of this write has released
//   kIsDescriptor        an output is advertised; the index of its descriptor
//   kIsRevocation        an output is revoked; the lower 16 bits of the number of its advertisement
//   kIsAcknowledgement   the revocation of an output is acknowledged; the number as in the revocation
struct LaneImmediate {
  static constexpr std::uint32_t kIsReleased = 1u << 30;
  static constexpr std::uint32_t kIsDescriptor = 1u << 29;
  static constexpr std::uint32_t kIsRevocation = 1u << 28;
  static constexpr std::uint32_t kIsAcknowledgement = 1u << 31;
  static constexpr std::uint32_t kReleasedMask = 0xffffff;
  static constexpr std::uint32_t kPartsShift = 16;
  static constexpr std::uint32_t kMostParts = 1u << 12;
};

}  // namespace tutti
