// MemoryLoss: the reason why this rank could not map memory, or receive a file, that a peer shares with it. A value.
#pragma once

#include <cstdint>
#include <string>

#include "base/call_tag.h"
#include "tutti/result.h"

namespace tutti {

struct MemoryLoss {
  // kDescriptors, kMappings or kPermission: the resource or the permission that this rank lacked. kNone: the peer is at
  // fault, for example because the memory that it shares is unusable, or because it shares too much.
  CallArgument lacked = CallArgument::kNone;
  std::string why;  // the cause and, if there is one, the remedy; does not name the two ranks
};

// The loss if the descriptor of the memory or file did not arrive. The kernel reports two causes in the same way: this
// process had no free descriptor number, or a security module forbids the transfer. `one_is_free`: the caller has
// found a free descriptor number immediately afterwards, so the security module is taken to be the cause.
MemoryLoss lost_descriptor(bool one_is_free);
// The loss if mapping the memory failed with `error`. A kSystem error counts as kMappings, any other error as kNone.
MemoryLoss lost_mapping(const Error& error);

// The error for users: "this rank (`self`) has no view of memory that rank `peer` shares with it: ...". If this rank
// lacked a resource or a permission, the error is kSystem and names this rank. Otherwise it is kRefused and names the
// peer.
Error error_of(const MemoryLoss& loss, ErrorScope scope, std::uint32_t peer, std::uint32_t self);

}  // namespace tutti
