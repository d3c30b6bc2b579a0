// AcrossMachines: the DeviceSide of a communicator whose ranks are on several machines. It runs long all_reduce calls
// on GPU memory. A GPU cannot access the memory of GPUs of another machine, so the GPUs reduce within each machine, and
// the host sends only the result between the machines (docs/decisions/0032-gpus-of-several-machines.md). With k ranks
// on each machine, a call has three parts, one after another in the caller's stream:
//
//   1. reduce_scatter among the ranks of a machine, by their GPUs: each rank gets one of k shares of the sum.
//   2. all_reduce of each share among the ranks that have it, one on each machine, by the host (staging.h).
//   3. all_gather of the shares among the ranks of a machine, by their GPUs.
//
// Parts 1 and 3 use a communicator of the ranks of this machine. Part 2 uses one of the ranks that have the same number
// within their machines (a rail). Both belong to this object, and no caller sees them. The GPUs do not see the errors
// of the host, and the host does not see those of the GPUs. So the object connects them: part 2 does not start if part
// 1 has failed, and part 3 sends nothing if part 2 has failed. The failure of one part ends all three communicators.
//
// Threads: as for every DeviceSide. In addition, two others call it through the guard of part 2, under the mutex of
// AcrossShared: the thread that drives the rail's engine, and callbacks of streams. No code under this mutex may lock a
// mutex that a thread holds while it puts work into a stream.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "communicator/devices/device_side.h"
#include "communicator/devices/inner_communicators.h"
#include "device/native/device_call.h"
#include "device/native/device_resources.h"

namespace tutti::detail {
namespace {

// Shorter calls run as a whole on the host. Estimated, not measured: decision 0032 has the reasons.
constexpr std::uint64_t kLeastBytes = 256 * 1024;

// How long part 2 continues after another rank of this machine has reported a failure. Both ranks may be waiting for
// the same third rank. If that rank is lost, part 2 detects it within 2 s (kLostNs in engine/watchdog.cc), and then
// names it.
constexpr std::int64_t kCauseNs = 3'000'000'000;

enum Part : std::size_t { kScatter, kReduce, kGather };
// For error messages.
constexpr std::array<std::string_view, 3> kPartNames = {"within the machine", "between the machines",
                                                        "within the machine"};

// Translates the error of a part, whose rank is one of the inner communicator, into an error of the whole call.
Error whole_error(Error error, const std::vector<std::uint32_t>& ranks, std::string_view part) {
  runs_through([&] {
    error.message = fmt::format("all_reduce on several machines, {}: {}", part, error.message);
    if (error.rank < 0 || static_cast<std::size_t>(error.rank) >= ranks.size()) return;
    const std::uint32_t here = ranks[static_cast<std::size_t>(error.rank)];
    error.message += fmt::format(" (rank {} of this group is rank {} of the communicator)", error.rank, here);
  });
  return in_ranks_of(std::move(error), ranks);
}

// Divides `count` elements among `ranks` ranks.
std::vector<std::size_t> shares_of(std::size_t count, std::size_t ranks) {
  std::vector<std::size_t> shares(ranks, count / ranks);
  for (std::size_t i = 0; i < count % ranks; ++i) ++shares[i];
  return shares;
}

class AcrossMachines;

// The data that the calls share with the AcrossMachines, because a Work, a stream or a graph may use a call after the
// communicator, and with it the AcrossMachines, was destroyed.
struct AcrossShared {
  // For each rank of the two inner communicators, its rank in the outer one.
  std::vector<std::uint32_t> machine;
  std::vector<std::uint32_t> rail;

  std::mutex mutex;                 // guards the members below
  AcrossMachines* owner = nullptr;  // null after the AcrossMachines was destroyed
  // The first failure, after which none of the three communicators can be used; with ranks of the outer one.
  std::optional<Error> failure;

  std::optional<Error> first_failure() {
    const std::scoped_lock lock(mutex);
    return failure;
  }
};

// The three parts of one call, in the order of the stream. After the submission of the call, only the parts change.
class AcrossCall final : public StartCondition {
 public:
  AcrossCall(std::shared_ptr<AcrossShared> shared, std::array<std::shared_ptr<Operation>, 3> parts)
      : shared_(std::move(shared)), parts_(std::move(parts)) {}

  const std::array<std::shared_ptr<Operation>, 3>& parts() const { return parts_; }

  bool open() const override { return true; }
  std::optional<Error> lost() override { return std::nullopt; }
  void ended(const Status& /*result*/) noexcept override {}
  void dropped() noexcept override {}

