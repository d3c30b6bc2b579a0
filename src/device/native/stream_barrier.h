// StreamBarrier: a barrier at which the streams of all ranks wait for each other. The stream of each rank writes a
// flag into the arena of every peer and then waits for the flags of all peers in its own arena. Calls in rounds and
// calls by copy engines use such barriers. The object is constant after construction and owns nothing. Any thread
// may use it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "device/rank_device.h"
#include "tutti/result.h"

namespace tutti::detail {

class StreamBarrier {
 public:
  // `arenas`: indexed by rank, the address of the arena as this rank's device sees it. `device` must outlive this
  // object.
  StreamBarrier(const RankDevice& device, std::uint32_t rank, std::vector<std::uint64_t> arenas)
      : device_(device), rank_(rank), arenas_(std::move(arenas)) {}

  std::uint32_t rank() const { return rank_; }
  // Puts this rank's part of one barrier into the stream: writes flags to all peers, waits for theirs, resets them.
  // `value`: the value of the flags, the same on all ranks; never 0. `parity`: 0 or 1, which selects one of two
  // sets of flags; successive barriers must have different parities. The context must be current, also for
  // give_up() and release().
  Status put(std::uint32_t parity, std::uint32_t value, cuda::CUstream stream) const;
  // After this rank has given a call up: makes `stream` write a special value into this rank's flags at all peers,
  // so that a peer that reaches a barrier of the call later does not pass it.
  void give_up(cuda::CUstream stream) const;
  // Makes `stream` set the flags for which this rank's own streams wait to `value`, as if all peers had reached the
  // barrier, so that these streams pass it. `stream` must be another stream than those that wait.
  void release(std::uint32_t value, cuda::CUstream stream) const;
  // Makes the error for a barrier with `value` that has timed out. Reads the flags that the peers have set so far:
  // they show which ranks have reached the barrier, which ranks make another call, which have given up, and which
  // are missing. The message begins with `waited`. Makes the context current by itself.
  Error timeout_error(const std::string& waited, std::uint32_t value) const;

 private:
  template <class Visit>
  Status for_each_peer(Visit visit) const;

  const RankDevice& device_;
  const std::uint32_t rank_;
  const std::vector<std::uint64_t> arenas_;
};

}  // namespace tutti::detail
