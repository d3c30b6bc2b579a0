// CopyEngines: collectives that the copy engines of the GPUs carry out instead of a kernel. They need no
// multiprocessor, and so do not slow down a computation beside them. Decides which calls they carry out, prepares these
// calls, and puts the copies into a stream. Owns no threads or locks. Hold the communicator's submission mutex, except
// for the static functions, which any thread may call.
//
// For a collective that only moves blocks, copies replace a plan: each rank copies blocks from the inputs of all ranks
// to its own output. Ranks only read from each other, so a failed call never writes into the memory of another rank.
// There are no steps: nothing is forwarded, and the copies of a call do not wait for each other. A test checks that the
// result equals that of the plans.
//
// Cost for P ranks and blocks of b bytes. all_gather, all_to_all: (P - 1) b bytes in and out of each rank.
// broadcast, scatter: (P - 1) b bytes out of the root, a load that trees and rings spread over the ranks. gather: (P
// - 1) b bytes into the root.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "device/native/device_windows.h"
#include "engine/arguments.h"
#include "plan/plan.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class DeviceCall;
class StreamBarrier;

class CopyEngines {
 public:
  // How the copies find the inputs of the peers (docs/decisions/0013). kNone: no call is carried out by copies.
  // kLaunchGroup: the addresses are in the calls of the ranks, which are all on one GPU and in one process. kWindows:
  // the inputs are in registered memory; this requires that no two ranks of a process share a GPU.
  enum class Method : std::uint8_t { kNone, kLaunchGroup, kWindows };

  struct BlockCopy {
    std::uint32_t peer = 0;  // the rank to read from; may be this rank
    std::uint64_t from = 0;  // offset in the peer's input, in bytes
    std::uint64_t to = 0;    // offset in this rank's output, in bytes
    std::uint64_t bytes = 0;

    bool operator==(const BlockCopy&) const = default;
  };
  // The copies of one rank in one call.
  struct Copies {
    std::vector<BlockCopy> blocks;
    // Indexed by rank: the address of the input as this rank's GPU sees it. Empty if the group contains all ranks,
    // because the addresses are then in the calls.
    std::vector<std::uint64_t> inputs;
    // Copied first, from this rank's input to the buffer in which its peers find it (the root of a broadcast).
    std::uint64_t own_bytes = 0;
  };
  // The inputs of all ranks, in symmetric registered memory.
  using Inputs = DeviceWindows::SymmetricLocation;

  // `method` and `least_bytes` must be the same on all ranks. `least_bytes`: shorter blocks are left to kernels.
  // `windows`: may be null for kNone.
  CopyEngines(Method method, std::uint64_t least_bytes, std::uint32_t rank, std::shared_ptr<DeviceWindows> windows)
      : method_(method), least_bytes_(least_bytes), rank_(rank), windows_(std::move(windows)) {}

  // For calls between two stream barriers. Returns nothing if copies do not carry out the call, or if this rank cannot
  // compute the addresses of the peers' inputs: they are not in registered memory, or the registration has different
  // lengths on different ranks, or the offset of an input is not the same on all ranks.
  std::optional<Inputs> find_inputs(const CheckedCall& checked, const CallOptions& options) const;
  // Makes `call` a call by copies between two stream barriers.
  void copy_between_barriers(DeviceCall& call, const CheckedCall& checked, Inputs inputs);
  // Adds copies to `call` if they may carry it out and the ranks are in one LaunchGroup. They replace the kernel if the
  // calls of all ranks have them.
  void copy_in_group(DeviceCall& call, const CheckedCall& checked, const CallOptions& options) const;

  // Puts the copies of all `calls` of a launch into the stream. `barrier`: that of the first call; null if the group
  // contains all ranks. Requires a current context.
  static Status put(const cuda::Driver& driver, std::span<const std::shared_ptr<DeviceCall>> calls,
                    const StreamBarrier* barrier, cuda::CUstream stream);

  // Whether copies alone can carry out the collective.
  static bool only_moves_blocks(CollectiveKind kind);
  // Returns the copies that `rank` makes. It starts with the next higher rank, so that not all ranks read from the
  // same peer at the same time. Requires only_moves_blocks(collective.kind). block_bytes: length of the whole buffer
  // of a broadcast, otherwise of one rank's block. For in-place calls the copies are correct for all collectives
  // except all_to_all, which would overwrite blocks that are still to be read. A pure function.
  static std::vector<BlockCopy> block_copies(const Collective& collective, std::uint32_t rank,
                                             std::uint64_t block_bytes);

 private:
  bool takes(const CheckedCall& checked, const CallOptions& options) const;

  const Method method_;
  const std::uint64_t least_bytes_;
  const std::uint32_t rank_;
  const std::shared_ptr<DeviceWindows> windows_;  // shared with the resources and with registrations
  std::uint64_t calls_ = 0;                       // number of calls so far that are copies between stream barriers
};

}  // namespace tutti::detail
