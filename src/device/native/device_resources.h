// DeviceResources: what one rank needs to run calls on its GPU: arenas that all ranks reach, connections, the team.
// Made in rounds over the communicator's ranks, in which they agree on whether their calls go by the devices at all:
// each has a GPU of the same machine, and every rank reaches every other's memory. Kept as long as the communicator.
// Where a GPU has ranks of several processes, a kernel may keep the one that it waits for from running: then calls run
// in rounds (executor/device_rounds.h). So they do where other communicators of the process leave it no room
// (block_budget.h).
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
#include "device/native/device_windows.h"
#include "device/native/launch_group.h"
#include "device/rank_device.h"
#include "executor/device_arena.h"
#include "job/job_context.h"

namespace tutti::detail {

// How calls by copy engines find the peers' inputs (docs/decisions/0013): not at all; in the calls of the ranks, which
// are all on one GPU and in one process; in registered memory, since no two ranks of a process share a GPU.
enum class CopyMethod : std::uint8_t { kNone, kTeam, kWindows };

// What the ranks of one communicator in one process share; found by the communicator's number. Thread-safe.
class DeviceProcess {
 public:
  // The one of that communicator; made by the first rank that asks, gone with the last.
  static std::shared_ptr<DeviceProcess> of(std::uint64_t communicator);

  struct Share {
    std::shared_ptr<RankDevice> device;         // ends after the arena
    std::shared_ptr<cuda::DeviceMemory> arena;  // shared by all ranks here: peers write in it until they all end
  };
  void give(std::uint32_t rank, Share share);
  Share of_rank(std::uint32_t rank);
  // The team of these ranks, on one device.
  std::shared_ptr<LaunchGroup> team(const std::shared_ptr<RankDevice>& device, const std::vector<std::uint32_t>& ranks,
                                    bool whole);

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, Share> shares_;
  std::map<std::uint32_t, std::shared_ptr<LaunchGroup>> teams_;  // by first rank; shared by its ranks
};

class DeviceResources {
 public:
  ~DeviceResources();
  DeviceResources(const DeviceResources&) = delete;
  DeviceResources& operator=(const DeviceResources&) = delete;

  RankDevice& device() const { return *device_; }
  LaunchGroup& team() const { return *team_; }
  const std::shared_ptr<DeviceWindows>& windows() const { return windows_; }
  const DeviceArena& arena() const { return arena_; }
  cuda::CUfunction evaluator(device::Protocol protocol) const {
    return code_.evaluate[static_cast<std::size_t>(protocol)];
  }
  device::Link* links(device::Protocol protocol) const;  // device memory
  device::RankStatus* status() const;                    // as the device sees it
  RankFlags& words() const { return *words_; }
  std::uint32_t blocks() const { return blocks_; }  // of one rank at most; the same on all; as BlockBudget has room
  std::uint32_t threads() const { return threads_; }
  bool in_rounds() const { return in_rounds_; }               // kernels may not wait for other ranks'
  CopyMethod copy_way() const { return copy_way_; }           // the same on all ranks
  std::uint64_t copies_from() const { return copies_from_; }  // bytes of a block
  // Nothing of this rank runs from here on; true. False: something does, what it uses must stay. The destructor does
  // it, too.
  bool end();
  std::uint64_t memory_bytes() const { return arena_.bytes() + (links_ ? links_->bytes() : 0); }  // of the device
  bool one_device() const { return one_device_; }  // all ranks have the same
  DeviceProtocol protocol() const { return protocol_; }

 private:
  friend class DeviceResourcesMaker;
  DeviceResources(std::uint32_t rank, std::shared_ptr<RankDevice> device, DeviceArena arena, Log log)
      : rank_(rank), device_(std::move(device)), arena_(arena), log_(log) {}
  void close_peers();
  bool peers_have_closed(std::chrono::milliseconds limit);

  struct Opened {
    std::uint32_t rank;
    cuda::PeerMemory memory;
  };
  const std::uint32_t rank_;
  const std::shared_ptr<RankDevice> device_;  // shared with the job_context; ends last
  const DeviceArena arena_;
  const Log log_;
  RankDevice::Code code_;
  std::shared_ptr<DeviceProcess> process_;         // shared with the other ranks of the process
  std::shared_ptr<LaunchGroup> team_;              // likewise
  std::shared_ptr<cuda::DeviceMemory> own_arena_;  // likewise
  struct Elsewhere {
    std::uint32_t rank;
    std::uint32_t job_rank;
  };
  std::vector<Elsewhere> elsewhere_;           // ranks of other processes
  std::shared_ptr<SegmentExchange> exchange_;  // shared with the job_context: tells who has ended
  std::vector<Opened> opened_;
  std::shared_ptr<DeviceWindows> windows_;  // shared with registrations, which may end later
  BlockBudget room_;
  std::optional<cuda::DeviceMemory> links_;  // of all protocols
  std::array<std::uint64_t, kDeviceProtocols> links_at_{};
  std::optional<cuda::PinnedMemory> pinned_;
  RankFlags* words_ = nullptr;
  StreamBarrier meeting_;  // no arenas: neither rounds nor copies between meetings
  bool in_rounds_ = false;
  CopyMethod copy_way_ = CopyMethod::kNone;
  std::uint64_t copies_from_ = 0;
  std::uint32_t blocks_ = 1;
  std::uint32_t threads_ = 32;
  bool one_device_ = true;
  bool ended_ = false;
  bool idle_ = true;
  DeviceProtocol protocol_ = DeviceProtocol::kAuto;
};

// Rounds that make_device_resources() takes, whatever happens in them.
inline constexpr int kDeviceRounds = 3;

// The device resources of `rank` among the job ranks `members`, whose resources this is; null: the host carries out
// calls on device memory. Rounds over the members, where JobContext::devices. The resources's transport outlives it.
// Errors: those of a rank whose device has too little memory, told to all.
Result<std::unique_ptr<DeviceResources>> make_device_resources(const JobContext& job_context,
                                                               const std::vector<std::uint32_t>& members,
                                                               std::uint32_t rank, std::uint64_t communicator,
                                                               const Environment& resources, const Gather& gather);

}  // namespace tutti::detail
