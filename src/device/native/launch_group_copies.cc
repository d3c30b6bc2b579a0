// Of a team: calls by copy engines; and who has not come to a meeting.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "base/assert.h"
#include "device/native/device_failure.h"
#include "device/native/launch_group.h"
#include "executor/device_arena.h"

namespace tutti::detail {
namespace {

constexpr std::uint32_t kGivenUp = 4;  // no call's word

}  // namespace

// Of a team that is all ranks: all inputs are in the calls at hand, and the launching stream is behind all of theirs.
// Else each rank for itself, between two meetings: from the first on all inputs are there, from the second on nobody
// reads them any more. A call that is given up is let through: what it copies then goes nowhere but into its own
// output.
Status LaunchGroup::put_copies(const std::vector<std::shared_ptr<DeviceCall>>& calls, cuda::CUstream stream) {
  const DeviceCall& first = *calls.front();
  if (first.launch.rounds > 0) {
    const StreamBarrier& meeting = *members_[first.seat_].seat.meeting;
    if (first.copies->own_bytes > 0) {
      TUTTI_TRY(device_->driver().check(
          device_->driver().api().memcpy_async(first.copies->inputs[meeting.rank],
                                               reinterpret_cast<std::uintptr_t>(first.call.input),
                                               first.copies->own_bytes, stream),
          "copying the root's input"));
    }
    TUTTI_TRY(meet(meeting, 0, first.meeting_word, stream));
    TUTTI_TRY(copy_blocks(first, first.copies->inputs, stream));
    return meet(meeting, 1, first.meeting_word, stream);
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

// In the peers' words, where this rank has given up a call by copies: who comes later does not meet it, though its own
// stream, which is let through, says afterwards that it came. With a context.
void LaunchGroup::say_given_up() {
  const bool by_copies = !captured_words_.empty() || (!underway_.empty() && underway_.front().call->copies);
  for (const Member& each : members_) {
    if (!by_copies || each.seat.meeting == nullptr) continue;
    const StreamBarrier& meeting = *each.seat.meeting;
    for (std::uint32_t peer = 0; peer < meeting.arenas.size(); ++peer) {
      for (const std::uint32_t parity : {0u, 1u}) {
        if (peer == meeting.rank) continue;
        const std::uint64_t at = meeting.arenas[peer] + DeviceArena::met_word(meeting.rank, parity);
        static_cast<void>(
            device_->driver().api().stream_write_value32(release_stream_->handle(), at, kGivenUp, cuda::kWriteDefault));
      }
    }
  }
}

// What the peers have set so far tells who came, who makes another call, and who has not come. With a context.
Error LaunchGroup::not_met(const DeviceCall& call) {
  const Seat& seat = members_[call.seat_].seat;
  const std::string waited =
      fmt::format("{}: rank {} waited {} ms in its stream", describe(call.tag), seat.rank, call.timeout_ns / 1'000'000);
  const auto error = [](const std::string& words, std::int32_t rank) {
    return broken_error(call_error(ErrorCode::kTimeout, words, rank));
  };
  auto scope = cuda::ContextScope::enter(device_->driver(), device_->context());
  std::vector<std::uint32_t> words(2 * kMostDeviceRanks);
  auto stream = cuda::Stream::create(device_->driver());
  const bool read = scope.ok() && stream.ok() &&
                    device_->driver().api().memcpy_dtoh_async(
                        words.data(), seat.meeting->arenas[seat.rank] + DeviceArena::met_word(0, 0),
                        words.size() * sizeof(std::uint32_t), stream->handle()) == cuda::CUresult::kSuccess &&
                    stream->synchronize().ok();
  std::vector<std::uint32_t> missing;
  std::vector<std::uint32_t> elsewhere;
  std::vector<std::uint32_t> gone;
  for (std::uint32_t peer = 0; read && peer < seat.ranks; ++peer) {
    if (peer == seat.rank) continue;
    const std::uint32_t even = words[peer];
    const std::uint32_t odd = words[kMostDeviceRanks + peer];
    const bool gave_up = even == kGivenUp || odd == kGivenUp;
    if (!gave_up && (even == call.meeting_word || odd == call.meeting_word)) continue;
    (gave_up ? gone : even == 0 && odd == 0 ? missing : elsewhere).push_back(peer);
  }
  if (!elsewhere.empty()) {
    return error(fmt::format("{}; rank {} makes another call, or has its input at another place of its registered "
                             "memory: give all ranks the same",
                             waited, fmt::join(elsewhere, ", ")),
                 static_cast<std::int32_t>(elsewhere.front()));
  }
  if (!missing.empty()) {
    return error(fmt::format("{} for rank {}, which has not made the call, not on device memory ({}), or not ended it",
                             waited, fmt::join(missing, ", "), kOneKindOfMemory),
                 static_cast<std::int32_t>(missing.front()));
  }
  if (!gone.empty()) {
    return error(fmt::format("{} for rank {}, which has given it up", waited, fmt::join(gone, ", ")),
                 static_cast<std::int32_t>(gone.front()));
  }
  return error(fmt::format("{} for the other ranks: some have not made the call, or not on device memory: {}", waited,
                           kOneKindOfMemory),
               -1);
}

}  // namespace tutti::detail
