// shrink(): makes a communicator of the remaining ranks of this one. Only the remaining ranks take part. They
// communicate through a SurvivorRendezvous and do not use the engine of the parent, which may be broken.
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <tuple>

#include "communicator/communicator_impl.h"
#include "membership/survivor_rendezvous.h"

namespace tutti::detail {

// Returns the ranks that are not excluded, in ascending order.
Result<std::vector<std::uint32_t>> CommunicatorImpl::remaining_ranks(std::span<const std::int32_t> excluded) const {
  std::vector<bool> stays(ranks_, true);
  for (const std::int32_t rank : excluded) {
    if (rank < 0 || static_cast<std::uint32_t>(rank) >= ranks_) {
      return invalid_argument(fmt::format("excluded rank {} is outside 0..{}", rank, ranks_ - 1));
    }
    stays[static_cast<std::size_t>(rank)] = false;
  }
  if (!stays[rank_]) {
    return invalid_argument(fmt::format("rank {} is excluded itself: only those that remain call this", rank_));
  }
  std::vector<std::uint32_t> present;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (stays[rank]) present.push_back(rank);
  }
  return present;
}

// A failure affects only the new communicator, so its scope is kCall.
Result<std::unique_ptr<Communicator>> CommunicatorImpl::shrink(std::span<const std::int32_t> excluded) {
  auto child = try_shrink(excluded);
  if (child) return child;
  Error error = std::move(child).error();
  error.message = "shrink: " + error.message;
  error.scope = ErrorScope::kCall;
  return error;
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::try_shrink(std::span<const std::int32_t> excluded) {
  if (job_context_ == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot be shrunk"};
  }
  auto present = remaining_ranks(excluded);
  if (!present) return present.error();
  return shrink_to(*present);
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::shrink_to(const std::vector<std::uint32_t>& present) {
  if (present.size() == 1) return shrink_to_one();
  const std::scoped_lock lock(rendezvous_mutex_);
  if (rendezvous_ == nullptr) rendezvous_ = std::make_unique<SurvivorRendezvous>(job_context_, members_, rank_, id_);
  auto child = make_survivor_communicator(*rendezvous_, present);
  rendezvous_->leave();
  return child;
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::shrink_to_one() {
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) != static_cast<ssize_t>(sizeof(id))) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
  }
  return make_child({{0, rank_, id}}, [](const std::string& blob) { return std::vector<std::string>{blob}; });
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::make_survivor_communicator(
    SurvivorRendezvous& rendezvous, const std::vector<std::uint32_t>& present) {
  auto id = rendezvous.meet(present);
  if (!id) return id.error();
  std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>> chosen;
  for (const std::uint32_t rank : present) chosen.emplace_back(0, rank, *id);
  // The error of a failed round. Its rank is already a rank of this communicator.
  std::optional<Error> round_failed;
  const Gather among = [&](const std::string& blob) {
    auto blobs = rendezvous.gather(blob);
    if (!blobs) round_failed = blobs.error();
    return blobs;
  };
  auto child = make_child(chosen, among);
  // A last round, so that a rank has its new communicator only if all ranks have one. All ranks reach this round,
  // because every path through make_child() has the same number of rounds.
  auto all = gather_or_fail(among, child ? Result<std::string>(std::string()) : child.error());
  if (all) return child;
  if (round_failed) return *round_failed;
  return in_parent_ranks(chosen, all.error());
}

}  // namespace tutti::detail
