// A piece of device memory that is being registered (device_windows.h): what it lies in, and how that comes to the
// ranks of other GPUs and processes. Memory of cuMemAlloc travels as a handle of CUDA IPC, in the rank's offer. Mapped
// virtual memory (cuMemCreate, cuMemMap) is as many allocations as lie under the piece, side by side; each travels as
// an open file, by the exchange through which the ranks' shared memory comes, and is mapped again in the same order.
// (The other way to a file of a peer, pidfd_getfd, needs the right to trace it, which containers and hardened systems
// do not give.)
//
// By the thread that registers. With a current context of the device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/virtual_memory.h"
#include "device/rank_device.h"
#include "job/job_context.h"

namespace tutti::detail {

// What a rank is to another, by distance.
enum class DeviceReach : std::uint8_t {
  kSameDevice,   // in this process, on this GPU
  kSameProcess,  // in this process, on another GPU
  kElsewhere,    // in another process
};

// One allocation of mapped memory, all of which is mapped.
struct ExportedPart {
  cuda::PhysicalMemory memory;
  std::uint64_t bytes = 0;
};

struct ExportedMemory {
  std::uint64_t offset = 0;  // of its first byte in what it lies in
  // Either of both: what CUDA IPC calls the allocation, where a rank elsewhere needs it, or the allocations.
  std::optional<cuda::CUipcMemHandle> handle;
  std::vector<ExportedPart> parts;
  std::uint64_t mapped_bytes = 0;  // of all parts
};

// So many allocations under one piece at most: 80 GiB of those that PyTorch makes.
inline constexpr std::size_t kMostDeviceParts = 4096;

// What [data, data + bytes) lies in. `farthest`: of the ranks that are to reach it. Errors: kInvalidArgument (not all
// of it is memory of this GPU and context), kUnsupported (managed memory, of a pool, or made without a handle that can
// be shared; too many parts), the driver's.
Result<ExportedMemory> look_at_piece(const RankDevice& device, const void* data, std::size_t bytes,
                                     DeviceReach farthest);

// The parts of that piece of this process's, mapped once more for `device`.
Result<cuda::MappedMemory> map_again(const RankDevice& device, std::uint64_t address, std::uint64_t bytes);

// Who passes parts to whom.
struct DevicePeers {
  std::vector<DeviceReach> reach;             // by rank
  std::vector<std::uint32_t> job_ranks;       // by rank, as the exchange counts
  std::shared_ptr<SegmentExchange> exchange;  // shared with the job_context
};

// The parts of all ranks' pieces on their way to ranks of other processes, in rounds: each rank shows a few of its own,
// and takes its peers'. What it has shown it takes back one round later, or when this ends: then all have it.
class ExportRounds {
 public:
  // What a rank said of its piece.
  struct Said {
    std::uint64_t parts = 0;
    std::uint64_t mapped_bytes = 0;
  };
  // `said`: by rank. All of these outlive it.
  ExportRounds(const RankDevice& device, const DevicePeers& peers, const ExportedMemory& own,
               std::span<const Said> said)
      : device_(device), peers_(peers), own_(own), said_(said) {}

  // Errors: those of a round, known to all ranks, which ends the rounds on all of them. What fails here after the last
  // round is in `own`, and nobody else knows it yet.
  Status run(const Gather& gather, Status& own);
  // The rank's memory, all of it; nothing: it is not mapped by files. After a run that has gone well.
  std::optional<cuda::MappedMemory> take(std::uint32_t rank);

 private:
  // Files that peers may take.
  class Shown;
  struct Entry;
  struct Arriving {
    std::uint32_t rank;
    cuda::MappedMemory memory;
  };
  std::uint64_t parts_of(std::uint32_t rank) const;
  Status reserve();
  Result<std::string> show(std::uint64_t first, std::uint64_t count, std::shared_ptr<Shown>& shown) const;
  Status map(std::uint64_t first, std::uint64_t count, const std::vector<std::string>& blobs);
  Status map_part(Arriving& from, const Entry& part) const;
  Result<cuda::File> receive(std::uint32_t rank, std::uint32_t id) const;
  Status allow() const;

  const RankDevice& device_;
  const DevicePeers& peers_;
  const ExportedMemory& own_;
  const std::span<const Said> said_;
  std::vector<Arriving> arriving_;
  std::shared_ptr<Shown> last_shown_;
};

}  // namespace tutti::detail
