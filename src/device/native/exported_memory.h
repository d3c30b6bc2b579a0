// ExportedMemory: device memory that is being registered (device_windows.h), and how ranks on other GPUs and in
// other processes get access to it.
//
// Memory of cuMemAlloc is described by a CUDA IPC handle, which is part of the rank's contribution to the first round
// of a registration. A range of mapped virtual memory (cuMemCreate, cuMemMap) can contain several allocations, mapped
// side by side. Each of them is passed to ranks of other processes as a file descriptor, through the same
// SegmentExchange as the ranks' shared memory, and the receiver maps the allocations again in the same order. (The
// alternative, pidfd_getfd, needs the right to trace the peer, which containers and hardened systems do not grant.)
//
// Only the thread that registers the memory uses these objects, and the context of the device must be current.
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

// The allocation of cuMemAlloc, or the mapped allocations, that contain a range of memory.
struct ExportedMemory {
  // How far a peer is away, which decides how it gets access. In ascending order, so that values can be compared.
  enum class Reach : std::uint8_t {
    kSameDevice,    // same process, same GPU
    kSameProcess,   // same process, another GPU
    kOtherProcess,  // another process
  };
  // The ranks of the communicator, and how files reach them.
  struct Peers {
    std::vector<Reach> reach;                   // indexed by rank
    std::vector<std::uint32_t> job_ranks;       // indexed by rank: its rank in the job, which `exchange` uses
    std::shared_ptr<SegmentExchange> exchange;  // shared with the job context
  };
  // One allocation that was mapped with cuMemMap. Peers map all of it, even if only a range in it is registered.
  struct Part {
    cuda::PhysicalMemory memory;
    std::uint64_t bytes = 0;
  };
  // The number and the total length of the mapped allocations that a rank exports; both 0 if it exports none.
  struct Size {
    std::uint64_t parts = 0;
    std::uint64_t mapped_bytes = 0;
  };
  class Rounds;

  // Finds the allocations that contain [data, data + bytes). `farthest`: the largest Reach of all ranks; with
  // kSameDevice, and with kSameProcess for memory of cuMemAlloc, the result is empty, because no rank needs to open
  // anything. Errors: kInvalidArgument (not all of it is memory of this GPU and context; if the result is empty, only
  // the first and the last byte are checked); if some rank must open the memory, also kUnsupported (managed memory,
  // memory of a pool, too many parts or, for ranks of other processes, memory that was created without a handle type
  // that can be shared); those of the driver.
  static Result<ExportedMemory> find(const RankDevice& device, const void* data, std::size_t bytes, Reach farthest);
  // Maps the allocations that contain a range of mapped memory in this process once more, at other addresses, for
  // access by `device`.
  static Result<cuda::MappedMemory> map_again(const RankDevice& device, std::uint64_t address, std::uint64_t bytes);

  // Offset of the range, in bytes, from the start of the allocation or of the first part; 0 if neither `handle` nor
  // `parts` is set.
  std::uint64_t offset = 0;
  // At most one of `handle` and `parts` is set. `handle`: for memory of cuMemAlloc, if some rank is in another process.
  // `parts`: for mapped memory, if some rank is on another GPU or in another process.
  std::optional<cuda::CUipcMemHandle> handle;
  std::vector<Part> parts;
  std::uint64_t mapped_bytes = 0;  // sum of the lengths of all parts
};

// Largest number of allocations in one range; enough for 80 GiB if each has 20 MiB, as those of PyTorch do.
inline constexpr std::size_t kMostDeviceParts = 4096;

// Passes the allocations of all ranks to ranks of other processes, in rounds. In each round every rank shares some
// of its allocations and receives those of its peers. A rank stops sharing a file when the next round has ended, or
// when this object is destroyed, because by then all peers have received the file, or a rank has failed.
class ExportedMemory::Rounds {
 public:
  // `own`: the memory of this rank. `sizes`: indexed by rank. All arguments must outlive this object.
  Rounds(const RankDevice& device, const Peers& peers, const ExportedMemory& own, std::span<const Size> sizes)
      : device_(device), peers_(peers), own_(own), sizes_(sizes) {}

  // Runs all rounds. Returns the error of a round, which ends the rounds on all ranks. If this rank fails after the
  // gather of the last round, for example when it maps the memory received in that round, the error is stored in `own`
  // instead, because the other ranks have not been notified of it.
  Status run(const Gather& gather, Status& own);
  // Returns the mapped memory of a rank, or nothing if the memory of that rank was not passed as files. Call it
  // after run() has succeeded.
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
