// LaunchGroup: calls that copy engines carry out, and error messages about ranks that are missing at a barrier.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/assert.h"
#include "device/native/device_failure.h"
#include "device/native/launch_group.h"
#include "executor/device_arena.h"

namespace tutti::detail {
namespace {

// The value of a flag that means: the writer has given the call up. No call uses it.
constexpr std::uint32_t kGivenUp = 4;

}  // namespace

// Puts the copies of a call into the stream. If the group contains all ranks, all inputs are in the calls, and the
// launching stream is already ordered behind all their streams.
//
// Otherwise each rank copies for itself, between two barriers: after the first barrier all inputs are complete, and
// after the second one no rank reads them any more. When a call is given up, its barriers are released and the
// copies still run; this is harmless, because a rank copies only into its own output.
Status LaunchGroup::put_copies(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream) {
  const DeviceCall& first = *calls.front();
  if (first.launch.rounds > 0) {
    const StreamBarrier& barrier = *members_[first.member_index_].options.barrier;
    if (first.copies->own_bytes > 0) {
      TUTTI_TRY(device_->driver().check(
          device_->driver().api().memcpy_async(first.copies->inputs[barrier.rank],
                                               reinterpret_cast<std::uintptr_t>(first.call.input),
                                               first.copies->own_bytes, stream),
          "copying the root's input"));
    }
    TUTTI_TRY(put_barrier(barrier, 0, first.barrier_value, stream));
    TUTTI_TRY(copy_blocks(first, first.copies->inputs, stream));
    return put_barrier(barrier, 1, first.barrier_value, stream);
  }
  std::vector<std::uint64_t> inputs;
  for (const auto& call : calls) inputs.push_back(reinterpret_cast<std::uintptr_t>(call->call.input));
  for (const auto& call : calls) TUTTI_TRY(copy_blocks(*call, inputs, stream));
  return {};
}

Status LaunchGroup::copy_blocks(const DeviceCall& call, const std::vector<std::uint64_t>& inputs,
                                cuda::CUstream stream) {
  const cuda::Driver& driver = device_->driver();
  for (const BlockCopy& copy : call.copies->copies) {
    const std::uint64_t from = inputs[copy.peer] + copy.from;
    const std::uint64_t to = reinterpret_cast<std::uintptr_t>(call.call.output) + copy.to;
    if (from == to) continue;  // in place
    const cuda::CUresult result = driver.api().memcpy_async(to, from, copy.bytes, stream);
    if (result == cuda::CUresult::kSuccess) continue;
    return driver.error(result, fmt::format("copying a block of {} bytes from rank {}", copy.bytes, copy.peer));
  }
  return {};
}

// If this rank gives up a call by copies, writes kGivenUp to its flags in the arenas of all peers, so that a peer
// that reaches the barrier later does not pass it. The watchdog repeats this, because this rank's own stream, once
// it is released, still writes its regular values. Requires a current context.
void LaunchGroup::write_given_up() {
  const bool by_copies =
      !captured_barrier_values_.empty() || (!pending_launches_.empty() && pending_launches_.front().call->copies);
  for (const Member& each : members_) {
    if (!by_copies || each.options.barrier == nullptr) continue;
    const StreamBarrier& barrier = *each.options.barrier;
    for (std::uint32_t peer = 0; peer < barrier.arenas.size(); ++peer) {
      for (const std::uint32_t parity : {0u, 1u}) {
        if (peer == barrier.rank) continue;
        const std::uint64_t at = barrier.arenas[peer] + DeviceArena::barrier_flag(barrier.rank, parity);
        static_cast<void>(
            device_->driver().api().stream_write_value32(release_stream_->handle(), at, kGivenUp, cuda::kWriteDefault));
      }
    }
  }
}

// Makes the error for a barrier that has timed out. The flags that the peers have set so far show which ranks have
// reached it, which ranks make another call, and which are missing. Enters the context.
Error LaunchGroup::barrier_timeout_error(const DeviceCall& call) {
  const MemberOptions& options = members_[call.member_index_].options;
  const std::string waited = fmt::format("{}: rank {} waited {} ms in its stream", describe(call.tag), options.rank,
                                         call.timeout_ns / 1'000'000);
  const auto error = [](const std::string& words, std::int32_t rank) {
    return broken_error(call_error(ErrorCode::kTimeout, words, rank));
  };
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  std::vector<std::uint32_t> words(2 * kMostDeviceRanks);
  auto stream = cuda::Stream::create(device_->driver());
  const bool read = scope.ok() && stream.ok() &&
                    device_->driver().api().memcpy_dtoh_async(
                        words.data(), options.barrier->arenas[options.rank] + DeviceArena::barrier_flag(0, 0),
                        words.size() * sizeof(std::uint32_t), stream->handle()) == cuda::CUresult::kSuccess &&
                    stream->synchronize().ok();
  std::vector<std::uint32_t> missing;
  std::vector<std::uint32_t> elsewhere;
  std::vector<std::uint32_t> gone;
  for (std::uint32_t peer = 0; read && peer < options.ranks; ++peer) {
    if (peer == options.rank) continue;
    const std::uint32_t even = words[peer];
    const std::uint32_t odd = words[kMostDeviceRanks + peer];
    const bool gave_up = even == kGivenUp || odd == kGivenUp;
    if (!gave_up && (even == call.barrier_value || odd == call.barrier_value)) continue;
    (gave_up ? gone : even == 0 && odd == 0 ? missing : elsewhere).push_back(peer);
  }
  if (!elsewhere.empty()) {
    return error(
        fmt::format("{}; rank {} makes another call, or its input has another offset in its registered memory: "
                    "pass the same on all ranks",
                    waited, fmt::join(elsewhere, ", ")),
        static_cast<std::int32_t>(elsewhere.front()));
  }
  if (!missing.empty()) {
    return error(
        fmt::format("{} for rank {}, which has not made the call, has made it on host memory ({}), or has not ended it",
                    waited, fmt::join(missing, ", "), kOneKindOfMemory),
        static_cast<std::int32_t>(missing.front()));
  }
  if (!gone.empty()) {
    return error(fmt::format("{} for rank {}, which has given it up", waited, fmt::join(gone, ", ")),
                 static_cast<std::int32_t>(gone.front()));
  }
  return error(fmt::format("{} for the other ranks: some have not made the call, or have made it on host memory: {}",
                           waited, kOneKindOfMemory),
               -1);
}

}  // namespace tutti::detail
