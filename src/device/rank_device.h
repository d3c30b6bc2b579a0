// RankDevice: the GPU of one rank: its number, its CUDA context, and the library's device code in that context. The
// object is made with the rank's first communicator. The communicators with the same JobContext share it, and so do
// ranks of one create_all() with the same GPU. It is constant after construction, except for the device code, which the
// first successful call of code() loads. Any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "cuda/driver.h"
#include "cuda/resources.h"
#include "kernels/device/program.h"

namespace tutti::detail {

// The CUDA context that is current on a thread, for another thread that does work of that thread. Empty if there is
// none.
struct CurrentContext {
  static CurrentContext of_this_thread();
  // Makes the context current on the calling thread as long as the result exists. Does nothing if there is none.
  // Errors: those of the driver.
  Result<std::optional<cuda::ContextScope>> enter() const;

  const cuda::Driver* driver = nullptr;
  cuda::CUcontext context = nullptr;
};

class RankDevice {
 public:
  // `wanted`: the CUDA number of a device, CommunicatorOptions::kNoDevice, or nothing, which selects the device of
  // the calling thread's current context. Returns null if the rank has no device: `wanted` is kNoDevice, or it is
  // nothing and no context is current. Errors: kInvalidArgument (there is no such device), kUnsupported (a device was
  // named, but the driver cannot be used), those of the driver.
  static Result<std::shared_ptr<RankDevice>> find(std::optional<std::int32_t> wanted);

  const cuda::Driver& driver() const { return driver_; }
  int number() const { return number_; }
  cuda::CUcontext context() const { return context_; }
  const cuda::CUuuid& uuid() const { return uuid_; }

  // The evaluator kernels, indexed by device::Protocol, the kernel of sends and receives, and how many blocks of any
  // one of them can be resident on the whole device at once (the smallest number of the four kernels).
  struct Code {
    std::array<cuda::CUfunction, 3> evaluate{};
    cuda::CUfunction transfer = nullptr;
    std::uint32_t blocks_at_once = 0;
  };
  // Returns the kernels. If the device code has not been loaded yet in this context, first loads it, and launches each
  // kernel without a call. The reason for these launches: the driver loads a kernel, and allocates its local memory, at
  // the first launch, and may wait for all other kernels of the context meanwhile. If that happened during calls,
  // kernels of two ranks could wait for each other. `block_threads`: threads per block, on which blocks_at_once
  // depends. Errors: kUnsupported (this build has no device code, or none that the driver can load on this device; or
  // no block fits on the device), those of the driver.
  Result<Code> code(std::uint32_t block_threads);

 private:
  RankDevice(const cuda::Driver& driver, int number, cuda::CUcontext context,
             std::optional<cuda::PrimaryContext> primary)
      : driver_(driver), number_(number), context_(context), primary_(std::move(primary)) {}
  struct ContextCode;
  Status load_module(std::uint32_t block_threads);
  Result<Code> load(std::uint32_t block_threads);

  const cuda::Driver& driver_;
  const int number_;
  const cuda::CUcontext context_;
  // Set if find() retained the device's primary context, because a device was named. Empty if the context is the
  // one that was current on the caller's thread.
  const std::optional<cuda::PrimaryContext> primary_;
  cuda::CUuuid uuid_;
  std::mutex mutex_;
  std::shared_ptr<ContextCode> code_;  // shared by all RankDevices of the context; null until it is loaded
};

}  // namespace tutti::detail
