// The data that the UCX data paths of two ranks exchange: the header of each active message, the handshake message, and
// the advertisement of slots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/call_tag.h"

namespace tutti {

enum class UcxMessageType : std::uint16_t {
  kMessage = 1,
  kCredit = 2,  // carries only `released`
  kLast = 3,    // the last message: the path of the sender ends
  // Like kMessage, but without a payload, because the payload has been written into slot `number % slots` of the
  // receiver.
  kWritten = 4,
  kOffer = 5,  // advertises the slots of a lane; the payload is a UcxSlotsOffer and a packed key
};

inline constexpr std::uint32_t kUcxMagic = 0x74757875;

struct UcxHeader {
  std::uint32_t magic = kUcxMagic;
  UcxMessageType kind = UcxMessageType::kMessage;
  std::uint16_t lane = 0;
  std::uint64_t key = 0;       // the key from the handshake message of the receiver
  std::uint32_t sender = 0;    // rank of the sender
  std::uint32_t bytes = 0;     // length of the payload, which follows this header or is in a slot
  std::uint32_t number = 0;    // number of the message on its lane: 0, 1, 2 ... modulo 2^32
  std::uint32_t released = 0;  // messages of the other direction that the sender has released, modulo 2^32
  CallTag tag;
};
static_assert(sizeof(UcxHeader) == 64 && alignof(UcxHeader) == 8);

// The start of the handshake message. The address of the worker follows.
struct UcxHandshake {
  std::uint32_t magic = kUcxMagic;
  std::uint32_t version = 2;
  std::uint64_t key = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
};
static_assert(sizeof(UcxHandshake) == 24);

// Advertises the slots of a lane. The packed key of the memory, in the format of UCX, follows.
struct UcxSlotsOffer {
  // Address of slot 0 in the process of the owner. The other slots follow at distances of ucx_slot_stride() bytes.
  std::uint64_t address = 0;
};
static_assert(sizeof(UcxSlotsOffer) == 8);

inline constexpr std::size_t kMostUcxKey = 4096;  // maximum length of a packed key, in bytes

// Minimum length of a message that is written into a slot of the receiver, in bytes. Shorter messages are always
// active messages, because UCX sends up to 8 KiB and its headers in one packet.
inline constexpr std::uint32_t kUcxPutFrom = 8 * 1024;

// Length of the active message that has this header, in bytes. Only for kMessage, kWritten and kCredit.
constexpr std::uint64_t ucx_message_bytes(const UcxHeader& header) {
  return sizeof(header) + (header.kind == UcxMessageType::kMessage ? header.bytes : 0);
}

constexpr std::uint64_t ucx_slot_stride(std::uint64_t slot_bytes) { return (slot_bytes + 4095) / 4096 * 4096; }

}  // namespace tutti
