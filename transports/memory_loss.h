// MemoryLoss: why this rank has no view of memory that a peer shares with it. A value.
#pragma once

#include <string>

#include "base/call_tag.h"
#include "tutti/result.h"

namespace tutti {

struct MemoryLoss {
  CallArgument lacked = CallArgument::kNone;  // kDescriptors or kMappings; kNone: the peer shared something unusable
  std::string why;                            // the cause and what to do, without the ranks
};

MemoryLoss lost_descriptor();                 // this process had no free descriptor for it
MemoryLoss lost_mapping(const Error& error);  // it could not be mapped, because of `error`

}  // namespace tutti
