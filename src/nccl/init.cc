// ncclGetUniqueId, and the functions that create a communicator without a parent: ncclCommInitRank and its variants,
// and ncclCommInitAll.
#include "nccl/init.h"

#include <fmt/format.h>

#include <cstring>
#include <string_view>
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
#include "nccl/environment/environment.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

// How long the rendezvous server of a unique id waits for the first rank: by default as long as the first rank then
// waits for the others, because every rank may be late.
constexpr std::chrono::minutes kIdTimeout = kDefaultSetupTimeout;

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

// The network interface, or its address, on which the ranks meet: TUTTI_INTERFACE if it is set or follows from
// NCCL_SOCKET_IFNAME or NCCL_SOCKET_FAMILY. Otherwise loopback if the launcher reports that all ranks are on this
// machine, or names this machine's loopback address as rank 0's. Otherwise the address that other machines can reach,
// because NCCL programs expect to run on several machines without any setting. Loopback if there is no such address.
Result<std::string> rendezvous_interface(const Settings& settings) {
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
  auto settings = settings_with(*base, config);
  if (!settings) return fail(settings.error());
  CommunicatorOptions options;
  options.rank = rank;
  options.size = ranks;
  auto device = RankDevice::of_this_thread();
  if (!device) return fail(device.error());
  options.device = device->number;
  encrypt(*settings, options);
  if (settings->root.empty()) {
    std::memcpy(options.unique_id.emplace().bytes.data(), &id, sizeof(id));
  } else {
    options.root = settings->root;
    options.job_id = "NCCL_COMM_ID " + settings->root;
  }
  // Shared by the table of communicators and the calls that use the Comm.
  const auto made = std::make_shared<Comm>(rank, ranks, *device, *settings);
  *comm = add_to_table(made);
  return finish_creation(comm, made,
                         run_job({.comm = made, .parent = nullptr, .body = [made, options] {
                                    return made->take(detail::create(options, made->settings.defaults, made->stop));
                                  }}));
}

Result<std::vector<std::int32_t>> devices_of(int count, const int* list) {
  std::vector<std::int32_t> devices;
  const auto driver = cuda::Driver::open();
  if (!driver) {  // NCCL programs also run without a GPU, on host memory
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

void encrypt(const Settings& settings, CommunicatorOptions& options) {
  if (settings.encryption_key.empty()) return;
  options.encrypt = true;
  options.job_key = settings.encryption_key;
}

ncclResult_t finish_creation(ncclComm_t* comm, const CommPtr& made, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) {
    remove_from_table(made);
    *comm = nullptr;
  }
  return result;
}

ncclResult_t make_id(const Settings& settings, ncclUniqueId* id) {
  const auto interface = rendezvous_interface(settings);
  if (!interface) return fail(interface.error());
  const auto made = detail::create_unique_id(
      {.interface = *interface, .timeout = kIdTimeout, .job_key = settings.encryption_key}, settings.defaults);
  if (!made) return fail(made.error());
  std::memcpy(id, made->bytes.data(), sizeof(*id));
  return ncclSuccess;
}

TUTTI_NCCL(ncclResult_t, GetUniqueId, ncclUniqueId* id) {
  return guarded([&] {
    if (id == nullptr) return fail(ncclInvalidArgument, "ncclGetUniqueId: the place for the id is null");
    const auto settings = environment_settings();
    if (!settings) return fail(settings.error());
    // NCCL_COMM_ID is set: all ranks meet at its address, and the content of the id does not matter.
    if (!settings->root.empty()) {
      std::memset(id, 0, sizeof(*id));
      return ncclSuccess;
    }
    return make_id(*settings, id);
  });
}

TUTTI_NCCL(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return guarded_in_group([&] { return init_rank("ncclCommInitRank", comm, nranks, commId, rank, nullptr); });
}

TUTTI_NCCL(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
           ncclConfig_t* config) {
  return guarded_in_group([&] { return init_rank("ncclCommInitRankConfig", comm, nranks, commId, rank, config); });
}

TUTTI_NCCL(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
           ncclUniqueId* commIds, ncclConfig_t* config) {
  return guarded_in_group([&] {
    if (const ncclResult_t right = check_ranks("ncclCommInitRankScalable", newcomm, nranks, myrank);
        right != ncclSuccess) {
      return right;
    }
    if (nId < 1 || nId > nranks || commIds == nullptr) {
      return fail(
          ncclInvalidArgument,
          fmt::format("ncclCommInitRankScalable: {} ids for {} ranks: give 1 to as many as ranks", nId, nranks));
    }
    // One rendezvous server is enough for any number of ranks. All ranks pass the ids in the same order, so all use
    // the first.
    return init_rank("ncclCommInitRankScalable", newcomm, nranks, commIds[0], myrank, config);
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
    encrypt(*settings, options);
    std::vector<RankDevice> own;
    for (const std::int32_t number : *devices) {
      auto device = RankDevice::of(number);
      if (!device) return fail(device.error());
      own.push_back(*std::move(device));
    }
    auto made = detail::create_all(ndev, options, 1, settings->defaults);
    if (!made) return fail(made.error());
    for (std::int32_t rank = 0; rank < ndev; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      // Shared by the table of communicators and the calls that use the Comm.
      const auto one = std::make_shared<Comm>(rank, ndev, own[at], *settings);
      one->take(std::move((*made)[at]));
      comm[rank] = add_to_table(one);
    }
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
