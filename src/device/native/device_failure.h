// The functions of this file make and classify errors of calls on GPUs, for example from a failure that a kernel has
// recorded, or from an error of the driver. They are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/call_tag.h"
#include "kernels/device/call.h"
#include "tutti/result.h"

namespace tutti::detail {

// Advice in timeout messages: some ranks may have made the call on device memory, which their GPUs carry out, and
// the others on host memory, which the host carries out. Such ranks wait for each other until the timeout.
inline constexpr std::string_view kOneKindOfMemory = "pass memory of one kind on all ranks";

// Returns the error for the failure that a kernel has recorded; its scope is the communicator. `rank`: the rank of
// the kernel. `tag`: the tag of its call; null if it is not known. `timeout_ns`: the call's timeout; 0 if it is not
// known.
Error device_failure(const device::FailureWord& failure, std::uint32_t rank, const CallTag* tag,
                     std::int64_t timeout_ns);

// An error with the scope of the call: the communicator can still be used. `rank`: the culprit; -1: none.
inline Error call_error(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCall, rank, std::move(message)};
}

// Returns the error with the scope changed to the communicator. For errors after which the communicator cannot be used,
// for example because the state of one of its devices is not known.
Error broken_error(Error error) noexcept;

// Like broken_error(). If the error comes from the CUDA driver (kDevice), it also names `rank` as the culprit, and its
// message states that `rank` cannot take part any more (if there is memory for this message). `tag`: the tag of that
// rank's call; null if there is none.
Error lost_error(Error error, std::uint32_t rank, const CallTag* tag) noexcept;

// Whether the peers of a rank that fails with this code detect the failure by themselves, by their own devices and
// watchdogs. Then they need no notification, and their own errors name the responsible rank more precisely than
// this rank could.
bool peers_see(ErrorCode code);

}  // namespace tutti::detail
