// DeviceResources: the GPU resources of one rank of one communicator: arenas that all ranks can access,
// connections, and the LaunchGroup. The ranks of the communicator make their objects together, in rounds of an exchange
// during set-up. In these rounds they agree whether their calls run on the GPUs at all. That requires, among other
// things, that every rank has a GPU of the same machine, and that every rank can access the memory of every other rank.
// The object exists as long as the communicator, except that suspend() destroys it and resume() makes a new one.
//
// If ranks of several processes share a GPU, a kernel may prevent the kernel that it waits for from running. In
// this case, and if other communicators of the process have taken too many blocks of the GPU (block_budget.h), calls
// run in rounds: their kernels do not wait for each other (executor/device_rounds.h). If rounds are necessary and some
// process has several ranks on one GPU, the host carries out the calls instead.
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
#include "device/native/link_check.h"
#include "device/native/peer_flags.h"
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
  // the array of links in device memory that kernels of this protocol use; one entry for each end of a connection
  device::Link* links(device::Protocol protocol) const { return links_at(static_cast<std::size_t>(protocol)); }
  // the array of links for sends and receives, and, in the next line, the kernel that uses them
  device::Link* transfer_links() const { return links_at(kDeviceProtocols); }
  cuda::CUfunction transfer_kernel() const { return code_.transfer; }
  // the memory for the states of plans; see DeviceArena::states()
  device::ChannelState* states() const;
  device::RankStatus& status() const { return *status_; }
  device::RankStatus* status_on_device() const;  // the address of status() as the GPU sees it
  // The settings, which are the same on all ranks.
  struct Settings {
    std::uint32_t blocks = 1;       // the most thread blocks of one rank's part of a launch
    std::uint32_t kept_blocks = 1;  // how many of them a launch always gets (BlockBudget)
    std::uint32_t threads = 32;
    bool in_rounds = false;  // calls run in rounds, because kernels must not wait for kernels of other ranks
    bool one_device = true;  // all ranks use the same device
    // Kernels carry out sends and receives. False, for example, if two ranks share a GPU, or if calls run in rounds.
    bool transfers = false;
    DeviceProtocol protocol = DeviceProtocol::kAuto;
  };
  const Settings& settings() const { return settings_; }
  CopyEngines& copy_engines() { return *copy_engines_; }
  // Leaves the LaunchGroup and waits for the group's launches. If they take longer than kDraining, makes their kernels
  // end, and waits once more, at most for the same time. Returns true if no launch of the group runs any more; replays
  // of graphs are not looked at. False: a launch still runs, so the memory that it uses must be kept. Further calls
  // only return the same result. The destructor calls this function, too.
  bool end();
  // Length of the device memory of this object, in bytes, without the peers' memory and the plans.
  std::uint64_t memory_bytes() const {
    return arena_.bytes() + (links_ ? links_->bytes() : 0) + (link_check_ ? link_check_->bytes() : 0);
  }

 private:
  friend class DeviceResourcesMaker;
  // The objects that the ranks of one communicator in the same process share. A rank finds this Process by the number
  // of the communicator (shared_in_process()). Thread-safe.
  class Process {
   public:
    struct Share {
      std::shared_ptr<RankDevice> device;  // declared before the arena, so that it is destroyed after it
      // The rank's arena. All ranks of the process keep it alive, because they write to it until they end.
      std::shared_ptr<cuda::DeviceMemory> arena;
      std::shared_ptr<PeerFlags> flags;  // the rank's flags, which ranks of this process use at the same address
    };
    void give(std::uint32_t rank, Share share);
    Share of_rank(std::uint32_t rank);
    // Returns the LaunchGroup of `ranks`, which are on one device. The first of them that calls this function makes
    // it. `whole`: `ranks` are all ranks of the communicator.
    std::shared_ptr<LaunchGroup> launch_group(const std::shared_ptr<RankDevice>& device,
                                              const std::vector<std::uint32_t>& ranks, bool whole);

   private:
    std::mutex mutex_;
    std::map<std::uint32_t, Share> shares_;
    // Keyed by the first rank of the group. Shared by the ranks of the group.
    std::map<std::uint32_t, std::shared_ptr<LaunchGroup>> launch_groups_;
  };

  DeviceResources(std::uint32_t rank, std::shared_ptr<RankDevice> device, DeviceArena arena, Log log)
      : rank_(rank), device_(std::move(device)), arena_(arena), log_(log) {}
  device::Link* links_at(std::size_t table) const;
  Status write_links(const std::vector<DeviceArena::ArenaPeer>& peers);
  void close_peers();
  bool peers_have_closed(std::chrono::milliseconds limit);

  struct Opened {
    std::uint32_t rank;
    cuda::PeerMemory memory;
  };
  const std::uint32_t rank_;
  // shared with the job context; declared early, so that it is destroyed late
  const std::shared_ptr<RankDevice> device_;
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
  std::vector<RemoteRank> remote_ranks_;  // the ranks of other processes that may have opened this rank's arena
  // shared with the job context; used to find out which peers' processes have exited
  std::shared_ptr<SegmentExchange> exchange_;
  std::vector<Opened> opened_;
  std::vector<std::shared_ptr<PeerFlags>> flags_;  // of each rank; those of ranks of this process are shared with them
  std::optional<Share> flags_offer_;               // offers this rank's flags to ranks of other processes
  std::shared_ptr<DeviceWindows> windows_;         // shared with the DeviceWindow handles, which may be destroyed later
  BlockBudget block_budget_;
  // Device memory with one table of device::Link for each protocol, and then one for transfers. links_at_ has the
  // offsets of the tables in it, in bytes.
  std::optional<cuda::DeviceMemory> links_;
  std::array<std::uint64_t, kDeviceProtocols + 1> links_at_{};
  std::optional<LinkCheck> link_check_;  // used during set-up, and kept because freeing its memory may wait
  std::optional<cuda::PinnedMemory> pinned_;
  device::RankStatus* status_ = nullptr;  // in the pinned memory
  std::optional<StreamBarrier> barrier_;  // empty if the communicator uses neither rounds nor copies between barriers
  std::optional<CopyEngines> copy_engines_;  // set during set-up
  Settings settings_;
  bool ended_ = false;
  bool idle_ = true;
};

// Number of exchange rounds that make_device_resources() takes if JobContext::devices is set, also if it fails or
// returns null.
inline constexpr int kDeviceRounds = 4;

// Makes the device resources of `rank` in a communicator. `members`: element i is the job rank of rank i.
// `communicator`: its number, the same on all ranks. `resources`: the environment of that communicator; its
// transport must outlive the result. Returns null, on all ranks, if the host has to carry out calls on device
// memory. Takes part in kDeviceRounds rounds of `gather`, which returns the contributions of the members, if
// JobContext::devices is set, and in none otherwise. In a split, the ranks of the parent's other new communicators take
// part in the same rounds. If one rank returns an error, for example because its device has too little memory, all
// ranks return one.
Result<std::unique_ptr<DeviceResources>> make_device_resources(const JobContext& job_context,
                                                               const std::vector<std::uint32_t>& members,
                                                               std::uint32_t rank, std::uint64_t communicator,
                                                               const Environment& resources, const Gather& gather);

}  // namespace tutti::detail
