// CopyEngines: collectives that the copy engines of the GPUs carry out instead of a kernel. Copy engines use no
// multiprocessor, so they hardly slow down a computation that runs at the same time. The class decides which calls copy
// engines carry out, prepares these calls, and puts the copies into a stream. It owns no threads or locks. Hold the
// communicator's submission mutex, except for the static functions, which any thread may call.
//
// For a collective that only moves blocks, copies replace a plan: each rank copies blocks from the inputs of all ranks
// to its own output. Ranks only read each other's buffers, so a failed call never writes into a buffer of another rank.
// There are no steps: nothing is forwarded, and the copies of a call do not depend on each other, with one exception:
// in a broadcast in registered memory that is not in place, the root first copies its input to its output, from which
// the others then read. A test checks that the result equals that of the plans.
//
// Cost for P ranks and blocks of b bytes. all_gather, all_to_all: (P - 1) b bytes into and out of each rank.
// broadcast, scatter: (P - 1) b bytes out of the root (the plans for trees and rings spread this load over the
// ranks). gather: (P - 1) b bytes into the root.
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
  // How the copies find the inputs of the peers (docs/decisions/0013). kNone: copies carry out no call.
  // kLaunchGroup: all ranks are in one process and on one GPU, so the launch has the calls of all ranks with the
  // addresses of their inputs. kWindows: the inputs are in symmetric registered memory; this requires that no two
  // ranks of a process share a GPU.
  enum class Method : std::uint8_t { kNone, kLaunchGroup, kWindows };

  struct BlockCopy {
    std::uint32_t peer = 0;  // the rank from whose input the block is copied; may be this rank
    std::uint64_t from = 0;  // offset in the peer's input, in bytes
    std::uint64_t to = 0;    // offset in this rank's output, in bytes
    std::uint64_t bytes = 0;

    bool operator==(const BlockCopy&) const = default;
  };
  // The copies of one rank in one call.
  struct Copies {
    std::vector<BlockCopy> blocks;
    // Indexed by rank: the address of that rank's input, as this rank's GPU sees it. Empty if the LaunchGroup
    // contains all ranks, because the addresses are then in the calls of the launch.
    std::vector<std::uint64_t> inputs;
    // For kWindows, at the root of a broadcast that is not in place: the length of the input in bytes. The root first
    // copies its input to its output, because the peers read it there. Otherwise 0; for kLaunchGroup the peers read the
    // root's input.
    std::uint64_t own_bytes = 0;
    // For copies between stream barriers: a hash of the call's arguments and of the location of its input, which must
    // be the same on all ranks. For kLaunchGroup: 0.
    std::uint64_t hash = 0;
  };
  // The location of the inputs in symmetric registered memory, which is the same on all ranks, and the address of each
  // rank's input as this rank's GPU sees it.
  using Inputs = DeviceWindows::SymmetricLocation;

  // `method` and `least_bytes` must be the same on all ranks. `least_bytes`: calls with shorter blocks are carried
  // out by kernels. `windows`: used only with kWindows, otherwise it may be null.
  CopyEngines(Method method, std::uint64_t least_bytes, std::uint32_t rank, std::shared_ptr<DeviceWindows> windows)
      : method_(method), least_bytes_(least_bytes), rank_(rank), windows_(std::move(windows)) {}

  // For Method::kWindows; otherwise returns nothing. Returns the inputs if copies between two stream barriers can carry
  // out the call. Returns nothing if kernels carry it out, for example because the call is too short or reduces, the
  // caller has chosen an algorithm, or the buffer that peers read is not in registered memory that has the same length
  // on all ranks. That buffer is the output in a broadcast or an in-place all_gather, and otherwise the input. For
  // scatter and gather it always returns nothing, because the ranks cannot compute where the root's input is.
  std::optional<Inputs> find_inputs(const CheckedCall& checked, const CallOptions& options) const;
  // Makes `call` a call by copies between two stream barriers. `inputs`: the result of find_inputs().
  void copy_between_barriers(DeviceCall& call, const CheckedCall& checked, Inputs inputs) const;
  // For kLaunchGroup; otherwise has no effect. Adds copies to `call` if copies can carry it out. The copies replace
  // the kernel if the calls of all ranks in the launch have copies.
  void copy_in_group(DeviceCall& call, const CheckedCall& checked, const CallOptions& options) const;

  // set_barrier_value() and count() number the calls that consist of copies between stream barriers. They have no
  // effect for other calls. Call set_barrier_value() before the call is submitted, and count() after that, unless the
  // call was refused. The order of submission is the same on all ranks. The order in which calls are prepared is not,
  // because the calls of a Group are prepared when they are added, sorted when they are submitted, and never submitted
  // if the Group is dropped.
  void set_barrier_value(DeviceCall& call) const;
  void count(const DeviceCall& call);

  // Puts the copies of all `calls` of a launch into the stream. `barrier`: the stream barrier of the rank of the
  // first call; may be null if the LaunchGroup contains all ranks. The context of the GPU must be current.
  static Status put(const cuda::Driver& driver, std::span<const std::shared_ptr<DeviceCall>> calls,
                    const StreamBarrier* barrier, cuda::CUstream stream);

  // Whether copies alone can carry out the collective: true for collectives that reduce nothing and have a plan.
  static bool only_moves_blocks(CollectiveKind kind);
  // Returns the copies that `rank` makes. If the output has a block for each rank, the copies begin with the block of
  // the next higher rank and end with that of `rank`, so that not all ranks read from the same peer at the same time.
  // Requires only_moves_blocks(collective.kind). block_bytes: for a broadcast the length of the whole buffer, otherwise
  // the length of one rank's block. For in-place calls the copies are correct for all collectives except all_to_all,
  // which would overwrite blocks that are still to be read. A pure function.
  static std::vector<BlockCopy> block_copies(const Collective& collective, std::uint32_t rank,
                                             std::uint64_t block_bytes);

 private:
  bool takes(const CheckedCall& checked, const CallOptions& options) const;

  const Method method_;
  const std::uint64_t least_bytes_;
  const std::uint32_t rank_;
  const std::shared_ptr<DeviceWindows> windows_;  // shared with the resources and with registrations
  std::uint64_t calls_ = 0;                       // number of calls between stream barriers that were submitted so far
};

}  // namespace tutti::detail
