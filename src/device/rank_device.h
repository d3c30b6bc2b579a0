// RankDevice: the GPU of one rank: its number, its context, and the library's device code in that context. It is
// made with the rank's first communicator, and all communicators that are split from that one share it. Constant
// after construction, except for the device code, which is loaded once. May be used by any thread.
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

class RankDevice {
 public:
  // `wanted`: the number of a device, CommunicatorOptions::kNoDevice, or nothing, which selects the device of the
  // current context. Returns null if the rank has no device. Errors: kInvalidArgument (there is no such device),
  // kUnsupported (a device was named, but there is no driver), those of the driver.
  static Result<std::shared_ptr<RankDevice>> find(std::optional<std::int32_t> wanted);

  const cuda::Driver& driver() const { return driver_; }
  int number() const { return number_; }
  cuda::CUcontext context() const { return context_; }
  const cuda::CUuuid& uuid() const { return uuid_; }

  // The evaluator kernels, indexed by protocol, and how many of their blocks can be resident on the device at once.
  struct Code {
    std::array<cuda::CUfunction, 3> evaluate{};
    std::uint32_t blocks_at_once = 0;
  };
  // Loads the device code if necessary. Errors: kUnsupported (this build has no device code, or none for this
  // device).
  Result<Code> code(std::uint32_t block_threads);

 private:
  RankDevice(const cuda::Driver& driver, int number, cuda::CUcontext context,
             std::optional<cuda::PrimaryContext> primary)
      : driver_(driver), number_(number), context_(context), primary_(std::move(primary)) {}
  Result<Code> load(std::uint32_t block_threads);

  const cuda::Driver& driver_;
  const int number_;
  const cuda::CUcontext context_;
  // Set if the context is the primary one and was retained here; empty if it is the caller's.
  const std::optional<cuda::PrimaryContext> primary_;
  cuda::CUuuid uuid_;
  std::mutex mutex_;
  std::optional<cuda::Module> module_;
};

}  // namespace tutti::detail
