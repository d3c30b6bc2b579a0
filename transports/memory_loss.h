// MemoryLoss: why this rank has no view of memory that a peer shares with it. A value.
#pragma once

#include <cstdint>
#include <string>

#include "base/call_tag.h"
#include "tutti/result.h"

namespace tutti {

struct MemoryLoss {
  // kDescriptors, kMappings or kPermission; kNone: the peer shared something unusable.
  CallArgument lacked = CallArgument::kNone;
  std::string why;  // the cause and what to do, without the ranks
};

// Its descriptor did not arrive. The kernel has one sign for two causes: this process had no free number for it, or a
// security module forbids it. `one_is_free`: a number could be had right after that, so it is the second.
MemoryLoss lost_descriptor(bool one_is_free);
// It could not be mapped, because of `error`.
MemoryLoss lost_mapping(const Error& error);

// "this rank (`self`) has no view of memory that rank `peer` shares with it: ...". kSystem and this rank if it lacked
// something, kRefused and the peer otherwise.
Error error_of(const MemoryLoss& loss, ErrorScope scope, std::uint32_t peer, std::uint32_t self);

}  // namespace tutti
