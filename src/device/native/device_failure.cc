// Error messages for failures on a GPU.
#include "device/native/device_failure.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/exceptions.h"

namespace tutti::detail {
namespace {

std::string waited_text(std::int64_t timeout_ns) {
  return timeout_ns == 0 ? std::string("too long") : fmt::format("{} ms", timeout_ns / 1'000'000);
}

// The error for a launch of sends and receives.
Error transfer_failure(const device::FailureWord& failure, std::uint32_t rank, std::int64_t timeout_ns) {
  const auto told = [&](ErrorCode code, std::uint32_t culprit, const std::string& text) {
    return Error{code, ErrorScope::kCommunicator, static_cast<std::int32_t>(culprit),
                 fmt::format("sends and receives on the GPU of rank {}: {}", rank, text)};
  };
  switch (failure.cause) {
    case device::Failure::kTimedOut:
      return told(
          ErrorCode::kTimeout, failure.peer,
          fmt::format("waited {} for rank {}: has it made the matching call, on device memory as well ({}), "
                      "and can its stream go on? If each of two ranks sends and receives, put both into a Group",
                      waited_text(timeout_ns), failure.peer, kOneKindOfMemory));
    case device::Failure::kMismatch:
      return told(ErrorCode::kMismatch, failure.peer,
                  fmt::format("the matching send of rank {} has another count or type", failure.peer));
    case device::Failure::kLeft:
      return told(ErrorCode::kPeerLost, failure.peer,
                  fmt::format("rank {} has left the communicator before it made the matching call", failure.peer));
    case device::Failure::kAborted: return told(ErrorCode::kAborted, rank, "abort() was called");
    case device::Failure::kMisused:
      return told(ErrorCode::kSystem, rank,
                  "two launches use the same connection: was a graph replayed beside a call?");
    default: return told(ErrorCode::kSystem, rank, "the device has recorded a failure that cannot be decoded");
  }
}

}  // namespace

Error broken_error(Error error) noexcept {
  error.scope = ErrorScope::kCommunicator;
  return error;
}

Error lost_error(Error error, std::uint32_t rank, const CallTag* tag) noexcept {
  if (error.code != ErrorCode::kDevice) return broken_error(std::move(error));
  error.rank = static_cast<std::int32_t>(rank);
  runs_through([&] {  // if there is no memory for the new message, the error keeps its old one
    error.message = fmt::format("{}: rank {} cannot take part any more: {}",
                                tag == nullptr ? "a call on device memory" : describe(*tag), rank, error.message);
  });
  return broken_error(std::move(error));
}

bool peers_see(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kMismatch || code == ErrorCode::kAborted ||
         code == ErrorCode::kPeerLost;
}

Error device_failure(const device::FailureWord& failure, std::uint32_t rank, const CallTag* tag,
                     std::int64_t timeout_ns) {
  if (failure.transfers) return transfer_failure(failure, rank, timeout_ns);
  const std::string call = tag == nullptr ? "a call on device memory" : describe(*tag);
  const std::string where =
      fmt::format("on the GPU of rank {}, step {} of channel {}", rank, failure.step, failure.channel);
  const std::string waited = waited_text(timeout_ns);
  const auto told = [&](ErrorCode code, std::string text, std::uint32_t culprit) {
    return Error{code, ErrorScope::kCommunicator, static_cast<std::int32_t>(culprit),
                 fmt::format("{}, {}: {}", call, where, text)};
  };
  switch (failure.cause) {
    case device::Failure::kTimedOut:
      return told(
          ErrorCode::kTimeout,
          fmt::format("waited {} for rank {}: has it made the call, on device memory as well ({}), and can its stream "
                      "go on?",
                      waited, failure.peer, kOneKindOfMemory),
          failure.peer);
    case device::Failure::kMismatch:
      return told(
          ErrorCode::kMismatch,
          fmt::format("rank {} makes another call: kind, count, type, operation, root and algorithm must be the same",
                      failure.peer),
          failure.peer);
    case device::Failure::kCorrupt:
      return told(ErrorCode::kMismatch,
                  fmt::format("rank {} sent a message that does not belong to the plan", failure.peer), failure.peer);
    case device::Failure::kAborted: return told(ErrorCode::kAborted, "abort() was called", rank);
    case device::Failure::kMisused:
      return told(ErrorCode::kSystem, "a call began before the last one had ended: was a graph replayed beside it?",
                  rank);
    case device::Failure::kClosed:
      return told(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} used registered memory whose registration has ended here: release it on all "
                              "ranks between the same two calls",
                              failure.peer),
                  failure.peer);
    case device::Failure::kLeft:
    case device::Failure::kNone: break;
  }
  return told(ErrorCode::kSystem, "the device has recorded a failure that cannot be decoded", rank);
}

}  // namespace tutti::detail
