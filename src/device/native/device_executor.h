// DeviceExecutor: calls of one rank that its GPU carries out (docs/decisions/0013): the same plans as on the host,
// packed and kept in device memory, one launch of the evaluator for each call. Used under the communicator's submission
// mutex, but for failure() and abort().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "cuda/pointer.h"
#include "device/native/device_resources.h"
#include "engine/arguments.h"
#include "executor/device_program.h"
#include "executor/device_rounds.h"
#include "job/verified_plan_cache.h"
#include "plan/plan.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class DeviceExecutor {
 public:
  // `plan_cache` outlives it.
  DeviceExecutor(std::unique_ptr<DeviceResources> resources, std::uint32_t rank, std::uint32_t ranks,
                 VerifiedPlanCache& plan_cache);

  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  // Whether the call's buffers are memory of this rank's GPU; false: host memory, or nothing. Errors: kInvalidArgument
  // (of another GPU or context, or some here and some there).
  Result<bool> takes(const CheckedCall& checked);
  // Ready to be submitted; null: devices cannot run this plan on any rank, the host carries the call out. `digest`: of
  // the caller's plan, else 0. checked.call.tag is complete. Errors: kInvalidArgument (the stream), those that broke
  // this way before, the driver's.
  Result<std::shared_ptr<DeviceCall>> prepare(const CheckedCall& checked, const Generator& generator,
                                              std::uint32_t digest, const CallOptions& options,
                                              std::int64_t timeout_ns);
  Status submit(const std::shared_ptr<DeviceCall>& call);
  DeviceResources& resources() const { return *resources_; }

  std::optional<Error> failure(bool asks_driver) { return resources_->team().failure(rank_, asks_driver); }
  void abort();
  // This rank takes part no more: ends what waits for it in this process, and tells those that tell() named.
  void fail(const Error& error) noexcept { resources_->team().fail(error); }
  void tell(LaunchGroup::Tell tell) { resources_->team().tell(rank_, std::move(tell)); }
  // Waits for what was launched, as long as a call may take. Errors: those that broke this way.
  Status finish();

 private:
  // One plan in device memory.
  struct Plan {
    PlanShape shape;
    std::uint32_t channels = 1;  // of the rank that has most
    cuda::DeviceMemory program;
    cuda::DeviceMemory states;
    std::optional<cuda::DeviceMemory> scratch;  // of all slices
    std::optional<cuda::DeviceMemory> scratch_bytes;
    std::optional<DeviceRounds> rounds{};  // where kernels may not wait
    std::uint64_t scratch_room = 0;        // bytes of `scratch` for each of its chunks
  };
  // Kind, algorithm, root, digest, protocol.
  using PlanKey = std::tuple<CollectiveKind, Algorithm, std::uint32_t, std::uint32_t, device::Protocol>;
  // How a call is cut.
  struct Segmentation {
    std::uint32_t slices = 1;
    std::uint64_t max_chunk_bytes = 0;
  };

  Result<Plan*> plan_for(const Generator& generator, std::uint32_t digest, device::Protocol protocol);
  Result<std::unique_ptr<Plan>> make_plan(const Generator& generator, device::Protocol protocol);
  std::uint64_t rounds_of(const Plan& plan, const device::Call& call, std::uint32_t slices) const;
  std::uint64_t most_rounds() const;
  device::Protocol choose_protocol(std::uint64_t bytes) const;
  Segmentation cut(const Plan& plan, device::Protocol protocol, std::uint64_t bytes) const;
  // Whether it may go by copy engines: it only moves blocks, and TUTTI_DEVICE_COPIES says so of their length.
  bool may_copy(const CheckedCall& checked, const CallOptions& options) const;
  // A call by copies between meetings; null: its ranks' inputs cannot be found, since they lie in no registered memory,
  // or in some that is not as long on all ranks, or have no like places.
  Result<std::shared_ptr<DeviceCall>> prepare_copies(const CheckedCall& checked, const CallOptions& options,
                                                     std::int64_t timeout_ns);
  Result<std::shared_ptr<DeviceCall>> begin_call(const CheckedCall& checked, const CallOptions& options,
                                                 std::int64_t timeout_ns);
  Status check_stream(cuda::CUstream stream);
  void place_windows(const CheckedCall& checked, device::Call& call) const;

  const std::unique_ptr<DeviceResources> resources_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  VerifiedPlanCache& plan_cache_;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;  // null: devices cannot run it
  std::uint64_t copied_calls_ = 0;                  // between meetings
  bool windows_ = true;                             // peers may use the buffers looked at last in place
  std::atomic<std::int64_t> longest_ns_ = 0;        // timeout of any call so far; finish() is not under the mutex
};

}  // namespace tutti::detail
