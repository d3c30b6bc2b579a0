// StreamBarrier: a barrier at which the streams of all ranks wait for each other. The stream of each rank writes a flag
// into the arena of every peer and then waits for the flags of all peers in its own arena. Calls in rounds and calls by
// copy engines use it. The object is constant after construction and owns nothing; it may be used by any thread.
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
  // Puts a barrier into the stream. `value`: the value of the flags, which no other call may use at the same time;
  // never 0. Successive barriers must have different parities (0 and 1). Requires a current context, like give_up() and
  // release().
  Status put(std::uint32_t parity, std::uint32_t value, cuda::CUstream stream) const;
  // Makes `stream` mark this rank's flags at all peers, so that a peer that reaches the barrier later does not pass it.
  void give_up(cuda::CUstream stream) const;
  // Makes `stream` set the flags for which this rank's streams wait, so that they pass the barrier.
  void release(std::uint32_t value, cuda::CUstream stream) const;
  // Makes the error for a barrier that has timed out. The flags that the peers have set so far show which ranks have
  // reached it, which ranks make another call, and which are missing. `waited` begins the message. Enters the context.
  Error timeout_error(const std::string& waited, std::uint32_t value) const;

 private:
  template <class Visit>
  Status for_each_peer(Visit visit) const;

  const RankDevice& device_;
  const std::uint32_t rank_;
  const std::vector<std::uint64_t> arenas_;
};

}  // namespace tutti::detail
