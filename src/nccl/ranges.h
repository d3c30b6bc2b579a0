// The check of an integer field of a configuration structure of NCCL.
#pragma once

#include <fmt/format.h>

#include "nccl.h"
#include "tutti/result.h"

namespace tutti::nccl {

inline constexpr int kMostCtaPolicy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;

// An error (kInvalidArgument) if `value` is outside `least` .. `most`. A field that the program did not set has the
// value NCCL_CONFIG_UNDEF_INT, which is always valid. `structure` and `field` are the names for the message.
inline Status check_range(const char* structure, const char* field, int value, int least, int most) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most)) return {};
  return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
               fmt::format("{}: {} is {}, not {} to {}", structure, field, value, least, most)};
}

}  // namespace tutti::nccl
