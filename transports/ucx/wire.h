// What two ranks' UCX data paths send each other: the header of every active message, and the introduction.
#pragma once

#include <cstdint>

#include "base/call_tag.h"

namespace tutti {

enum class UcxKind : std::uint16_t {
  kMessage = 1,
  kCredit = 2,  // nothing but `released`
  kLast = 3,    // nothing follows: the sender's path ends
};

inline constexpr std::uint32_t kUcxMagic = 0x74757875;

struct UcxHeader {
  std::uint32_t magic = kUcxMagic;
  UcxKind kind = UcxKind::kMessage;
  std::uint16_t lane = 0;
  std::uint64_t key = 0;       // the receiver's, as it has introduced itself
  std::uint32_t sender = 0;    // rank
  std::uint32_t bytes = 0;     // of the payload
  std::uint32_t number = 0;    // of the message on its lane: 0, 1, 2 ... modulo 2^32
  std::uint32_t released = 0;  // messages of the other direction that the sender has released, modulo 2^32
  CallTag tag;
};
static_assert(sizeof(UcxHeader) == 64 && alignof(UcxHeader) == 8);

// The worker's address follows.
struct UcxIntroduction {
  std::uint32_t magic = kUcxMagic;
  std::uint32_t version = 1;
  std::uint64_t key = 0;
  std::uint32_t slots = 0;
  std::uint32_t slot_bytes = 0;
};
static_assert(sizeof(UcxIntroduction) == 24);

}  // namespace tutti
