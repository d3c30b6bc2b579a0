// What a device has found wrong, in words. A pure function.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/call_tag.h"
#include "kernels/device/call.h"
#include "tutti/result.h"

namespace tutti::detail {

// What to do where ranks wait in vain since GPUs carry out the calls of some, and the host the same calls of others.
inline constexpr std::string_view kOneKindOfMemory = "pass memory of one kind on all ranks";

// `rank`: whose call it was; `tag` is null where the call is not known, timeout_ns 0 likewise.
Error device_failure(const device::FailureWord& failure, std::uint32_t rank, const CallTag* tag,
                     std::int64_t timeout_ns);

// The same with the scope of a whole communicator: one of its devices' state is not known any more.
Error broken_error(Error error) noexcept;

// The same; where the driver refused, `rank` is named, which takes part no more. `tag`: of its call, or null.
Error lost_error(Error error, std::uint32_t rank, const CallTag* tag) noexcept;

// Whether the peers of a rank that fails so see why by themselves: their own devices and watchdogs find out, and name
// who is to blame better than this rank could.
bool peers_see(ErrorCode code);

}  // namespace tutti::detail
