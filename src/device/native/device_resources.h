// DeviceResources: the GPU resources of one rank of one communicator: arenas that all ranks can access, connections,
// and the LaunchGroup. It is made in set-up rounds over the ranks of the communicator. In these rounds the ranks
// agree whether their calls run on the GPUs at all. That requires that every rank has a GPU of the same machine, and
// that every rank can access the memory of every other rank. The object exists as long as the communicator.
//
// If ranks of several processes share a GPU, a kernel may keep the kernel that it waits for from running. Calls then
// run in rounds (executor/device_rounds.h). The same is done if other communicators of the process have taken too
// many blocks of the GPU (block_budget.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "cuda/resources.h"
#include "device/native/block_budget.h"
#include "device/native/copy_engines.h"
#include "device/native/device_windows.h"
#include "device/native/launch_group.h"
#include "device/native/stream_barrier.h"
#include "device/rank_device.h"
#include "executor/device_arena.h"
#include "job/job_context.h"

namespace tutti::detail {

class DeviceResources {
 public:
  ~DeviceResources();
  DeviceResources(const DeviceResources&) = delete;
  DeviceResources& operator=(const DeviceResources&) = delete;

  RankDevice& device() const { return *device_; }
  LaunchGroup& launch_group() const { return *launch_group_; }
  const std::shared_ptr<DeviceWindows>& windows() const { return windows_; }
  const DeviceArena& arena() const { return arena_; }
  cuda::CUfunction evaluator(device::Protocol protocol) const {
    return code_.evaluate[static_cast<std::size_t>(protocol)];
  }
  device::Link* links(device::Protocol protocol) const;  // in device memory
  device::RankStatus* status() const;                    // address on the device
  LaunchGroup::RankFlags& flags() const { return *flags_; }
  // The same on all ranks.
  struct Settings {
    std::uint32_t blocks = 1;  // largest number of blocks of one rank, within the BlockBudget
    std::uint32_t threads = 32;
    bool in_rounds = false;  // kernels must not wait for kernels of other ranks
    bool one_device = true;  // all ranks use the same device
    DeviceProtocol protocol = DeviceProtocol::kAuto;
  };
  const Settings& settings() const { return settings_; }
  CopyEngines& copy_engines() { return *copy_engines_; }
  // Ends all launches of this rank. Returns true if nothing of this rank runs any more. False: something still runs,
  // so the memory that it uses must be kept. The destructor calls this function, too.
  bool end();
  // Bytes of device memory.
  std::uint64_t memory_bytes() const { return arena_.bytes() + (links_ ? links_->bytes() : 0); }

 private:
  friend class DeviceResourcesMaker;
  // The objects that the ranks of one communicator in one process share. It is found by the number of the
  // communicator. Thread-safe.
  class Process {
   public:
    // Returns the object of that communicator. The first rank that calls this makes it, and it is destroyed with its
    // last user.
    static std::shared_ptr<Process> of(std::uint64_t communicator);

    struct Share {
      std::shared_ptr<RankDevice> device;  // must be destroyed after the arena
      // Shared by all ranks of this process, because peers write to it until they have all ended.
      std::shared_ptr<cuda::DeviceMemory> arena;
    };
    void give(std::uint32_t rank, Share share);
    Share of_rank(std::uint32_t rank);
    // Returns the LaunchGroup of these ranks, which are on one device. `whole`: they are all ranks of the
    // communicator.
    std::shared_ptr<LaunchGroup> launch_group(const std::shared_ptr<RankDevice>& device,
                                              const std::vector<std::uint32_t>& ranks, bool whole);

   private:
    std::mutex mutex_;
    std::map<std::uint32_t, Share> shares_;
    // Indexed by the first rank of the group; shared by its ranks.
    std::map<std::uint32_t, std::shared_ptr<LaunchGroup>> launch_groups_;
  };

  DeviceResources(std::uint32_t rank, std::shared_ptr<RankDevice> device, DeviceArena arena, Log log)
      : rank_(rank), device_(std::move(device)), arena_(arena), log_(log) {}
  void close_peers();
  bool peers_have_closed(std::chrono::milliseconds limit);

  struct Opened {
    std::uint32_t rank;
    cuda::PeerMemory memory;
  };
  const std::uint32_t rank_;
  const std::shared_ptr<RankDevice> device_;  // shared with the job_context; destroyed last
  const DeviceArena arena_;
  const Log log_;
  RankDevice::Code code_;
  std::shared_ptr<Process> process_;               // shared with the other ranks of the process
  std::shared_ptr<LaunchGroup> launch_group_;      // shared with the other ranks of the group
  std::shared_ptr<cuda::DeviceMemory> own_arena_;  // shared with the other ranks of the process, see Process
  struct RemoteRank {
    std::uint32_t rank;
    std::uint32_t job_rank;
  };
  std::vector<RemoteRank> remote_ranks_;       // the ranks of other processes
  std::shared_ptr<SegmentExchange> exchange_;  // shared with the job_context; reports which processes have exited
  std::vector<Opened> opened_;
  std::shared_ptr<DeviceWindows> windows_;  // shared with registrations, which may be destroyed later
  BlockBudget block_budget_;
  std::optional<cuda::DeviceMemory> links_;  // links of all protocols
  std::array<std::uint64_t, kDeviceProtocols> links_at_{};
  std::optional<cuda::PinnedMemory> pinned_;
  LaunchGroup::RankFlags* flags_ = nullptr;
  std::optional<StreamBarrier> barrier_;     // empty: the communicator uses neither rounds nor copies between barriers
  std::optional<CopyEngines> copy_engines_;  // always set after set-up
  Settings settings_;
  bool ended_ = false;
  bool idle_ = true;
};

// Number of rounds that make_device_resources() takes, also if it fails.
inline constexpr int kDeviceRounds = 3;

// Makes the device resources of `rank` in a communicator. `members`: element i is the job rank of rank i.
// `resources`: the environment of that communicator; its transport must outlive the result. Returns null if the host
// has to carry out calls on device memory. Takes kDeviceRounds rounds over the members if JobContext::devices is
// set, and none otherwise. Errors: the same on all ranks, for example if a device has too little memory.
Result<std::unique_ptr<DeviceResources>> make_device_resources(const JobContext& job_context,
                                                               const std::vector<std::uint32_t>& members,
                                                               std::uint32_t rank, std::uint64_t communicator,
                                                               const Environment& resources, const Gather& gather);

}  // namespace tutti::detail
