// DeviceExecutor: carries out calls of one rank on its GPU (docs/decisions/0013). The executor uses the same plans as
// the host. It packs each plan and keeps it in device memory. A collective launches the evaluator kernel once, or
// several times if it runs in rounds, or no kernel if copy engines carry it out. Sends and receives use no plan, and
// have a kernel of their own. Hold the communicator's submission mutex for takes(), prepare() and submit(). Any thread
// may call the other functions without it.
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
  // `plan_cache` must outlive this object.
  DeviceExecutor(std::unique_ptr<DeviceResources> resources, std::uint32_t rank, std::uint32_t ranks,
                 VerifiedPlanCache& plan_cache);

  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  bool is_on_one_gpu() const { return resources_->settings().one_device; }  // whether all ranks use the same GPU
  // Whether the call's buffers are memory of this rank's GPU, or managed memory. False: they are host memory, or all
  // are empty. Call it before prepare() for the same call. Errors: kInvalidArgument (memory of another GPU or context,
  // or one buffer on the GPU and one on the host), those of the driver.
  Result<bool> takes(const CheckedCall& checked);
  // The same for sends and receives. Always false if Settings::transfers is false.
  Result<bool> takes(const CheckedExchange& exchange) const;
  // Returns a call that is ready for submit(). Null: the GPU of some rank cannot run this plan, or the call would need
  // too many rounds, so the host has to carry out the call. All ranks then get null, with one exception: if the inputs
  // of only some ranks are in symmetric registered memory, these ranks get a call (CopyEngines::find_inputs()).
  // `digest`: the digest of a plan of the caller's own, otherwise 0. checked.call.tag must be complete, except for the
  // sequence number and the tile size. Errors: kInvalidArgument (the stream), kInvalidPlan, the error that broke this
  // executor before, those of the driver.
  Result<std::shared_ptr<DeviceCall>> prepare(const CheckedCall& checked, const Generator& generator,
                                              std::uint32_t digest, const CallOptions& options,
                                              std::int64_t timeout_ns);
  // Returns a call with the sends and receives for which takes() is true. `empty`: see TransferCall. Errors: as above,
  // except kInvalidPlan.
  Result<std::shared_ptr<DeviceCall>> prepare(CheckedExchange exchange, std::shared_ptr<Operation> empty,
                                              const CallOptions& options, std::int64_t timeout_ns);
  // Whether this executor has prepared the call. False if the communicator's previous executor prepared it, before
  // suspend(); this executor cannot run such a call.
  bool prepared(const DeviceCall& call) const { return call.executor_id == id_; }
  Status submit(const std::shared_ptr<DeviceCall>& call);
  DeviceResources& resources() const { return *resources_; }

  // See LaunchGroup::failure().
  std::optional<Error> failure(bool asks_driver) { return resources_->launch_group().failure(rank_, asks_driver); }
  void abort();
  // Call it if this rank cannot take part any more: ends all calls that wait in this rank's LaunchGroup, and calls the
  // functions that were registered with on_failure(), unless the peers detect this failure by themselves (peers_see()).
  void fail(const Error& error) noexcept { resources_->launch_group().fail(error); }
  // set_abort_flag() and reported_failure() lock nothing, so they may be called while another thread waits for space in
  // a stream. set_abort_flag() ends the kernels of this rank that are waiting. Later calls with Call::checks_abort then
  // fail at once.
  void set_abort_flag() noexcept;
  // The failure that a kernel of this rank has reported; nothing if there is none.
  std::optional<Error> reported_failure() const;
  void on_failure(LaunchGroup::FailureCallback on_failure) {
    resources_->launch_group().on_failure(rank_, std::move(on_failure));
  }
  // Waits until all submitted calls have ended, also those that wait for other ranks before their launch, except for
  // replays of graphs; at most for the longest timeout of all calls so far plus 1 s. Errors: the error that broke this
  // executor, kTimeout.
  Status finish();

 private:
  // One plan in the memory of this rank's GPU, with the state that its kernels keep between launches.
  struct Plan {
    PlanShape shape;
    std::uint32_t channels = 1;  // the largest number of channels that any rank's program has
    cuda::DeviceMemory program;
    cuda::PinnedMemory program_source;
    std::shared_ptr<ProgramUpload> upload;  // from program_source to program; shared with the calls
    device::ChannelState* states = nullptr;
    std::optional<cuda::DeviceMemory> own_states;  // the memory of `states`, if the arena had no room for it
    std::optional<cuda::DeviceMemory> scratch;     // the scratch chunks of all slices; empty if the plan has none
    std::optional<cuda::DeviceMemory> scratch_bytes;
    std::optional<DeviceRounds> rounds{};  // set if calls run in rounds
    std::uint64_t scratch_room = 0;        // length of one scratch chunk, in bytes; 0 if there are none
  };
  // Collective, algorithm, root, digest of a caller's plan (otherwise 0), protocol.
  using PlanKey = std::tuple<CollectiveKind, Algorithm, std::uint32_t, std::uint32_t, device::Protocol>;
  // How a call is divided: into slices, which different thread blocks can run in parallel, and each slice into tiles,
  // with chunks of at most max_chunk_bytes bytes.
  struct Segmentation {
    std::uint32_t slices = 1;
    std::uint64_t max_chunk_bytes = 0;
  };

  Result<Plan*> plan_for(const Generator& generator, std::uint32_t digest, device::Protocol protocol);
  Result<std::unique_ptr<Plan>> make_plan(const Generator& generator, device::Protocol protocol);
  Status add_states(Plan& plan);
  // The number of launches that a call in rounds needs; 0 if calls do not run in rounds.
  std::uint64_t rounds_of(const Plan& plan, const device::Call& call, std::uint32_t slices) const;
  std::uint64_t most_rounds() const;
  device::Protocol choose_protocol(std::uint64_t bytes) const;
  Segmentation cut(const Plan& plan, device::Protocol protocol, std::uint64_t bytes) const;
  struct BufferUse {
    const char* name;
    const void* data;
    std::size_t bytes;
    bool plain = false;  // set by is_on_device(), see cuda::PointerInfo
  };
  Result<bool> is_on_device(std::span<BufferUse> buffers) const;
  Result<std::shared_ptr<DeviceCall>> begin_call(const Call& call, const CallOptions& options, std::int64_t timeout_ns);
  Result<std::shared_ptr<DeviceCall>> begin_call(const CallTag& tag, const CallOptions& options,
                                                 std::int64_t timeout_ns);
  Status check_stream(cuda::CUstream stream);
  void place_windows(const CheckedCall& checked, device::Call& call) const;

  static std::uint64_t next_id();

  const std::uint64_t id_ = next_id();  // unique in this process; never 0
  const std::unique_ptr<DeviceResources> resources_;
  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  VerifiedPlanCache& plan_cache_;
  // Number of the states of DeviceResources::states() that were given to plans, also to plans whose making then failed.
  std::uint64_t states_used_ = 0;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;  // a null value: the GPU of some rank cannot run this plan
  // takes() sets it to true if ranks of this process may access the buffers of that call in place, even if they are not
  // registered, and otherwise to false.
  bool windows_ = true;
  // The longest timeout of all calls so far, in ns. Atomic, because finish() reads it without the submission mutex.
  std::atomic<std::int64_t> longest_ns_ = 0;
};

}  // namespace tutti::detail
