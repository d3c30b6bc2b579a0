#include "communicator/child_factory.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"
#include "communicator/communicator_impl.h"
#include "communicator/create.h"
#include "communicator/share_unique_id.h"
#include "device/native/device_resources.h"
#include "device/rank_device.h"

namespace tutti::detail {
namespace {

constexpr std::int32_t kMostRanks = 65535;

// The data that each rank contributes to the first round of a split(). It is sent as raw bytes, which is safe because
// its fields have fixed widths and all ranks of a job run the same version of Tutti.
struct SplitRequest {
  std::int32_t colour = 0;
  std::int32_t key = 0;
  std::uint64_t id = 0;  // the id of the child, used if this rank becomes its rank 0
};

Result<std::uint64_t> random_id() {
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof(id), 0) == static_cast<ssize_t>(sizeof(id))) return id;
  return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random numbers"};
}

// Checks the arguments of split() and returns the request as bytes.
Result<std::string> make_split_request(std::int32_t colour, std::int32_t key) {
  if (colour < 0 && colour != Communicator::kNoColour) {
    return invalid_argument(fmt::format("colour {} is negative; kNoColour joins no group", colour));
  }
  auto id = random_id();
  if (!id) return id.error();
  const SplitRequest request{.colour = colour, .key = key, .id = *id};
  return std::string(reinterpret_cast<const char*>(&request), sizeof(request));
}

}  // namespace

// If a rank cannot make its request, for example because its colour is negative, split() fails on all ranks. A later
// failure in the making of a child affects only that child, unless it is the failure of a round, because all ranks of
// the parent take part in the rounds. The parent stays usable unless one of these rounds has broken it.
Result<ChildFactory::Child> ChildFactory::split_into(std::int32_t colour, std::int32_t key, std::string_view name,
                                                     const std::shared_ptr<JobContext>& job_context) {
  auto child = try_split(colour, key, job_context);
  if (child) return child;
  Error error = std::move(child).error();
  error.message = fmt::format("{}: {}", name, error.message);
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

Result<ChildFactory::Child> ChildFactory::split(std::int32_t colour, std::int32_t key, std::string_view name) {
  return split_into(colour, key, name, parent_.job_context);
}

Result<ChildFactory::Child> ChildFactory::with_checksums() {
  std::shared_ptr<JobContext> own;
  if (parent_.job_context != nullptr) {
    own = std::make_shared<JobContext>(*parent_.job_context);  // shared by the parts of the communicator
    own->config.checksum = true;
    own->config.uniform = UniformCalls::kNone;
    own->device = nullptr;  // only calls on host memory can ask for checksums
    own->devices = false;
  }
  return split_into(0, 0, "checksum", own);
}

Result<ChildFactory::Child> ChildFactory::try_split(std::int32_t colour, std::int32_t key,
                                                    const std::shared_ptr<JobContext>& job_context) {
  if (parent_.job_context == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot be split"};
  }
  // Every rank takes part in the first round, with its request or with its error, so that the other ranks do not
  // wait until the timeout.
  auto blobs = gather_or_fail(parent_round_, make_split_request(colour, key));
  if (!blobs) return blobs.error();
  std::vector<ChildRank> chosen;
  for (std::uint32_t rank = 0; rank < parent_.ranks; ++rank) {
    SplitRequest theirs;
    if ((*blobs)[rank].size() != sizeof(theirs)) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("rank {} sent a malformed message in split()", rank)};
    }
    std::memcpy(&theirs, (*blobs)[rank].data(), sizeof(theirs));
    if (theirs.colour == colour) chosen.push_back({.key = theirs.key, .parent_rank = rank, .id = theirs.id});
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<Error> round_errors;
  // Ranks of all colours take part in each round. Each rank keeps the blobs of its own colour.
  const Gather among = [&](const std::string& blob) -> Result<std::vector<std::string>> {
    auto all = parent_round_(blob);
    if (!all) round_errors.push_back(all.error());
    if (!all) return all.error();
    std::vector<std::string> own;
    for (const ChildRank& member : chosen) own.push_back((*all)[member.parent_rank]);
    return own;
  };
  if (colour == Communicator::kNoColour) {
    for (int round = 0; round < communicator_rounds(*job_context); ++round) {
      auto all = parent_round_("+");
      if (!all) return all.error();
    }
    return Child();
  }
  auto child = make_child(chosen, among, job_context);
  if (child) return child;
  return in_parent_ranks(chosen, std::move(child).error(), round_errors);
}

