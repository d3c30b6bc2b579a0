// StreamBarrier: a barrier at which the streams of all ranks wait for each other. The stream of each rank sets a flag
// of every peer (peer_flags.h) and then waits until all peers have set its own flags. Calls in rounds, and calls by
// copy engines with CopyEngines::Method::kWindows, use such barriers. The object is constant after construction. Any
// thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "device/native/peer_flags.h"
#include "device/rank_device.h"
#include "tutti/result.h"

namespace tutti::detail {

class StreamBarrier {
 public:
  // `flags`: those of each rank. `device` must outlive this object.
  StreamBarrier(const RankDevice& device, std::uint32_t rank, std::vector<std::shared_ptr<PeerFlags>> flags)
      : device_(device), rank_(rank), flags_(std::move(flags)) {}

  std::uint32_t rank() const { return rank_; }
  // Puts this rank's part of one barrier into the stream: sets flags of all peers, waits for its own, resets these.
  // `value`: the value of the flags, the same on all ranks; never 0. `parity`: 0 or 1, which selects one of two
  // sets of flags; successive barriers must have different parities. The context must be current.
  Status put(std::uint32_t parity, std::uint32_t value, cuda::CUstream stream) const;
  // After this rank has given a call up: sets the flags that it sets for its peers to a special value, so that a peer
  // that reaches a barrier of the call later does not pass it.
  void give_up() const;
  // Sets the flags for which this rank's own streams wait to `value`, as if all peers had reached the barrier, so that
  // these streams pass it.
  void release(std::uint32_t value) const;
  // Makes the error for a barrier with `value` that has timed out. Reads the flags that the peers have set so far:
  // they show which ranks have reached the barrier, which ranks make another call, which have given up, and which
  // are missing. The message begins with `waited`.
  Error timeout_error(const std::string& waited, std::uint32_t value) const;

 private:
  template <class Visit>
  Status for_each_peer(Visit visit) const;

  const RankDevice& device_;
  const std::uint32_t rank_;
  const std::vector<std::shared_ptr<PeerFlags>> flags_;  // shared with DeviceResources
};

}  // namespace tutti::detail
