// What two ranks' UCX data paths send each other: the header of every active message, and the introduction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/call_tag.h"

namespace tutti {

enum class UcxKind : std::uint16_t {
  kMessage = 1,
  kCredit = 2,   // nothing but `released`
  kLast = 3,     // nothing follows: the sender's path ends
  kWritten = 4,  // as kMessage, without a payload: that has been written into the receiver's slot `number % slots`
  kOffer = 5,    // of the slots of a lane: a UcxOffer
};

inline constexpr std::uint32_t kUcxMagic = 0x74757875;

struct UcxHeader {
  std::uint32_t magic = kUcxMagic;
  UcxKind kind = UcxKind::kMessage;
  std::uint16_t lane = 0;
  std::uint64_t key = 0;       // the receiver's, as it has introduced itself
  std::uint32_t sender = 0;    // rank
  std::uint32_t bytes = 0;     // of the payload, wherever it is
  std::uint32_t number = 0;    // of the message on its lane: 0, 1, 2 ... modulo 2^32
  std::uint32_t released = 0;  // messages of the other direction that the sender has released, modulo 2^32
  CallTag tag;
};
static_assert(sizeof(UcxHeader) == 64 && alignof(UcxHeader) == 8);

// The worker's address follows.
struct UcxIntroduction {
  std::uint32_t magic = kUcxMagic;
  std::uint32_t version = 2;
  std::uint64_t key = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
};
static_assert(sizeof(UcxIntroduction) == 24);

// UCX's packed key of the memory follows.
struct UcxOffer {
  std::uint64_t address = 0;  // of slot 0, as its owner sees it; the others follow, ucx_slot_stride() apart
};
static_assert(sizeof(UcxOffer) == 8);

inline constexpr std::size_t kMostUcxKey = 4096;  // bytes of a packed key

// Shorter messages are active ones throughout: UCX sends those of 8 KiB, with its headers, in one piece.
inline constexpr std::uint32_t kUcxPutFrom = 8 * 1024;

// Of an active message.
constexpr std::uint64_t ucx_message_bytes(const UcxHeader& header) {
  return sizeof(header) + (header.kind == UcxKind::kMessage ? header.bytes : 0);
}

constexpr std::uint64_t ucx_slot_stride(std::uint64_t slot_bytes) { return (slot_bytes + 4095) / 4096 * 4096; }

}  // namespace tutti
