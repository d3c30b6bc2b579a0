// AcrossMachines: the part of one communicator for long all_reduce calls on GPU memory, if its ranks are on several
// machines. GPUs cannot reach the memory of GPUs of another machine, so the GPUs reduce within each machine, and the
// host sends only the result of that between the machines (docs/decisions/0032-gpus-of-several-machines.md). With k
// ranks on each machine, a call has three parts, one after another in the caller's stream:
//
//   1. reduce_scatter among the ranks of a machine, by their GPUs: each rank gets one of k shares of the sum.
//   2. all_reduce of each share among the ranks that have it, one on each machine, by the host (staging.h).
//   3. all_gather of the shares among the ranks of a machine, by their GPUs.
//
// Parts 1 and 3 use a communicator of the ranks of this machine, part 2 one of the ranks that have the same number
// within their machines (a rail). Both belong to this object, and no caller sees them. The GPUs do not look at errors
// of the host, and the host not at those of the GPUs, so the object connects them: part 2 does not start if part 1
// has failed, and if part 2 fails, part 3 sends nothing. The failure of one part ends all three communicators.
//
// Threads: as for DeviceSide, to which the object belongs. In addition, the thread that drives the rail's engine and
// callbacks of streams call it through the guard of part 2, under the mutex of AcrossShared. No code under this mutex
// may lock what a thread holds while it puts work into a stream. The object owns no threads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "communicator/membership.h"
#include "engine/arguments.h"
#include "engine/engine.h"
#include "job/environment.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class CommunicatorImpl;

class AcrossMachines;

// What the calls share with the AcrossMachines, because a Work, a stream or a graph may use a call after the object
// has ended.
struct AcrossShared {
  // For each rank of the two inner communicators, its rank in the outer one.
  std::vector<std::uint32_t> machine;
  std::vector<std::uint32_t> rail;

  std::mutex mutex;                 // guards the members below
  AcrossMachines* owner = nullptr;  // null if the object has ended
  // The first failure, after which none of the three communicators can be used; with ranks of the outer one.
  std::optional<Error> failure;

  std::optional<Error> first_failure() {
    const std::scoped_lock lock(mutex);
    return failure;
  }
};

// One call: its three parts, in the order of the stream. After its submission only the parts change.
class AcrossCall final : public StartCondition {
 public:
  AcrossCall(std::shared_ptr<AcrossShared> shared, std::array<std::shared_ptr<Operation>, 3> parts)
      : shared_(std::move(shared)), parts_(std::move(parts)) {}

  const std::array<std::shared_ptr<Operation>, 3>& parts() const { return parts_; }

  bool open() const override { return true; }
  std::optional<Error> lost() override { return std::nullopt; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}
  bool finished() override;
  // If a part has failed, the first failure of the communicator is the cause.
  Status outcome() override;

 private:
  const std::shared_ptr<AcrossShared> shared_;
  const std::array<std::shared_ptr<Operation>, 3> parts_;
};

class AcrossMachines {
 public:
  // `machine` and `rail`: the two inner communicators of this rank.
  AcrossMachines(std::unique_ptr<CommunicatorImpl> machine, std::unique_ptr<CommunicatorImpl> rail,
                 std::shared_ptr<AcrossShared> shared);
  ~AcrossMachines();
  AcrossMachines(const AcrossMachines&) = delete;
  AcrossMachines& operator=(const AcrossMachines&) = delete;

  // `outer`: the engine of the outer communicator, which fails if a part fails. Call it once, before the first call.
  void connect_to_engine(std::shared_ptr<EngineHandle> outer) { outer_ = std::move(outer); }

  // Whether takes() may be true for a call of this kind and length. False between suspend() and resume(). The same on
  // all ranks.
  bool suits(CollectiveKind kind, std::uint64_t bytes) const;
  // Whether the call should run in the three parts: it suits, its operation is a sum, product, minimum or maximum, the
  // caller named no algorithm, and its buffers are memory of this rank's GPU. Errors: as DeviceExecutor::takes().
  Result<bool> takes(const CheckedCall& checked, const CallOptions& options);
  // Makes the operation of a call for which takes() is true. Returns null if the GPUs cannot run a part of it, so that
  // the host carries out the whole call; then all ranks get null.
  Result<std::shared_ptr<Operation>> prepare(const CheckedCall& checked, const CallOptions& options);
  // Puts the three parts of an operation of prepare() into the stream. Errors: those of the parts. If the first part
  // was submitted and another one was not, all three communicators have failed.
  Status submit(const Operation& operation);
  // Number of calls that were submitted so far.
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // The first error of the inner communicators, with ranks of the outer one; nothing if there is none. If they cannot
  // be used any more, all three communicators have failed.
  std::optional<Error> failure();
  // Ends the calls on all three communicators. `error` has ranks of the outer one. Does not wait: neither for streams,
  // nor for threads that put work into streams.
  void fail(Error error) noexcept;
  void abort();
  // Waits until all submitted calls have ended, and then refuses further ones. There is no time limit while a stream
  // has not yet come to part 2 of a call. After that, the limit of DeviceExecutor::finish() applies.
  Status finish();
  Status drain();  // waits for the calls of this rank's GPU: DeviceExecutor::finish()
  // As the functions of DeviceSide, for the GPU memory of the ranks of this machine. Errors name ranks of the outer
  // communicator.
  Status suspend();
  Status resume();
  bool runs_on_devices() const;  // whether the GPUs of this machine carry out calls at the moment
  std::uint64_t memory_use() const;

 private:
  class RailGuard;
  void end(Error error) noexcept;
  void set_abort_flag() noexcept;
  std::optional<Error> find_failure(std::int64_t& failed_since_ns);
  std::optional<Error> find_gone_rank(std::int64_t& failed_since_ns, std::int64_t cause_ns) const;
  Error of_part(Error error, std::size_t part) const;
  Status submit_part(CommunicatorImpl& inner, const std::shared_ptr<Operation>& part);

  const std::shared_ptr<AcrossShared> shared_;  // shared with the calls
  std::shared_ptr<EngineHandle> outer_;         // shared with callbacks, see EngineHandle
  const std::unique_ptr<CommunicatorImpl> machine_;
  const std::unique_ptr<CommunicatorImpl> rail_;
  std::atomic<std::uint64_t> calls_ = 0;
};

// The largest number of set-up rounds that make_across_machines() takes if needs_across_rounds() is true. It takes
// fewer if it fails or returns null. If needs_across_rounds() is false, it takes none.
inline constexpr int kAcrossRounds = 2 + 4 + 1 + 2 + 1;  // environment, GPUs, agreement; environment, agreement
// Whether the job has ranks with GPUs, and several machines. The same on all ranks.
bool needs_across_rounds(const JobContext& job_context);

// Makes the object for a communicator with the members and the environment of `outer`. Returns null on all ranks if
// calls do not run in parts: the ranks are on one machine, the machines have different numbers of ranks or only one
// rank each, ranks share a GPU, or the GPUs of some machine carry out no calls. `timeout`: that of calls. `among`: a
// round of the outer communicator's members; in a split, ranks of other new communicators take part in the same
// rounds. If one rank returns an error, all ranks return one.
Result<std::unique_ptr<AcrossMachines>> make_across_machines(const Membership& outer, const Environment& environment,
                                                             std::chrono::milliseconds timeout, const Gather& among);

}  // namespace tutti::detail
