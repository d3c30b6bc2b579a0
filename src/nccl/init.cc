// ncclGetUniqueId and the functions that make a communicator of nothing.
#include "nccl/init.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/config.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launcher.h"
#include "bootstrap/unique_id_parts.h"
#include "communicator/create.h"
#include "cuda/driver.h"
#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

constexpr std::chrono::minutes kPatience(10);  // of a unique id, for the first rank

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

// Where the ranks meet: on loopback where the launcher says that all are on this machine, else where other machines can
// come, too, since NCCL's programs expect that without any setting.
Result<std::string> meeting_interface(const Settings& settings) {
  const Variables variables = with_defaults(environment_variables(), settings.defaults);
  for (const auto& [name, value] : variables) {
    if (name == "TUTTI_INTERFACE" && !value.empty()) return value;
  }
  const auto launched = detect_launcher(process_environment());
  if (launched.ok() && !launched->launcher.empty()) {
    if (launched->one_machine || is_loopback_address(launched->root_host) || launched->root_host == "localhost") {
      return std::string("lo");
    }
  }
  auto outward = outward_address();
  return outward.ok() ? outward : std::string("lo");
}

ncclResult_t check_ranks(const char* function, const ncclComm_t* comm, int ranks, int rank) {
  if (comm == nullptr)
    return fail(ncclInvalidArgument, fmt::format("{}: the place for the communicator is null", function));
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return fail(ncclInvalidArgument,
                fmt::format("{}: rank {} of {} ranks: ranks are 0 to the number of ranks - 1", function, rank, ranks));
  }
  return ncclSuccess;
}

ncclResult_t init_rank(const char* function, ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                       const ncclConfig_t* config) {
  if (comm != nullptr) *comm = nullptr;
  if (const ncclResult_t right = check_ranks(function, comm, ranks, rank); right != ncclSuccess) return right;
  const auto base = environment_settings();
  if (!base) return fail(base.error());
  auto settings = settings_with(**base, config);
  if (!settings) return fail(settings.error());
  CommunicatorOptions options;
  options.rank = rank;
  options.size = ranks;
  auto device = RankDevice::of_this_thread();
  if (!device) return fail(device.error());
  options.device = device->number;
  if (settings->root.empty()) {
    std::memcpy(options.unique_id.emplace().bytes.data(), &id, sizeof(id));
  } else {
    options.root = settings->root;
    options.job_id = "NCCL_COMM_ID " + settings->root;
  }
  const auto made = std::make_shared<Comm>(rank, ranks, *device, *settings);  // shared by the table and calls
  *comm = enter(made);
  return end_of_making(comm, made,
                       run_job({.comm = made, .parent = nullptr, .body = [made, options] {
                                  return made->take(detail::create(options, made->settings.defaults, made->stop));
                                }}));
}

Result<std::vector<std::int32_t>> devices_of(int count, const int* list) {
  std::vector<std::int32_t> devices;
  const auto driver = cuda::Driver::open();
  if (!driver) {  // NCCL's programs run without a GPU, too, on host memory
    devices.assign(static_cast<std::size_t>(count), CommunicatorOptions::kNoDevice);
    return devices;
  }
  auto there = (*driver)->device_count();
  if (!there) return there.error();
  for (int i = 0; i < count; ++i) {
    const int device = list == nullptr ? i : list[i];
    if (device < 0 || device >= *there) {
      return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                   fmt::format("device {} of communicator {} does not exist: this machine has {}", device, i, *there)};
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace

ncclResult_t end_of_making(ncclComm_t* comm, const CommPtr& made, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) {
    leave(made);
    *comm = nullptr;
  }
  return in_group(result);
}

TUTTI_NCCL(ncclResult_t, GetUniqueId, ncclUniqueId* id) {
  return guarded([&] {
    if (id == nullptr) return fail(ncclInvalidArgument, "ncclGetUniqueId: the place for the id is null");
    const auto settings = environment_settings();
    if (!settings) return fail(settings.error());
    if (!(*settings)->root.empty()) {  // which all ranks go by
      std::memset(id, 0, sizeof(*id));
      return ncclSuccess;
    }
    const auto interface = meeting_interface(**settings);
    if (!interface) return fail(interface.error());
    const auto made = detail::create_unique_id({.interface = *interface, .patience = kPatience}, (*settings)->defaults);
    if (!made) return fail(made.error());
    std::memcpy(id, made->bytes.data(), sizeof(*id));
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return guarded([&] { return in_group(init_rank("ncclCommInitRank", comm, nranks, commId, rank, nullptr)); });
}

TUTTI_NCCL(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
           ncclConfig_t* config) {
  return guarded([&] { return in_group(init_rank("ncclCommInitRankConfig", comm, nranks, commId, rank, config)); });
}

TUTTI_NCCL(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
           ncclUniqueId* commIds, ncclConfig_t* config) {
  return guarded([&] {
    if (const ncclResult_t right = check_ranks("ncclCommInitRankScalable", newcomm, nranks, myrank);
        right != ncclSuccess) {
      return in_group(right);
    }
    if (nId < 1 || nId > nranks || commIds == nullptr) {
      return in_group(
          fail(ncclInvalidArgument,
               fmt::format("ncclCommInitRankScalable: {} ids for {} ranks: give 1 to as many as ranks", nId, nranks)));
    }
    // One place to meet does for as many ranks as there are; the ids are given in the same order everywhere.
    return in_group(init_rank("ncclCommInitRankScalable", newcomm, nranks, commIds[0], myrank, config));
  });
}

TUTTI_NCCL(ncclResult_t, CommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  return guarded([&] {
    if (comm == nullptr || ndev < 1) {
      return fail(ncclInvalidArgument,
                  fmt::format("ncclCommInitAll: {} devices{}: give at least one, and a place for each communicator",
                              ndev, comm == nullptr ? ", null" : ""));
    }
    const auto settings = environment_settings();
    if (!settings) return fail(settings.error());
    auto devices = devices_of(ndev, devlist);
    if (!devices) return fail(devices.error());
    CommunicatorOptions options;
    options.devices = *devices;
    std::vector<RankDevice> own;
    for (const std::int32_t number : *devices) {
      auto device = RankDevice::of(number);
      if (!device) return fail(device.error());
      own.push_back(*std::move(device));
    }
    auto made = detail::create_all(ndev, options, 1, (*settings)->defaults);
    if (!made) return fail(made.error());
    for (std::int32_t rank = 0; rank < ndev; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const auto one = std::make_shared<Comm>(rank, ndev, own[at], **settings);  // as in init_rank
      one->take(std::move((*made)[at]));
      comm[rank] = enter(one);
    }
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
