// The functions that make a communicator from another one: ncclCommSplit, ncclCommShrink, ncclCommGrow and
// ncclCommGetUniqueId.
#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "communicator/create.h"
#include "communicator/share_unique_id.h"
#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/group.h"
#include "nccl/init.h"

namespace tutti::nccl {
namespace {

ncclResult_t check_output(const char* function, ncclComm_t* newcomm) {
  if (newcomm != nullptr) return ncclSuccess;
  return fail(ncclInvalidArgument, fmt::format("{}: the place for the new communicator is null", function));
}

// As find_ready(), for a communicator that is to be split or shrunk: a revoked communicator is accepted as well if none
// of its jobs is in progress, because its ranks still exist although its calls were stopped.
ncclResult_t find_parent(ncclComm_t handle, const char* function, CommPtr* comm) {
  if (const ncclResult_t found = find(handle, function, comm); found != ncclSuccess) return found;
  {
    const std::scoped_lock lock((*comm)->mutex);
    if ((*comm)->phase == Phase::kRevoked && (*comm)->jobs_running == 0) return ncclSuccess;
  }
  return find_ready(handle, function, comm);
}

// Stores the new communicator, or the error, in `child`. The rank and the size of the new communicator are known only
// now, because they depend on the arguments of the other ranks. `*made` is null if this rank passed
// NCCL_SPLIT_NOCOLOR.
ncclResult_t take_child(Comm& child, Result<std::unique_ptr<Communicator>> made) {
  if (made.ok() && *made != nullptr) {
    const std::scoped_lock lock(child.mutex);
    child.rank = (*made)->rank();
    child.ranks = (*made)->size();
  }
  return child.take(std::move(made));
}

Result<std::unique_ptr<Communicator>> split(Comm& parent, int colour, int key) {
  const bool revoked = [&] {
    const std::scoped_lock lock(parent.mutex);
    return parent.phase == Phase::kRevoked;
  }();
  if (!revoked) return parent.communicator->split(colour, key);
  // A revoked communicator executes no calls, and split() is one. So shrink(), with no rank excluded, makes a copy with
  // all ranks first, and the copy is split.
  auto whole = parent.communicator->shrink({});
  if (!whole) return whole.error();
  return (*whole)->split(colour, key);
}

Result<std::unique_ptr<Communicator>> grow(const CommPtr& parent, Comm& child, std::optional<UniqueId> id) {
  if (parent != nullptr) {
    auto shared = detail::share_unique_id(*parent->communicator, id, child.ranks);
    if (!shared) return shared.error();
    id = *shared;
  }
  CommunicatorOptions options;
  options.rank = child.rank;
  options.size = child.ranks;
  options.device = child.device.number;
  options.unique_id = *id;
  encrypt(child.settings, options);
  return detail::create(options, child.settings.defaults, child.stop);
}

}  // namespace

TUTTI_NCCL(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  return guarded_in_group([&] {
    CommPtr parent;
    if (const ncclResult_t right = check_output("ncclCommSplit", newcomm); right != ncclSuccess) return right;
    *newcomm = nullptr;
    if (const ncclResult_t ready = find_parent(comm, "ncclCommSplit", &parent); ready != ncclSuccess) {
      return ready;
    }
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
      return fail(ncclInvalidArgument,
                  fmt::format("ncclCommSplit: colour {} is negative and not NCCL_SPLIT_NOCOLOR", color));
    }
    auto settings = settings_with(parent->settings, config);
    if (!settings) return fail(settings.error());
    // Shared by the table of communicators and the calls that use the Comm.
    const auto child = std::make_shared<Comm>(-1, 0, parent->device, *settings);
    const auto body = [parent, child, color, key] { return take_child(*child, split(*parent, color, key)); };
    if (color != NCCL_SPLIT_NOCOLOR) *newcomm = add_to_table(child);
    return finish_creation(newcomm, child, run_job({.comm = child, .parent = parent, .body = body}));
  });
}

