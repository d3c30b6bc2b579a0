// RankDevice: the GPU of one rank: which one, in what context, and the library's device code in it. Made with the
// rank's first communicator, shared by all that are split from it. Constant but for the code, which is loaded once; any
// thread.
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
  // `wanted`: a device's number, CommunicatorOptions::kNoDevice, or nothing: that of the current context. Null: the
  // rank has none. Errors: kInvalidArgument (there is no such device), kUnsupported (no driver, though a device was
  // named), the driver's.
  static Result<std::shared_ptr<RankDevice>> find(std::optional<std::int32_t> wanted);

  const cuda::Driver& driver() const { return driver_; }
  int number() const { return number_; }
  cuda::CUcontext context() const { return context_; }
  const cuda::CUuuid& uuid() const { return uuid_; }

  // The evaluators, by protocol, and how many of their blocks the device runs at once.
  struct Code {
    std::array<cuda::CUfunction, 3> evaluate{};
    std::uint32_t blocks_at_once = 0;
  };
  // Errors: kUnsupported (this build has no device code, or none for this device).
  Result<Code> code(std::uint32_t block_threads);

 private:
  RankDevice(const cuda::Driver& driver, int number, cuda::CUcontext context,
             std::optional<cuda::PrimaryContext> primary)
      : driver_(driver), number_(number), context_(context), primary_(std::move(primary)) {}
  Result<Code> load(std::uint32_t block_threads);

  const cuda::Driver& driver_;
  const int number_;
  const cuda::CUcontext context_;
  const std::optional<cuda::PrimaryContext> primary_;  // where the context is that, and was not the caller's
  cuda::CUuuid uuid_;
  std::mutex mutex_;
  std::optional<cuda::Module> module_;
};

}  // namespace tutti::detail
