// split() and duplicate(): make communicators of subsets of the ranks. All ranks of the parent take part in every
// round, including those that join no child, so the rounds are ordinary collectives of the parent.
#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "device/native/device_resources.h"
#include "job/job_context.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostBlobBytes = 4096;

// What each rank contributes to the first round. The layout has fixed widths; ranks of one job run the same build.
struct SplitRequest {
  std::int32_t colour = 0;
  std::int32_t key = 0;
  std::uint64_t id = 0;  // the id of the child, used if this rank becomes its rank 0
};

// Checks the arguments of split() and returns the request as bytes.
Result<std::string> make_split_request(std::int32_t colour, std::int32_t key) {
  if (colour < 0 && colour != Communicator::kNoColour) {
    return invalid_argument(fmt::format("colour {} is negative; kNoColour joins no group", colour));
  }
  SplitRequest request{.colour = colour, .key = key};
  if (getrandom(&request.id, sizeof(request.id), 0) != static_cast<ssize_t>(sizeof(request.id))) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
  }
  return std::string(reinterpret_cast<const char*>(&request), sizeof(request));
}

}  // namespace

// One round over the parent: an all-gather of the lengths, then an all-gather of the blobs.
Result<std::vector<std::string>> CommunicatorImpl::all_gather_blobs(const std::string& blob) {
  TUTTI_ASSERT(blob.size() <= kMostBlobBytes);
  std::vector<std::uint64_t> lengths(ranks_);
  const std::uint64_t own = blob.size();
  TUTTI_TRY(run_plain({.kind = CollectiveKind::kAllGather,
                       .input = &own,
                       .output = lengths.data(),
                       .count = 1,
                       .type = DataType::kUint64},
                      {}));
  std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (counts[rank] > kMostBlobBytes) {
      return Error{
          ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
          fmt::format("rank {} sent {} bytes in a round of set-up, which is more than allowed", rank, counts[rank])};
    }
  }
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::string all(total, '\0');
  TUTTI_TRY(run_plain({.kind = CollectiveKind::kAllGather,
                       .input = blob.data(),
                       .output = all.data(),
                       .type = DataType::kUint8,
                       .variable = true,
                       .output_counts = {.counts = counts}},
                      {}));
  std::vector<std::string> blobs;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    blobs.push_back(all.substr(at, count));
    at += count;
  }
  return blobs;
}

// A failure in the making of a child affects only that child. The parent is unusable only if one of its own rounds
// has broken it.
Result<std::unique_ptr<Communicator>> CommunicatorImpl::split(std::int32_t colour, std::int32_t key,
                                                              std::string_view name) {
  auto child = try_split(colour, key);
  if (child) return child;
  Error error = std::move(child).error();
  error.message = fmt::format("{}: {}", name, error.message);
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::try_split(std::int32_t colour, std::int32_t key) {
  if (job_context_ == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot be split"};
  }
  // Every rank takes part in the first round, with its request or with its error, so that the other ranks do not
  // wait until the timeout.
  const Gather parent = [this](const std::string& blob) { return all_gather_blobs(blob); };
  auto blobs = gather_or_fail(parent, make_split_request(colour, key));
  if (!blobs) return blobs.error();
  std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>> chosen;  // key, rank in this communicator, id
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    SplitRequest theirs;
    if ((*blobs)[rank].size() != sizeof(theirs)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("rank {} sent a malformed message in split()", rank)};
    }
    std::memcpy(&theirs, (*blobs)[rank].data(), sizeof(theirs));
    if (theirs.colour == colour) chosen.emplace_back(theirs.key, rank, theirs.id);
  }
  std::sort(chosen.begin(), chosen.end());
  // Ranks of all colours take part in each round. Each rank keeps the blobs of its own colour.
  bool round_failed = false;
  const Gather among = [&](const std::string& blob) -> Result<std::vector<std::string>> {
    auto all = all_gather_blobs(blob);
    round_failed |= !all.ok();
    if (!all) return all.error();
    std::vector<std::string> own;
    for (const auto& [k, rank, id] : chosen) own.push_back((*all)[rank]);
    return own;
  };
  if (colour == Communicator::kNoColour) {
    for (int round = 0; round < kEnvironmentRounds + (job_context_->devices ? kDeviceRounds : 0); ++round) {
      auto all = all_gather_blobs("+");
      if (!all) return all.error();
    }
    return std::unique_ptr<Communicator>();
  }
  auto child = make_child(chosen, among);
  if (child || round_failed) return child;
  return in_parent_ranks(chosen, std::move(child).error());
}

// Translates the rank in an error of make_child(), where ranks are numbered as in the new communicator, into the
// rank in this communicator.
Error CommunicatorImpl::in_parent_ranks(
    const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen, Error error) {
  if (error.rank < 0 || static_cast<std::size_t>(error.rank) >= chosen.size()) return error;
  const std::uint32_t here = std::get<1>(chosen[static_cast<std::size_t>(error.rank)]);
  error.message += fmt::format(" (rank {} of the new communicator is rank {} here)", error.rank, here);
  error.rank = static_cast<std::int32_t>(here);
  return error;
}

Result<std::unique_ptr<Communicator>> CommunicatorImpl::make_child(
    const std::vector<std::tuple<std::int32_t, std::uint32_t, std::uint64_t>>& chosen, const Gather& among) {
  std::vector<std::uint32_t> members;
  std::uint32_t rank = 0;
  for (const auto& [key, parent_rank, id] : chosen) {
    if (parent_rank == rank_) rank = static_cast<std::uint32_t>(members.size());
    members.push_back(members_[parent_rank]);
  }
  auto environment = make_environment(job_context_, members, rank, std::get<2>(chosen.front()), among);
  const auto ranks = static_cast<std::uint32_t>(members.size());
  if (!environment) {  // the ranks of the other colours expect this rank in these rounds
    for (int round = 0; round < kDeviceRounds && job_context_->devices; ++round) static_cast<void>(among("!"));
    return environment.error();
  }
  auto devices = make_device_resources(*job_context_, members, rank, std::get<2>(chosen.front()), *environment, among);
  if (!devices) return devices.error();
  return wrap(std::make_unique<CommunicatorImpl>(rank, ranks, std::move(*environment), timeout_, job_context_, members,
                                                 std::move(*devices), std::get<2>(chosen.front())));
}

}  // namespace tutti::detail