  bool finished() override {
    bool all = true;
    const auto look = [&](const Operation& operation) {
      const bool ended = operation.done.load(std::memory_order_acquire);
      // finished() also makes progress, so it is called for every operation.
      all &= (operation.start_condition == nullptr || operation.start_condition->finished()) && ended;
    };
    for (const auto& part : parts_) {
      look(*part);
      for (const auto& segment : part->rest) look(*segment);
    }
    return all;
  }

  // If a part has failed, returns the first failure of the communicator, which is the cause, or the part's own error if
  // no failure of the communicator is recorded.
  Status outcome() override {
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      Status status;
      const auto look = [&](const Operation& operation) {
        if (status.ok()) status = operation.result;
        if (status.ok() && operation.start_condition != nullptr) status = operation.start_condition->outcome();
      };
      look(*parts_[part]);
      for (const auto& segment : parts_[part]->rest) look(*segment);
      if (status.ok()) continue;
      if (auto first = shared_->first_failure()) return *std::move(first);
      return whole_error(status.error(), part == kReduce ? shared_->rail : shared_->machine, kPartNames[part]);
    }
    return {};
  }

 private:
  const std::shared_ptr<AcrossShared> shared_;
  const std::array<std::shared_ptr<Operation>, 3> parts_;
};

class AcrossMachines final : public DeviceSide {
 public:
  AcrossMachines(const Membership& membership, const Environment& environment, Engine& engine, Gather parent_round,
                 InnerCommunicators inner)
      : DeviceSide(membership, environment, engine, std::move(parent_round)),
        machine_(std::move(inner.machine)),
        rail_(std::move(inner.rail)) {
    shared_->machine = std::move(inner.machine_ranks);
    shared_->rail = std::move(inner.rail_ranks);
    shared_->owner = this;
  }
  // If a call is still in a stream, its part 2 ends now, and its part 3 must not send anything.
  ~AcrossMachines() override {
    set_abort_flag();
    const std::scoped_lock lock(shared_->mutex);
    shared_->owner = nullptr;
  }

  std::shared_ptr<DeviceExecutor> executor() const override { return nullptr; }

  void connect_to_engine() override {
    outer_ = engine_.handle();
    engine_.set_beside_devices(true);
  }

  // Also false between suspend() and resume().
  bool runs_in_parts(CollectiveKind kind, std::uint64_t bytes) const override {
    return kind == CollectiveKind::kAllReduce && bytes >= kLeastBytes && machine_->devices().runs_on_devices();
  }

  // True if runs_in_parts() is true for the call, its operation is a built-in sum, product, minimum or maximum, the
  // caller named no algorithm, and its buffers are memory of this rank's GPU.
  Result<bool> takes(const CheckedCall& checked, const CallOptions& options) override {
    const ReduceOp op = checked.call.op;
    // Other operations do not work in parts: an average would be rounded once in each part, and the factor of
    // kPreMulSum would be applied to sums.
    const bool plain = op == ReduceOp::kSum || op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kMax;
    if (!runs_in_parts(checked.collective.kind, checked.input_bytes) || !plain ||
        options.algorithm != Algorithm::kAuto || options.reduction.combine != nullptr)
      return false;
    const std::scoped_lock lock(machine_->submission_mutex());
    auto taken = machine_->devices().takes(checked, options);
    if (taken) return taken;
    Error error = of_part(taken.error(), kScatter);
    if (error.scope >= ErrorScope::kCommunicator) fail(error);
    return error;
  }

  Result<bool> takes(const CheckedExchange& /*exchange*/) override { return false; }

