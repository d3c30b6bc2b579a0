// OperationBuilder: turns the calls of one communicator into operations for the engine. It checks the arguments,
// selects the algorithm and its plan, stages buffers in GPU memory through host memory, and cuts long calls into
// segments. It owns the plans, the AlgorithmSelector and the HostStaging, and no threads or locks. Hold the
// communicator's submission mutex in all functions, except segmentation() and default_timeout().
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "communicator/devices/device_side.h"
#include "communicator/membership.h"
#include "communicator/plan_table.h"
#include "device/staged/host_staging.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "job/environment.h"
#include "selection/algorithm_selector.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class OperationBuilder {
 public:
  // `membership` and `environment` must outlive this object, and this object must outlive the engine's last use of an
  // operation. `devices`, *devices and `engine` must exist during each call of the functions below. `timeout`: the
  // timeout of calls whose options have none.
  OperationBuilder(const Membership& membership, Environment& environment, const std::unique_ptr<DeviceSide>& devices,
                   Engine& engine, std::chrono::milliseconds timeout, Segmentation segmentation);

  // Return an operation that is ready to be submitted. For a call that is cut into segments this is the first
  // segment, which holds the others. The operation has no sequence number yet, and dropping it has no effect on the
  // communicator.
  Result<std::shared_ptr<Operation>> prepare(const CollectiveCall& call, const CallOptions& options);
  Result<std::shared_ptr<Operation>> prepare_collective(CheckedCall&& checked, const CallOptions& options);
  Result<std::shared_ptr<Operation>> prepare_exchange(CheckedExchange exchange, const CallOptions& options);
  // The fastest path for short blocking calls. Runs the call without an operation if that is possible: for example, a
  // plan for this type of collective must have been proved and used before, the buffers must be host memory, and
  // nothing else may be in progress (Engine::run_short()). Otherwise it returns nothing, and the caller continues with
  // prepare_collective(). `submission`: holds the submission mutex, and is unlocked as soon as the call has its
  // sequence number.
  std::optional<Status> run_short(CheckedCall& checked, const CallOptions& options,
                                  std::unique_lock<std::mutex>& submission);

  PlanTable& plans() { return plans_; }
  Segmentation segmentation() const { return segmentation_; }
  // Implement Communicator::auto_algorithm() and predicted_us().
  Algorithm auto_algorithm(CollectiveKind kind, std::size_t count, DataType type, bool on_device);
  std::optional<double> predicted_us(CollectiveKind kind, std::size_t count, DataType type, Algorithm algorithm);
  std::chrono::milliseconds default_timeout() const { return timeout_; }
  // Returns the first error, since this function was called last, of a staged call that failed after it was queued;
  // nothing if there was none. Errors that the call itself has returned are not included.
  std::optional<Error> take_staging_error();

 private:
  // How run_short() runs a call of one type and length.
  struct ShortChoice {
    BoundPlan* plan = nullptr;  // null: the call cannot run as a short call
    Engine::ShortPath path = Engine::ShortPath::kInline;
    std::uint32_t tile_bytes = 0;  // the value of CallTag::tile_bytes
  };
  // For one type of collective, for run_short(): the plan that the last call by mailbox used, and the plan that the
  // last single-copy (direct) call used. Null: there was none yet.
  struct ShortPlans {
    BoundPlan* by_mailbox = nullptr;
    BoundPlan* direct = nullptr;
    // The choice for calls of chosen_bytes bytes with Algorithm::kAuto. It is kept, because calls of one length often
    // follow each other. Empty: it must be made, because there was none yet or one of the plans above is new.
    std::optional<ShortChoice> chosen{};
    std::size_t chosen_bytes = 0;
  };
  // The regions of 2 MiB, by number, in which the buffers of a short call begin; 0: the call does not use the buffer.
  struct HostRegions {
    std::uintptr_t input = 0;
    std::uintptr_t output = 0;

    bool operator==(const HostRegions&) const = default;
  };
  Result<std::shared_ptr<Operation>> make_segments(const CheckedCall& whole, const CallOptions& options,
                                                   BoundPlan& plan);
  Result<std::shared_ptr<Operation>> make_operation(CheckedCall checked, const CallOptions& options, BoundPlan& plan,
                                                    std::uint64_t bytes);
  Result<std::shared_ptr<Operation>> prepare_on_device(CheckedExchange exchange, const CallOptions& options);
  std::shared_ptr<Operation> exchange_operation(CheckedExchange exchange, const CallOptions& options);
  template <class Checked>  // CheckedCall or CheckedExchange
  Result<std::shared_ptr<StartCondition>> staged_for(Checked& checked, const CallOptions& options);
  bool may_be_on_device(const CheckedCall& checked);
  ShortChoice choose_short(const ShortPlans& plans, std::size_t bytes, Algorithm algorithm);
  Collective collective_of(CollectiveKind kind) const;
  bool follows_rule_on_host(const Collective& collective, std::uint64_t bytes) const;
  std::uint32_t tile_bytes_of(const Selection& chosen) const {
    return chosen.chunk_bytes > 0 ? chosen.chunk_bytes
                                  : static_cast<std::uint32_t>(environment_.transport->slot_bytes());
  }

  const Membership& membership_;
  Environment& environment_;
  const std::unique_ptr<DeviceSide>& devices_;
  Engine& engine_;
  const std::chrono::milliseconds timeout_;
  const Segmentation segmentation_;
  PlanTable plans_;
  AlgorithmSelector selector_;
  std::array<ShortPlans, kCollectiveTable.size()> short_plans_{};  // indexed by CollectiveKind
  // Whether the CUDA driver was loaded at the last check. If not, may_be_on_device() may check again.
  bool driver_loaded_;
  // Regions of short calls that were made while the driver was not loaded; see may_be_on_device().
  std::array<HostRegions, 64> host_regions_{};
  // Null until a call finds the CUDA driver loaded.
  std::unique_ptr<HostStaging> host_staging_;
};

}  // namespace tutti::detail
