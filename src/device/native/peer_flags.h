// PeerFlags: the flags that the ranks of a communicator set for one of them, the owner. They lie in pinned host memory
// that all these ranks share, not in GPU memory: streams set them and wait for them, and the host can read and set them
// even if streams that wait hold up all hardware queues of a GPU. The object is constant after construction, and the
// flags are atomic. Any thread may use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/driver.h"
#include "cuda/resources.h"
#include "transports/shm/mapping.h"
#include "tutti/result.h"

namespace tutti::detail {

class PeerFlags {
 public:
  // kClosed: the peer has stopped using the owner's memory, so the owner may free it. kEven, kOdd: the stream of the
  // peer has reached a StreamBarrier with parity 0 or 1, or the peer has given up the call of that barrier. (The value
  // of the flag tells which.) The owner sets these flags itself if it releases its own streams.
  enum class Kind : std::uint8_t { kClosed, kEven, kOdd };

  // create(): makes the flags of this rank, all 0. open(): `mapping` is that of another rank. Both need a current
  // context. Errors: kSystem, kRefused (the mapping is too short), those of the driver.
  static Result<std::shared_ptr<PeerFlags>> create(const cuda::Driver& driver);
  static Result<std::shared_ptr<PeerFlags>> open(const cuda::Driver& driver, std::shared_ptr<Mapping> mapping);

  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  // flag() returns the flag that `peer` sets, and on_device() its address for streams of this process.
  std::atomic_ref<std::uint32_t> flag(Kind kind, std::uint32_t peer) const;
  cuda::CUdeviceptr on_device(Kind kind, std::uint32_t peer) const;

 private:
  PeerFlags(std::shared_ptr<Mapping> mapping, cuda::RegisteredMemory pin)
      : mapping_(std::move(mapping)), pin_(std::move(pin)) {}
  static std::size_t offset(Kind kind, std::uint32_t peer);

  std::shared_ptr<Mapping> mapping_;  // shared with the exchange
  cuda::RegisteredMemory pin_;        // must be destroyed before the mapping
};

}  // namespace tutti::detail