  // Returns null only if a plan of the caller was chosen, because such a plan is for all ranks of the communicator, and
  // not for a part.
  Result<std::shared_ptr<Operation>> prepare(const CheckedCall& checked, const CallOptions& options,
                                             Algorithm /*algorithm*/, const PlanTable::ChosenPlan* chosen,
                                             std::int64_t /*timeout_ns*/) override {
    if (chosen != nullptr) return std::shared_ptr<Operation>();
    const Call& whole = checked.call;
    const std::size_t ranks = shared_->machine.size();
    const std::size_t me = machine_->membership().rank;
    const std::vector<std::size_t> shares = shares_of(whole.lengths.count, ranks);
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < me; ++rank) first += shares[rank];
    std::byte* const own = whole.output + first * whole.element_bytes;
    const bool variable = shares.front() != shares.back();
    CollectiveCall scatter{.kind = CollectiveKind::kReduceScatter,
                           .input = whole.input,
                           .output = own,
                           .count = shares[me],
                           .type = DataType{whole.tag.type},
                           .op = whole.op,
                           .variable = variable};
    if (variable) scatter.input_counts.counts = shares;
    CollectiveCall reduce = scatter;
    reduce.kind = CollectiveKind::kAllReduce;
    reduce.input = own;
    reduce.variable = false;
    reduce.input_counts = {};
    CollectiveCall gather = reduce;
    gather.kind = CollectiveKind::kAllGather;
    gather.output = whole.output;
    gather.variable = variable;
    if (variable) gather.output_counts.counts = shares;
    std::array<std::shared_ptr<Operation>, 3> parts;
    for (const Part part : {kScatter, kReduce, kGather}) {
      CommunicatorImpl& inner = part == kReduce ? *rail_ : *machine_;
      const CollectiveCall& call = part == kScatter ? scatter : part == kReduce ? reduce : gather;
      auto made = prepare_part(inner, call, options);
      if (!made) {
        Error error = of_part(made.error(), part);
        if (error.scope >= ErrorScope::kCommunicator) fail(error);
        return error;
      }
      parts[part] = std::move(*made);
    }
    auto& last = static_cast<DeviceCall&>(*parts[kGather]->start_condition);
    last.call.checks_abort = 1;
    last.copies.reset();                                      // copy engines do not look at the abort flag
    const auto guard = std::make_shared<RailGuard>(shared_);  // shared by the segments
    parts[kReduce]->guard = guard;
    for (const auto& segment : parts[kReduce]->rest) segment->guard = guard;
    auto operation = std::make_shared<Operation>();
    operation->on_device = true;
    operation->done = true;
    operation->call.tag = whole.tag;
    operation->start_condition = std::make_shared<AcrossCall>(shared_, std::move(parts));
    return operation;
  }

  Result<std::shared_ptr<Operation>> prepare(CheckedExchange /*exchange*/, std::shared_ptr<Operation> /*empty*/,
                                             const CallOptions& /*options*/, std::int64_t /*timeout_ns*/) override {
    TUTTI_ASSERT(false, "takes() is false for sends and receives");
  }

  // Puts the three parts into the stream. If a part cannot be submitted, all three communicators fail, unless it is the
  // first part and its error has the scope kCall.
  Status submit(const Operation& operation) override {
    const auto& parts = static_cast<AcrossCall&>(*operation.start_condition).parts();
    if (rail_->engine().capacity() <= parts[kReduce]->rest.size()) {
      return invalid_argument("too many operations of this communicator are under way: wait for some of them first");
    }
    if (environment_.recorder != nullptr) environment_.recorder->enqueued(operation.call.tag, operation.call.label);
    for (const Part part : {kScatter, kReduce, kGather}) {
      Status submitted = submit_part(part == kReduce ? *rail_ : *machine_, parts[part]);
      if (submitted.ok()) continue;
      Error error = of_part(std::move(submitted).error(), part);
      if (part == kScatter && error.scope < ErrorScope::kCommunicator) return error;
      fail(error);  // the other ranks make all three parts, and would wait for this rank
      return *shared_->first_failure();
    }
    calls_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }

  Status settle(const Operation& /*operation*/) override { return {}; }  // submit() has settled the parts

  // The first error of the inner communicators, with ranks of the outer one. If they cannot be used any more, all three
  // communicators have failed.
  std::optional<Error> failure() override {
    if (auto first = shared_->first_failure()) return first;
    for (const Part part : {kScatter, kReduce}) {
      Status status = (part == kReduce ? *rail_ : *machine_).async_status();
      if (status.ok()) continue;
      Error error = of_part(std::move(status).error(), part);
      if (error.scope < ErrorScope::kCommunicator) return error;
      fail(error);
      return shared_->first_failure();
    }
    return std::nullopt;
  }

  // Ends the calls on all three communicators. `error` has ranks of the outer one. Does not wait: neither for streams,
  // nor for threads that put work into streams.
  void fail(const Error& error) noexcept override {
    const std::scoped_lock lock(shared_->mutex);
    end(copy_of(error));
  }

  // The rail is first, because a thread that holds the mutex of the machine's LaunchGroup may wait for a stream, which
  // waits for the rail.
  void abort() override {
    rail_->abort();
    machine_->abort();
  }

