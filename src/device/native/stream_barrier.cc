// StreamBarrier: puts operations on flags into streams, and reads the flags after a timeout.
#include "device/native/stream_barrier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/assert.h"
#include "device/native/device_failure.h"

namespace tutti::detail {
namespace {

// A flag with this value states that its writer has given the call up. No call uses this value for its barriers.
constexpr std::uint32_t kGivenUp = 4;

constexpr PeerFlags::Kind kParities[] = {PeerFlags::Kind::kEven, PeerFlags::Kind::kOdd};

}  // namespace

template <class Visit>
Status StreamBarrier::for_each_peer(Visit visit) const {
  for (std::uint32_t peer = 0; peer < flags_.size(); ++peer) {
    if (peer != rank_) {
      TUTTI_TRY(device_.driver().check(visit(peer), "putting a barrier of all ranks into a stream"));
    }
  }
  return {};
}

// After the wait, a rank resets its own flags of this parity, and only then sets flags of the next barrier, which has
// the other parity. A peer passes that next barrier only after this. So a peer cannot set a flag of the barrier after
// the next one, which has this parity again, before the flag was reset.
Status StreamBarrier::put(std::uint32_t parity, std::uint32_t value, cuda::CUstream stream) const {
  const cuda::DriverApi& api = device_.driver().api();
  const PeerFlags::Kind kind = kParities[parity];
  TUTTI_TRY(for_each_peer([&](std::uint32_t peer) {
    return api.stream_write_value32(stream, flags_[peer]->on_device(kind, rank_), value, cuda::kWriteDefault);
  }));
  TUTTI_TRY(for_each_peer([&](std::uint32_t peer) {
    return api.stream_wait_value32(stream, flags_[rank_]->on_device(kind, peer), value, cuda::kWaitEqual);
  }));
  return for_each_peer([&](std::uint32_t peer) {
    return api.stream_write_value32(stream, flags_[rank_]->on_device(kind, peer), 0, cuda::kWriteDefault);
  });
}

void StreamBarrier::give_up() const {
  for (std::uint32_t peer = 0; peer < flags_.size(); ++peer) {
    if (peer == rank_) continue;
    for (const PeerFlags::Kind kind : kParities) flags_[peer]->flag(kind, rank_).store(kGivenUp);
  }
}

void StreamBarrier::release(std::uint32_t value) const {
  for (std::uint32_t peer = 0; peer < flags_.size(); ++peer) {
    if (peer == rank_) continue;
    for (const PeerFlags::Kind kind : kParities) flags_[rank_]->flag(kind, peer).store(value);
  }
}

Error StreamBarrier::timeout_error(const std::string& waited, std::uint32_t value) const {
  const auto error = [](std::string message, std::int32_t rank) {
    return Error{ErrorCode::kTimeout, ErrorScope::kCommunicator, rank, std::move(message)};
  };
  std::vector<std::uint32_t> missing;
  std::vector<std::uint32_t> elsewhere;
  std::vector<std::uint32_t> gone;
  for (std::uint32_t peer = 0; peer < flags_.size(); ++peer) {
    if (peer == rank_) continue;
    const std::uint32_t even = flags_[rank_]->flag(PeerFlags::Kind::kEven, peer).load();
    const std::uint32_t odd = flags_[rank_]->flag(PeerFlags::Kind::kOdd, peer).load();
    const bool gave_up = even == kGivenUp || odd == kGivenUp;
    if (!gave_up && (even == value || odd == value)) continue;
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