// Returns `error`, an error of make_child(), with the rank's number in the parent instead of its number in the new
// communicator. An error of a round (`round_errors`) names a rank of the parent already, and is returned unchanged.
Error ChildFactory::in_parent_ranks(const std::vector<ChildRank>& chosen, Error error,
                                    const std::vector<Error>& round_errors) {
  if (std::find(round_errors.begin(), round_errors.end(), error) != round_errors.end()) return error;
  if (error.rank < 0 || static_cast<std::size_t>(error.rank) >= chosen.size()) return error;
  const std::uint32_t here = chosen[static_cast<std::size_t>(error.rank)].parent_rank;
  error.message += fmt::format(" (rank {} of the new communicator is rank {} here)", error.rank, here);
  error.rank = static_cast<std::int32_t>(here);
  return error;
}

Result<ChildFactory::Child> ChildFactory::make_child(const std::vector<ChildRank>& chosen, const Gather& among,
                                                     const std::shared_ptr<JobContext>& job_context) const {
  Membership child{
      .ranks = static_cast<std::uint32_t>(chosen.size()), .job_context = job_context, .id = chosen.front().id};
  for (const ChildRank& member : chosen) {
    if (member.parent_rank == parent_.rank) child.rank = static_cast<std::uint32_t>(child.members.size());
    child.members.push_back(parent_.members[member.parent_rank]);
  }
  return make_communicator(std::move(child), timeout_, among);
}

// A failure affects only the new communicator, so its scope is kCall.
Result<ChildFactory::Child> ChildFactory::shrink(std::span<const std::int32_t> excluded) {
  auto child = try_shrink(excluded);
  if (child) return child;
  Error error = std::move(child).error();
  error.message = "shrink: " + error.message;
  error.scope = ErrorScope::kCall;
  return error;
}

Result<ChildFactory::Child> ChildFactory::try_shrink(std::span<const std::int32_t> excluded) {
  if (parent_.job_context == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot be shrunk"};
  }
  auto present = remaining_ranks(excluded);
  if (!present) return present.error();
  return shrink_to(*present);
}

// Returns the ranks that are not excluded, in ascending order.
Result<std::vector<std::uint32_t>> ChildFactory::remaining_ranks(std::span<const std::int32_t> excluded) const {
  std::vector<bool> stays(parent_.ranks, true);
  for (const std::int32_t rank : excluded) {
    if (rank < 0 || static_cast<std::uint32_t>(rank) >= parent_.ranks) {
      return invalid_argument(fmt::format("excluded rank {} is outside 0..{}", rank, parent_.ranks - 1));
    }
    stays[static_cast<std::size_t>(rank)] = false;
  }
  if (!stays[parent_.rank]) {
    return invalid_argument(fmt::format("rank {} is excluded itself: only those that remain call this", parent_.rank));
  }
  std::vector<std::uint32_t> present;
  for (std::uint32_t rank = 0; rank < parent_.ranks; ++rank) {
    if (stays[rank]) present.push_back(rank);
  }
  return present;
}