TUTTI_NCCL(ncclResult_t, CommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
           ncclConfig_t* config, int shrinkFlags) {
  return guarded_in_group([&] {
    CommPtr parent;
    if (const ncclResult_t right = check_output("ncclCommShrink", newcomm); right != ncclSuccess) return right;
    *newcomm = nullptr;
    if (shrinkFlags != NCCL_SHRINK_DEFAULT && shrinkFlags != NCCL_SHRINK_ABORT) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommShrink: flags {} are not valid", shrinkFlags));
    }
    if (excludeRanksCount < 0 || (excludeRanksCount > 0 && excludeRanksList == nullptr)) {
      return fail(ncclInvalidArgument, "ncclCommShrink: the list of ranks is null or of negative length");
    }
    const bool stops = shrinkFlags == NCCL_SHRINK_ABORT;
    const ncclResult_t found =
        stops ? find(comm, "ncclCommShrink", &parent) : find_parent(comm, "ncclCommShrink", &parent);
    if (found != ncclSuccess) return found;
    const bool made = [&] {
      const std::scoped_lock lock(parent->mutex);
      return parent->communicator != nullptr;
    }();
    if (!made) {
      return fail(ncclInvalidUsage, "ncclCommShrink: the communicator was never made");
    }
    auto settings = settings_with(parent->settings, config);
    if (!settings) return fail(settings.error());
    if (stops) parent->abort();
    const std::vector<std::int32_t> excluded(excludeRanksList, excludeRanksList + excludeRanksCount);
    // Shared by the table of communicators and the calls that use the Comm.
    const auto child = std::make_shared<Comm>(-1, 0, parent->device, *settings);
    *newcomm = add_to_table(child);
    const auto body = [parent, child, excluded] { return take_child(*child, parent->communicator->shrink(excluded)); };
    return finish_creation(newcomm, child, run_job({.comm = child, .parent = parent, .body = body}));
  });
}

TUTTI_NCCL(ncclResult_t, CommGetUniqueId, ncclComm_t comm, ncclUniqueId* uniqueId) {
  return guarded([&] {
    CommPtr parent;
    if (uniqueId == nullptr) return fail(ncclInvalidArgument, "ncclCommGetUniqueId: the place for the id is null");
    if (const ncclResult_t ready = find_ready(comm, "ncclCommGetUniqueId", &parent); ready != ncclSuccess) return ready;
    {
      const std::scoped_lock lock(parent->mutex);
      if (parent->growth) {
        return fail(ncclInvalidUsage,
                    "ncclCommGetUniqueId: the id given out last was not used yet: call ncclCommGrow() with it first");
      }
    }
    // Creates an id with a rendezvous server even if NCCL_COMM_ID is set, because the address in that variable was used
    // for the set-up of another communicator. (ncclGetUniqueId() returns zeros if the variable is set.)
    if (const ncclResult_t made = make_id(parent->settings, uniqueId); made != ncclSuccess) return made;
    const std::scoped_lock lock(parent->mutex);
    std::memcpy(parent->growth.emplace().bytes.data(), uniqueId, sizeof(*uniqueId));
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
           ncclComm_t* newcomm, ncclConfig_t* config) {
  return guarded_in_group([&] {
    CommPtr parent;
    if (const ncclResult_t right = check_output("ncclCommGrow", newcomm); right != ncclSuccess) return right;
    *newcomm = nullptr;
    if (comm != nullptr) {
      if (const ncclResult_t ready = find_ready(comm, "ncclCommGrow", &parent); ready != ncclSuccess) {
        return ready;
      }
      if (rank != -1) {
        return fail(ncclInvalidArgument,
                    fmt::format("ncclCommGrow: rank {} for a rank that keeps its own: give -1", rank));
      }
    } else if (uniqueId == nullptr) {
      return fail(ncclInvalidArgument, "ncclCommGrow: a new rank needs the unique id");
    }
    const int old_ranks = parent == nullptr ? 0 : parent->ranks;
    const int own = parent == nullptr ? rank : parent->rank;
    if (nRanks <= old_ranks || own < 0 || own >= nRanks) {
      return fail(ncclInvalidArgument, fmt::format("ncclCommGrow: rank {} of {} ranks, of which {} exist: "
                                                   "give more ranks, and give new ranks the numbers after them",
                                                   own, nRanks, old_ranks));
    }
    const auto base = environment_settings();
    if (!base) return fail(base.error());
    auto settings = settings_with(parent == nullptr ? *base : parent->settings, config);
    if (!settings) return fail(settings.error());
    std::optional<UniqueId> id;
    if (uniqueId != nullptr) std::memcpy(id.emplace().bytes.data(), uniqueId, sizeof(*uniqueId));
    auto device = parent == nullptr ? RankDevice::of_this_thread() : parent->device;
    if (!device) return fail(device.error());
    // Shared by the table of communicators and the calls that use the Comm.
    const auto child = std::make_shared<Comm>(own, nRanks, *device, *settings);
    *newcomm = add_to_table(child);
    const auto body = [parent, child, id] {
      const ncclResult_t made = child->take(grow(parent, *child, id));
      if (parent == nullptr) return made;
      const std::scoped_lock lock(parent->mutex);
      parent->growth.reset();
      return made;
    };
    return finish_creation(newcomm, child, run_job({.comm = child, .parent = parent, .body = body}));
  });
}

}  // namespace tutti::nccl
