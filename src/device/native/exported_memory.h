// ExportedMemory: device memory that is being registered (device_windows.h), and how ranks on other GPUs and in
// other processes get access to it.
//
// Memory of cuMemAlloc is described by a CUDA IPC handle, which is part of the rank's contribution to the first
// round. Mapped virtual memory (cuMemCreate, cuMemMap) consists of all allocations that are mapped side by side in
// the range. Each allocation is passed as a file descriptor, through the same exchange as the ranks' shared memory,
// and the receiver maps the allocations again in the same order. (The alternative, pidfd_getfd, needs the right to
// trace the peer, which containers and hardened systems do not grant.)
//
// Used by the thread that registers the memory, with a current context of the device.
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

// The allocation or allocations that contain a range of memory.
struct ExportedMemory {
  // The distance between two ranks, in ascending order.
  enum class Reach : std::uint8_t {
    kSameDevice,    // same process, same GPU
    kSameProcess,   // same process, another GPU
    kOtherProcess,  // another process
  };
  // The ranks between which allocations are passed.
  struct Peers {
    std::vector<Reach> reach;                   // indexed by rank
    std::vector<std::uint32_t> job_ranks;       // indexed by rank: the job rank, as the exchange counts ranks
    std::shared_ptr<SegmentExchange> exchange;  // shared with the job_context
  };
  // One allocation that was mapped with cuMemMap. Peers map all of it, also if a range in it is exported.
  struct Part {
    cuda::PhysicalMemory memory;
    std::uint64_t bytes = 0;
  };
  // The size of the memory that a rank exports.
  struct Size {
    std::uint64_t parts = 0;
    std::uint64_t mapped_bytes = 0;
  };
  class Rounds;

  // Finds the allocations that contain [data, data + bytes). `farthest`: the greatest distance of a rank that needs
  // access. Errors: kInvalidArgument (not all of it is memory of this GPU and context), kUnsupported (managed memory,
  // memory of a pool, or memory that was created without a handle type that can be shared; too many parts), those of
  // the driver.
  static Result<ExportedMemory> find(const RankDevice& device, const void* data, std::size_t bytes, Reach farthest);
  // Maps the allocations of a range of this process once more, for access by `device`.
  static Result<cuda::MappedMemory> map_again(const RankDevice& device, std::uint64_t address, std::uint64_t bytes);

  std::uint64_t offset = 0;  // offset of the range from the start of the (first) allocation
  // Exactly one is set: an IPC handle (needed if some rank is in another process) or the list of mapped allocations.
  // If no rank needs access from another GPU or process, neither is set.
  std::optional<cuda::CUipcMemHandle> handle;
  std::vector<Part> parts;
  std::uint64_t mapped_bytes = 0;  // sum of the lengths of all parts
};

// Largest number of allocations in one range; enough for 80 GiB of the allocations that PyTorch makes.
inline constexpr std::size_t kMostDeviceParts = 4096;

// Passes the allocations of all ranks to ranks of other processes, in rounds. In each round every rank shares some
// of its own and receives those of its peers. A rank stops sharing a file one round later, or at the end, because
// all peers have received it by then.
class ExportedMemory::Rounds {
 public:
  // `sizes`: indexed by rank. All arguments must outlive this object.
  Rounds(const RankDevice& device, const Peers& peers, const ExportedMemory& own, std::span<const Size> sizes)
      : device_(device), peers_(peers), own_(own), sizes_(sizes) {}

  // Runs all rounds. Returns the error of a round, which ends the rounds on all ranks. A failure after the last
  // round is stored in `own`; the other ranks do not know about it yet.
  Status run(const Gather& gather, Status& own);
  // Returns the mapped memory of a rank, or nothing if it is not passed as files. Call it after run() has succeeded.
  std::optional<cuda::MappedMemory> take(std::uint32_t rank);

 private:
  // Files that are shared with the peers until this object is destroyed.
  class SharedFiles;
  struct PartHeader;
  struct ImportedMemory {
    std::uint32_t rank;
    cuda::MappedMemory memory;
  };
  std::uint64_t parts_of(std::uint32_t rank) const;
  Status reserve();
  Result<std::string> show(std::uint64_t first, std::uint64_t count, std::shared_ptr<SharedFiles>& shared_files) const;
  Status map(std::uint64_t first, std::uint64_t count, const std::vector<std::string>& blobs);
  Status map_part(ImportedMemory& from, const PartHeader& part) const;
  Result<cuda::FileDescriptor> receive(std::uint32_t rank, std::uint32_t id) const;
  Status allow() const;

  const RankDevice& device_;
  const Peers& peers_;
  const ExportedMemory& own_;
  const std::span<const Size> sizes_;
  std::vector<ImportedMemory> imported_;
  std::shared_ptr<SharedFiles> last_shared_files_;
};

}  // namespace tutti::detail