// Each pass of the loop makes a new communicator of the ranks that the previous agreement named, and then agrees on
// whether all of them have it. This agreement also resolves the case that the last message of the set-up was lost and
// one rank does not know whether the others succeeded. If it names other ranks than the previous agreement, the next
// pass starts with its list.
Result<ChildFactory::Child> ChildFactory::shrink_to_survivors(const Agree& agree) {
  auto who = agree({});
  while (who.ok()) {
    const std::vector<std::int32_t> survivors = who->survivors;
    auto child = shrink_to({survivors.begin(), survivors.end()});
    who = agree({.value = child.ok() ? 1 : 0});
    if (!who.ok() || who->survivors != survivors) continue;
    if (child.ok() && who->value == 1) return child;
    Error error = child.ok()
                      ? Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the new communicator failed on another rank"}
                      : std::move(child).error();
    error.message = "shrink: " + error.message;
    error.scope = ErrorScope::kCall;
    return error;
  }
  return who.error();
}

Result<ChildFactory::Child> ChildFactory::shrink_to(const std::vector<std::uint32_t>& present) {
  if (present.size() == 1) return shrink_to_one();
  const std::scoped_lock lock(mutex_);
  if (rendezvous_ == nullptr) {
    rendezvous_ = std::make_unique<SurvivorRendezvous>(parent_.job_context, parent_.members, parent_.rank, parent_.id);
  }
  auto child = shrink_by_rendezvous(present);
  rendezvous_->leave();
  return child;
}

Result<ChildFactory::Child> ChildFactory::shrink_to_one() {
  auto id = random_id();
  if (!id) return id.error();
  return make_child(
      {{.key = 0, .parent_rank = parent_.rank, .id = *id}},
      [](const std::string& blob) { return std::vector<std::string>{blob}; }, parent_.job_context);
}

Result<ChildFactory::Child> ChildFactory::shrink_by_rendezvous(const std::vector<std::uint32_t>& present) {
  auto id = rendezvous_->meet(present);
  if (!id) return id.error();
  std::vector<ChildRank> chosen;
  for (const std::uint32_t rank : present) chosen.push_back({.key = 0, .parent_rank = rank, .id = *id});
  std::vector<Error> round_errors;
  const Gather among = [&](const std::string& blob) {
    auto blobs = rendezvous_->gather(blob);
    if (!blobs) round_errors.push_back(blobs.error());
    return blobs;
  };
  auto child = make_child(chosen, among, parent_.job_context);
  // After a failed round, SurvivorRendezvous fails all further rounds, so the last round below would have no effect.
  if (!child && !round_errors.empty()) return in_parent_ranks(chosen, std::move(child).error(), round_errors);
  // A last round, so that a rank has its new communicator only if all ranks have one, unless the last message is lost.
  // If no earlier round failed and no exception was thrown, all ranks reach this round, because every path through
  // make_child() has the same number of rounds.
  auto all = gather_or_fail(among, child ? Result<std::string>(std::string()) : child.error());
  if (all) return child;
  return in_parent_ranks(chosen, all.error(), round_errors);
}

Result<ChildFactory::Child> ChildFactory::grow(Communicator& parent, std::int32_t size,
                                               const std::optional<UniqueId>& id) {
  if (parent_.job_context == nullptr) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "a communicator of a simulation cannot grow"};
  }
  if (size <= static_cast<std::int32_t>(parent_.ranks) || size > kMostRanks) {
    return invalid_argument(
        fmt::format("grow: size {} is not greater than the {} ranks of this communicator, or exceeds {}", size,
                    parent_.ranks, kMostRanks));
  }
  auto grown = [&]() -> Result<Child> {
    auto shared = share_unique_id(parent, id, size);
    if (!shared) return shared.error();
    CommunicatorOptions options;
    options.rank = static_cast<std::int32_t>(parent_.rank);
    options.size = size;
    options.unique_id = *shared;
    options.device =
        parent_.job_context->device == nullptr ? CommunicatorOptions::kNoDevice : parent_.job_context->device->number();
    Config config = parent_.job_context->config;
    config.timeout = timeout_;
    return create_with(config, options);
  }();
  if (grown) return grown;
  Error error = std::move(grown).error();
  error.message = "grow: " + error.message;
  if (!engine_.broken()) error.scope = ErrorScope::kCall;
  return error;
}

}  // namespace tutti::detail
