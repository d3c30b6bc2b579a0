// device_failure() and the functions beside it make an Error from a failure on a GPU. They are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/call_tag.h"
#include "kernels/device/call.h"
#include "tutti/result.h"

namespace tutti::detail {

// Advice for the case that ranks time out because GPUs carry out the calls of some ranks, while the host carries out
// the same calls of others.
inline constexpr std::string_view kOneKindOfMemory = "pass memory of one kind on all ranks";

// Describes the failure that a kernel has recorded. `rank`: the rank whose call failed. `tag`: null if the call is
// not known. `timeout_ns`: 0 if it is not known.
Error device_failure(const device::FailureWord& failure, std::uint32_t rank, const CallTag* tag,
                     std::int64_t timeout_ns);

// An error that costs only the call.
inline Error call_error(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCall, rank, std::move(message)};
}

// Returns the error with the scope of the communicator, because the state of one of its devices is not known any
// more.
Error broken_error(Error error) noexcept;

// Like broken_error(). If the driver has refused an operation, the error also names `rank`, which cannot take part
// any more. `tag`: the tag of its call, or null.
Error lost_error(Error error, std::uint32_t rank, const CallTag* tag) noexcept;

// Whether the peers of a rank that fails with this code detect the failure by themselves. Their own devices and
// watchdogs then find it, and name the responsible rank more precisely than this rank could.
bool peers_see(ErrorCode code);

}  // namespace tutti::detail