  // Afterwards, further calls are refused. There is no time limit while a stream has not yet come to part 2 of a call.
  // After that, the limit of DeviceExecutor::finish() applies. The rail is first, because part 3 of each call follows
  // part 2.
  Status finish() override {
    Status on_rail = rail_->finalize();
    Status in_machine = machine_->finalize();
    if (!on_rail.ok()) return of_part(std::move(on_rail).error(), kReduce);
    if (!in_machine.ok()) return of_part(std::move(in_machine).error(), kScatter);
    return {};
  }

  // All machines suspend, or none does, unless a round fails on some ranks only or a rank fails after the first round.
  // So all ranks divide the same calls into parts.
  Status suspend() override {
    const Status drained = machine_->devices().finish();
    TUTTI_TRY(agree_on(drained.ok() ? Status() : Status(of_part(drained.error(), kGather))));
    const Status suspended = machine_->devices().suspend();
    return agree_on(suspended.ok() ? Status() : Status(in_ranks_of(suspended.error(), shared_->machine)));
  }

  // The same for resume().
  Status resume() override {
    DeviceSide& devices = machine_->devices();
    Status resumed = devices.resume();
    if (!resumed.ok()) return agree_on(in_ranks_of(std::move(resumed).error(), shared_->machine));
    if (!can_run_parts(devices)) {
      static_cast<void>(devices.suspend());
      return agree_on(Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                            "the GPUs of this machine cannot run parts of calls any more, most probably because other "
                            "communicators use their thread blocks or their memory: destroy some of these"});
    }
    Status agreed = agree_on({});
    if (!agreed.ok()) static_cast<void>(devices.suspend());
    return agreed;
  }

  std::uint64_t memory_use() const override { return machine_->devices().memory_use(); }

 private:
  // Connects part 2, which the host carries out, with the parts that GPUs carry out. Part 2 and its copies in replays
  // of a graph share it. It is called by their streams' callbacks and by the thread that drives the rail's engine.
  // These must never wait for a thread that puts work into a stream, because the stream may be full until part 2 has
  // ended.
  class RailGuard final : public OperationGuard {
   public:
    explicit RailGuard(std::shared_ptr<AcrossShared> shared) : shared_(std::move(shared)) {}

    std::optional<Error> find_failure() override {
      const std::scoped_lock lock(shared_->mutex);
      if (shared_->owner == nullptr) return std::nullopt;  // the rail's engine, destroyed as well, ends all operations
      auto found = shared_->owner->find_failure(failed_since_ns_);
      if (found) shared_->owner->end(whole_error(*found, shared_->machine, kPartNames[kScatter]));
      return found;
    }
    void failed(const Error& error) noexcept override {
      const std::scoped_lock lock(shared_->mutex);
      if (shared_->owner != nullptr)
        shared_->owner->end(whole_error(copy_of(error), shared_->rail, kPartNames[kReduce]));
    }

   private:
    const std::shared_ptr<AcrossShared> shared_;
    std::int64_t failed_since_ns_ = 0;  // the first time at which a failed rank of this machine was seen, or 0
  };

  // Returns the failure of a part within the machine, with a rank of the machine's communicator; nothing if there is
  // none. `failed_since_ns`: the first time at which a failed rank of the machine was seen; 0 if there was none yet.
  std::optional<Error> find_failure(std::int64_t& failed_since_ns) {
    const std::shared_ptr<DeviceExecutor> executor = machine_->devices().executor();
    auto reported = executor == nullptr ? std::nullopt : executor->reported_failure();
    // A kernel that was aborted reports no cause, so look for a failed rank first. It has left no result, so part 2
    // must not begin.
    const bool aborted = reported && reported->code == ErrorCode::kAborted;
    if (reported && !aborted) return reported;
    if (auto broken = machine_->engine().broken()) return broken;
    if (auto gone = find_gone_rank(failed_since_ns, aborted ? 0 : kCauseNs)) return gone;
    return reported;
  }

  // Returns an error if another rank of this machine has ended, left or failed. Part 2 does not exchange data with that
  // rank, so only this check finds it. It cannot have completed the call, because part 3 needs the share of this rank.
  // A rank that has failed, but neither ended nor left, is reported only `cause_ns` nanoseconds after
  // `failed_since_ns`.
  std::optional<Error> find_gone_rank(std::int64_t& failed_since_ns, std::int64_t cause_ns) const {
    Transport& transport = *machine_->environment().transport;
    if (transport.name() != "shm") return std::nullopt;  // only this transport's status may be read by any thread
    const Membership& machine = machine_->membership();
    for (std::uint32_t rank = 0; rank < machine.ranks; ++rank) {
      const PeerLife life = rank == machine.rank ? PeerLife::kLive : transport.peer_status(rank).life;
      if (life == PeerLife::kLive) continue;
      if (life != PeerLife::kAborted) {
        return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                     life == PeerLife::kLeft ? "a rank has left the communicator" : "a rank has ended"};
      }
      const std::int64_t now_ns = rail_->environment().clock->now_ns();
      if (failed_since_ns == 0) failed_since_ns = now_ns;
      if (now_ns - failed_since_ns < cause_ns) return std::nullopt;
      return Error{ErrorCode::kAborted, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   "a rank has failed, or has called abort(): see its error"};
    }
    return std::nullopt;
  }

  // A call must run in parts on all ranks or on none. But the GPUs of one machine may be unable to run an algorithm
  // that a rule of TUTTI_TUNE names, for example because they have too few blocks. Such a machine then uses the direct
  // algorithm for its part, which needs only one block and one connection between two ranks.
  Result<std::shared_ptr<Operation>> prepare_part(CommunicatorImpl& inner, const CollectiveCall& call,
                                                  CallOptions options) {
    const std::scoped_lock lock(inner.submission_mutex());
    auto made = inner.operations().prepare(call, options);
    if (&inner == rail_.get() || !made || (*made)->on_device) return made;
    options.algorithm = Algorithm::kDirect;
    made = inner.operations().prepare(call, options);
    if (!made || (*made)->on_device) return made;
    return invalid_argument("the communicator was suspended during this call: wait for suspend() to return first");
  }

  Status submit_part(CommunicatorImpl& inner, const std::shared_ptr<Operation>& part) {
    return inner.guarded([&]() -> Status {
      {
        const std::scoped_lock lock(inner.submission_mutex());
        TUTTI_TRY(inner.submit(part, Engine::Progress::kInBackground));
      }
      // Does not wait, because the ranks of this process share no GPU.
      return inner.settle(*part);
    });
  }

  // Does the work of fail(). Hold the mutex of shared_. The inner communicators get the error without its rank,
  // because their ranks have other numbers. The LaunchGroup is not notified, because a thread that waits for the stream
  // may hold its mutex. Its kernels see the abort flag.
  void end(Error error) noexcept {
    error.scope = std::max(error.scope, ErrorScope::kCommunicator);
    if (!shared_->failure) shared_->failure = copy_of(error);
    set_abort_flag();
    Error inner = copy_of(error);
    inner.rank = -1;
    rail_->engine().fail(inner);
    machine_->engine().fail(inner);
    if (outer_ != nullptr) runs_through([&] { outer_->fail(error); });
  }

  void set_abort_flag() noexcept {
    if (const std::shared_ptr<DeviceExecutor> executor = machine_->devices().executor()) executor->set_abort_flag();
  }

  // A round of all ranks after a step on this rank's machine, which may have failed there. The error of the step has
  // ranks of the outer communicator.
  Status agree_on(const Status& step) {
    const auto own = step.ok() ? Result<std::string>(std::string()) : step.error();
    const auto all = gather_or_fail(parent_round_, own, membership_.rank);
    return all.ok() ? Status() : Status(with_call_scope(all.error()));
  }

  Error of_part(Error error, std::size_t part) const {
    return whole_error(std::move(error), part == kReduce ? shared_->rail : shared_->machine, kPartNames.at(part));
  }

  const std::shared_ptr<AcrossShared> shared_ = std::make_shared<AcrossShared>();  // shared with the calls
  std::shared_ptr<EngineHandle> outer_;  // the handle of engine_; shared with callbacks, see EngineHandle
  const std::unique_ptr<CommunicatorImpl> machine_;
  const std::unique_ptr<CommunicatorImpl> rail_;
};

}  // namespace

std::unique_ptr<DeviceSide> make_across_machines(const Membership& membership, const Environment& environment,
                                                 Engine& engine, Gather parent_round, InnerCommunicators inner) {
  environment.log.write(LogLevel::kInfo,
                        "all_reduce of {} KiB or more on GPU memory: the GPUs reduce within each machine, and the host "
                        "between the {} machines",
                        kLeastBytes >> 10, inner.rail_ranks.size());
  return std::make_unique<AcrossMachines>(membership, environment, engine, std::move(parent_round), std::move(inner));
}

}  // namespace tutti::detail
