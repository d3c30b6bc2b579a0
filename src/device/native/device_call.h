// DeviceCall: one call of one rank that GPUs carry out. The caller's thread makes it; after LaunchGroup::submit() it
// belongs to the group, whose mutex guards its private members. Any thread may call finished(), outcome() and
// settle().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/call_tag.h"
#include "cuda/resources.h"
#include "device/native/copy_engines.h"
#include "engine/engine.h"
#include "executor/device_program.h"
#include "kernels/device/call.h"

namespace tutti::detail {

class LaunchGroup;

class DeviceCall final : public StartCondition {
 public:
  // Launch parameters. Besides the call itself, they must be the same on all ranks for a common launch.
  struct Launch {
    // The evaluator of `protocol`; not compared, because ranks may have loaded the same code separately.
    cuda::CUfunction kernel = nullptr;
    device::Protocol protocol = device::Protocol::kSimple;
    std::uint32_t channels = 1;
    std::uint32_t slices = 1;
    std::uint32_t threads = 512;
    // 0: kernels may wait for each other. Otherwise the number of launches; their kernels do not wait, and each launch
    // has a barrier of all ranks in front of it.
    std::uint64_t rounds = 0;

    bool operator==(const Launch& other) const {
      return protocol == other.protocol && channels == other.channels && slices == other.slices &&
             threads == other.threads && rounds == other.rounds;
    }
  };

  device::Call call;
  DeviceGeometry tables;  // for v-variants; the launch sets their addresses in call.geometry
  Launch launch;
  std::optional<CopyEngines::Copies> copies;  // replace the kernel if all calls of the launch have copies
  // The value that ranks write to each other's flags at the barriers of this call; never 0. A rank that writes
  // another value makes another call, and no barrier ends because of it.
  std::uint32_t barrier_value = 1;
  CallTag tag;
  std::uint64_t executor_id = 0;  // id of the DeviceExecutor that prepared the call
  cuda::CUstream stream = nullptr;
  std::int64_t timeout_ns = 0;

  bool open() const override { return true; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}
  // A captured call is finished at once.
  std::optional<Error> lost() override { return std::nullopt; }
  bool finished() override;
  Status outcome() override;
  // Makes the stream wait for the call, after it was submitted; see LaunchGroup::settle().
  Status settle();

 private:
  friend class LaunchGroup;
  std::shared_ptr<LaunchGroup> launch_group_;  // shared with the ranks; null: the call was never submitted
  std::size_t member_index_ = 0;
  std::uint32_t number_ = 0;            // number of the call among those of the rank; the value of its flag
  std::uint64_t capture_ = 0;           // id of the capture that the stream is in; 0: none
  std::shared_ptr<cuda::Event> ready_;  // shared by the call and the pool to which it returns
  std::shared_ptr<cuda::Event> done_;   // shared by the calls of one launch
  cuda::CUstream launched_in_ = nullptr;
  bool launched_ = false;
  // The stream may wait for a flag, because no other stream of the caller implicitly waits for this one.
  bool non_blocking_ = false;
  bool waits_for_flag_ = false;  // its stream waits for a flag
  std::chrono::steady_clock::time_point deadline_{};
  std::optional<Status> outcome_;  // set when it is known
};

}  // namespace tutti::detail
