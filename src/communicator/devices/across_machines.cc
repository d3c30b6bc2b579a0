#include "communicator/devices/across_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "device/native/device_call.h"
#include "device/native/device_resources.h"
#include "device/rank_device.h"
#include "job/job_context.h"

namespace tutti::detail {
namespace {

// Shorter calls run as a whole on the host. Estimated, not measured: decision 0032 has the reasons.
constexpr std::uint64_t kLeastBytes = 256 * 1024;

// How long part 2 continues after another rank of this machine has reported a failure. Both ranks may be waiting for
// the same third rank. Part 2 detects that within 2 s (kLostNs in engine/watchdog.cc), and then names the third rank.
constexpr std::int64_t kCauseNs = 3'000'000'000;

enum Part : std::size_t { kScatter, kReduce, kGather };
// For error messages.
constexpr std::array<std::string_view, 3> kPartNames = {"within the machine", "between the machines",
                                                        "within the machine"};

// What a rank contributes to a round of agreement.
constexpr std::string_view kAble = "1";
constexpr std::string_view kUnable = "0";

// Translates the rank of an error, which is one of an inner communicator.
Error in_ranks_of(Error error, const std::vector<std::uint32_t>& ranks) {
  if (error.rank >= 0 && static_cast<std::size_t>(error.rank) < ranks.size())
    error.rank = static_cast<std::int32_t>(ranks[static_cast<std::size_t>(error.rank)]);
  return error;
}

// Translates the error of a part into one of the whole call: its rank is one of the inner communicator.
Error whole_error(Error error, const std::vector<std::uint32_t>& ranks, std::string_view part) {
  runs_through([&] {
    error.message = fmt::format("all_reduce on several machines, {}: {}", part, error.message);
    if (error.rank < 0 || static_cast<std::size_t>(error.rank) >= ranks.size()) return;
    const std::uint32_t here = ranks[static_cast<std::size_t>(error.rank)];
    error.message += fmt::format(" (rank {} of this group is rank {} of the communicator)", error.rank, here);
  });
  return in_ranks_of(std::move(error), ranks);
}

// The id of an inner communicator: the same on all its ranks, and, for all practical purposes, different for each
// `number`. The function is the finalizer of the random generator SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t inner_id(std::uint64_t outer, std::uint64_t number) {
  std::uint64_t z = outer + (number + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Divides `count` elements among `ranks` ranks.
std::vector<std::size_t> shares_of(std::size_t count, std::size_t ranks) {
  std::vector<std::size_t> shares(ranks, count / ranks);
  for (std::size_t i = 0; i < count % ranks; ++i) ++shares[i];
  return shares;
}

// A round among some of the ranks that take part in `all`. `all` must outlive the result.
Gather among_some(const Gather& all, const std::vector<std::uint32_t>& some) {
  return Gather(
      [&all, some](const std::string& blob) -> Result<std::vector<std::string>> {
        auto blobs = all(blob);
        if (!blobs) return blobs.error();
        std::vector<std::string> chosen;
        for (const std::uint32_t rank : some) chosen.push_back((*blobs)[rank]);
        return chosen;
      },
      all.has_failed());
}

}  // namespace

bool AcrossCall::finished() {
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

Status AcrossCall::outcome() {
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

// Connects part 2, which the host carries out, with the parts that GPUs carry out. Part 2 and its copies in replays of
// a graph share it. Their streams' callbacks and the rail's driver call it, and these must never wait for the thread
// that puts work into a stream: the stream may be full until part 2 has ended.
class AcrossMachines::RailGuard final : public OperationGuard {
 public:
  explicit RailGuard(std::shared_ptr<AcrossShared> shared) : shared_(std::move(shared)) {}

  std::optional<Error> find_failure() override {
    const std::scoped_lock lock(shared_->mutex);
    if (shared_->owner == nullptr) return std::nullopt;  // the engine ends all operations
    auto found = shared_->owner->find_failure(failed_since_ns_);
    if (found) shared_->owner->end(whole_error(*found, shared_->machine, kPartNames[kScatter]));
    return found;
  }
  void failed(const Error& error) noexcept override {
    const std::scoped_lock lock(shared_->mutex);
    if (shared_->owner != nullptr) shared_->owner->end(whole_error(copy_of(error), shared_->rail, kPartNames[kReduce]));
  }

 private:
  const std::shared_ptr<AcrossShared> shared_;
  std::int64_t failed_since_ns_ = 0;  // since when a rank of this machine is known to have failed; 0: none has
};

AcrossMachines::AcrossMachines(std::unique_ptr<CommunicatorImpl> machine, std::unique_ptr<CommunicatorImpl> rail,
                               std::shared_ptr<AcrossShared> shared)
    : shared_(std::move(shared)), machine_(std::move(machine)), rail_(std::move(rail)) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->owner = this;
}

// If a call is still in a stream, its part 2 ends now, and its part 3 must not send anything.
AcrossMachines::~AcrossMachines() {
  set_abort_flag();
  const std::scoped_lock lock(shared_->mutex);
  shared_->owner = nullptr;
}

Error AcrossMachines::of_part(Error error, std::size_t part) const {
  return whole_error(std::move(error), part == kReduce ? shared_->rail : shared_->machine, kPartNames.at(part));
}

// The failure of a part within the machine, with a rank of the machine; nothing if there is none. `failed_since_ns`:
// since when a rank of the machine is known to have failed; 0 before.
std::optional<Error> AcrossMachines::find_failure(std::int64_t& failed_since_ns) {
  const std::shared_ptr<DeviceExecutor> executor = machine_->devices().executor();
  auto reported = executor == nullptr ? std::nullopt : executor->reported_failure();
  // A kernel that was aborted reports no cause, so look for a failed rank first. It has left no result, so part 2 must
  // not begin.
  const bool aborted = reported && reported->code == ErrorCode::kAborted;
  if (reported && !aborted) return reported;
  if (auto broken = machine_->engine().broken()) return broken;
  if (auto gone = find_gone_rank(failed_since_ns, aborted ? 0 : kCauseNs)) return gone;
  return reported;
}

// Returns an error if another rank of this machine has ended, left or failed. Part 2 does not exchange data with that
// rank, so only this check finds it. It cannot have completed the call, because part 3 needs the share of this rank.
// `cause_ns`: a rank that has failed is reported only after this time.
std::optional<Error> AcrossMachines::find_gone_rank(std::int64_t& failed_since_ns, std::int64_t cause_ns) const {
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

bool AcrossMachines::suits(CollectiveKind kind, std::uint64_t bytes) const {
  return kind == CollectiveKind::kAllReduce && bytes >= kLeastBytes && runs_on_devices();
}

Result<bool> AcrossMachines::takes(const CheckedCall& checked, const CallOptions& options) {
  const ReduceOp op = checked.call.op;
  // An average would be rounded once in each part, and a scale would be applied to sums.
  const bool plain = op == ReduceOp::kSum || op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (!suits(checked.collective.kind, checked.input_bytes) || !plain || options.algorithm != Algorithm::kAuto ||
      options.reduction.combine != nullptr)
    return false;
  const std::scoped_lock lock(machine_->submission_mutex());
  auto taken = machine_->devices().takes(checked, options);
  if (taken) return taken;
  Error error = of_part(taken.error(), kScatter);
  if (error.scope >= ErrorScope::kCommunicator) fail(error);
  return error;
}

Result<std::shared_ptr<Operation>> AcrossMachines::prepare(const CheckedCall& checked, const CallOptions& options) {
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
    const std::scoped_lock lock(inner.submission_mutex());
    auto made = inner.operations().prepare(call, options);
    if (!made) {
      Error error = of_part(made.error(), part);
      if (error.scope >= ErrorScope::kCommunicator) fail(error);
      return error;
    }
    parts[part] = std::move(*made);
  }
  if (!parts[kScatter]->on_device || !parts[kGather]->on_device) return std::shared_ptr<Operation>();
  auto& last = static_cast<DeviceCall&>(*parts[kGather]->start_condition);
  last.call.checks_abort = 1;
  last.copies.reset();                                      // copies do not look at the abort flag
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

Status AcrossMachines::submit_part(CommunicatorImpl& inner, const std::shared_ptr<Operation>& part) {
  return inner.guarded([&]() -> Status {
    {
      const std::scoped_lock lock(inner.submission_mutex());
      TUTTI_TRY(inner.submit(part, Engine::Progress::kInBackground));
    }
    // Does not wait, because the ranks of this process share no GPU.
    return inner.settle(*part);
  });
}

Status AcrossMachines::submit(const Operation& operation) {
  const auto& parts = static_cast<AcrossCall&>(*operation.start_condition).parts();
  if (rail_->engine().capacity() <= parts[kReduce]->rest.size()) {
    return invalid_argument("too many operations of this communicator are under way: wait for some of them first");
  }
  for (const Part part : {kScatter, kReduce, kGather}) {
    Status submitted = submit_part(part == kReduce ? *rail_ : *machine_, parts[part]);
    if (submitted.ok()) continue;
    Error error = of_part(std::move(submitted).error(), part);
    if (part == kScatter && error.scope < ErrorScope::kCommunicator) return error;
    fail(error);  // the other ranks make all three parts
    return *shared_->first_failure();
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

std::optional<Error> AcrossMachines::failure() {
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

void AcrossMachines::fail(Error error) noexcept {
  const std::scoped_lock lock(shared_->mutex);
  end(std::move(error));
}

// Does the work of fail(). Hold the mutex of shared_. The inner communicators get the error without its rank, because
// their ranks have other numbers. The LaunchGroup is not notified: its mutex may be held by a thread that waits for the
// stream. Its kernels see the abort flag.
void AcrossMachines::end(Error error) noexcept {
  error.scope = std::max(error.scope, ErrorScope::kCommunicator);
  if (!shared_->failure) shared_->failure = copy_of(error);
  set_abort_flag();
  Error inner = copy_of(error);
  inner.rank = -1;
  rail_->engine().fail(inner);
  machine_->engine().fail(inner);
  if (outer_ != nullptr) runs_through([&] { outer_->fail(error); });
}

void AcrossMachines::set_abort_flag() noexcept {
  if (const std::shared_ptr<DeviceExecutor> executor = machine_->devices().executor()) executor->set_abort_flag();
}

// First the rail: the machine's LaunchGroup may be held by a thread that waits for a stream, which waits for the rail.
void AcrossMachines::abort() {
  rail_->abort();
  machine_->abort();
}

// First the rail, because part 3 of each call follows part 2.
Status AcrossMachines::finish() {
  Status on_rail = rail_->finalize();
  Status in_machine = machine_->finalize();
  if (!on_rail.ok()) return of_part(std::move(on_rail).error(), kReduce);
  if (!in_machine.ok()) return of_part(std::move(in_machine).error(), kScatter);
  return {};
}

Status AcrossMachines::drain() {
  Status drained = machine_->devices().finish();
  return drained.ok() ? Status() : Status(of_part(std::move(drained).error(), kGather));
}

Status AcrossMachines::suspend() {
  Status status = machine_->devices().suspend();
  return status.ok() ? Status() : Status(in_ranks_of(std::move(status).error(), shared_->machine));
}

Status AcrossMachines::resume() {
  Status status = machine_->devices().resume();
  return status.ok() ? Status() : Status(in_ranks_of(std::move(status).error(), shared_->machine));
}

bool AcrossMachines::runs_on_devices() const { return machine_->devices().runs_on_devices(); }

std::uint64_t AcrossMachines::memory_use() const { return machine_->devices().memory_use(); }

bool needs_across_rounds(const JobContext& job_context) {
  const auto& machines = job_context.machines;
  return job_context.devices &&
         std::ranges::any_of(machines, [&](std::uint32_t machine) { return machine != machines.front(); });
}

namespace {

// Makes the AcrossMachines of one rank, in kAcrossRounds rounds.
class AcrossMaker {
 public:
  AcrossMaker(const Membership& outer, const Environment& environment, std::chrono::milliseconds timeout,
              const Gather& among)
      : outer_(outer),
        environment_(environment),
        timeout_(timeout),
        among_(
            [this, &among](const std::string& blob) {
              auto blobs = among(blob);
              if (!blobs) round_errors_.push_back(blobs.error());
              return blobs;
            },
            among.has_failed()) {}

  Result<std::unique_ptr<AcrossMachines>> make() {
    if (!find_ranks()) return std::unique_ptr<AcrossMachines>();
    auto machine = make_inner(shared_->machine, inner_id(outer_.id, environment_.nodes[outer_.rank]), true);
    const bool able = machine.ok() && (*machine)->devices().runs_on_devices() &&
                      (*machine)->devices().executor()->resources().settings().transfers && !shares_device();
    auto agreed = agree(machine.ok() ? Result<bool>(able) : in_outer_ranks(machine.error(), shared_->machine));
    if (!agreed) return agreed.error();
    if (!*agreed) return std::unique_ptr<AcrossMachines>();
    const std::uint64_t first_rail = outer_.ranks;  // machines have lower numbers
    auto rail = make_inner(shared_->rail, inner_id(outer_.id, first_rail + (*machine)->membership().rank), false);
    agreed = agree(rail.ok() ? Result<bool>(true) : in_outer_ranks(rail.error(), shared_->rail));
    if (!agreed) return agreed.error();
    environment_.log.write(LogLevel::kInfo,
                           "all_reduce of {} KiB or more on GPU memory: the GPUs reduce within each machine, and the "
                           "host between the {} machines",
                           kLeastBytes >> 10, shared_->rail.size());
    return std::make_unique<AcrossMachines>(*std::move(machine), *std::move(rail), shared_);
  }

 private:
  // Finds the ranks of this rank's machine, and those of its rail. Returns false if the machines have different numbers
  // of ranks, or one rank each, or if there is only one machine.
  bool find_ranks() {
    const std::vector<std::uint32_t>& nodes = environment_.nodes;  // machines are numbered 0, 1, ...
    if (nodes.empty()) return false;
    std::vector<std::vector<std::uint32_t>> machines(*std::ranges::max_element(nodes) + std::size_t{1});
    for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) machines[nodes[rank]].push_back(rank);
    const std::size_t size = machines.front().size();
    if (size < 2 || std::ranges::any_of(machines, [&](const auto& ranks) { return ranks.size() != size; }))
      return false;
    shared_->machine = machines[nodes[outer_.rank]];
    const auto me = std::ranges::find(shared_->machine, outer_.rank) - shared_->machine.begin();
    for (const auto& ranks : machines) shared_->rail.push_back(ranks[static_cast<std::size_t>(me)]);
    return true;
  }

  // Makes an inner communicator of `ranks`. `on_devices`: with the resources for calls on GPUs, if that is possible.
  Result<std::unique_ptr<CommunicatorImpl>> make_inner(const std::vector<std::uint32_t>& ranks, std::uint64_t id,
                                                       bool on_devices) {
    const JobContext& job_context = *outer_.job_context;
    Membership inner{.ranks = static_cast<std::uint32_t>(ranks.size()), .job_context = outer_.job_context, .id = id};
    for (const std::uint32_t rank : ranks) {
      if (rank == outer_.rank) inner.rank = static_cast<std::uint32_t>(inner.members.size());
      inner.members.push_back(outer_.members[rank]);
    }
    const int device = job_context.device == nullptr ? ProcessRanks::kUnknownDevice : job_context.device->number();
    inner.process_ranks = ProcessRanks::join(id, inner.rank, device);
    const Gather gather = among_some(among_, ranks);
    auto environment = make_environment(inner.job_context, inner.members, inner.rank, id, gather);
    if (!environment) return environment.error();
    std::unique_ptr<DeviceResources> resources;
    if (on_devices) {
      auto made = make_device_resources(job_context, inner.members, inner.rank, id, *environment, gather);
      if (!made) return made.error();
      resources = std::move(*made);
    }
    return std::make_unique<CommunicatorImpl>(std::move(inner), *std::move(environment), timeout_,
                                              std::move(resources));
  }

  // Translates the rank in an error of make_inner(). The errors of rounds name a rank of the outer communicator
  // already.
  Error in_outer_ranks(Error error, const std::vector<std::uint32_t>& ranks) const {
    const bool of_a_round = std::ranges::find(round_errors_, error) != round_errors_.end();
    return of_a_round ? error : in_ranks_of(std::move(error), ranks);
  }

  // Whether another rank of this process has the same GPU: the parts would then wait for it. It can be a rank of
  // another machine, because node ids can divide one machine into several.
  bool shares_device() const { return outer_.process_ranks->share_device(); }

  // A round of all ranks. Returns whether all of them are able to go on.
  Result<bool> agree(const Result<bool>& able) {
    Result<std::string> contribution = std::string(able.ok() && *able ? kAble : kUnable);
    if (!able) {
      Error error = able.error();
      // The error is about another rank, which also reports it. See gather_or_fail().
      if (error.rank >= 0 && error.rank != static_cast<std::int32_t>(outer_.rank)) error.code = ErrorCode::kPeerLost;
      contribution = std::move(error);
    }
    auto all = gather_or_fail(among_, contribution);
    if (!all) return all.error();
    return std::ranges::all_of(*all, [](const std::string& one) { return one == kAble; });
  }

  const Membership& outer_;
  const Environment& environment_;
  const std::chrono::milliseconds timeout_;
  const Gather among_;
  std::vector<Error> round_errors_;  // the errors of rounds so far
  const std::shared_ptr<AcrossShared> shared_ = std::make_shared<AcrossShared>();
};

}  // namespace

Result<std::unique_ptr<AcrossMachines>> make_across_machines(const Membership& outer, const Environment& environment,
                                                             std::chrono::milliseconds timeout, const Gather& among) {
  static_assert(kAcrossRounds == 2 * kEnvironmentRounds + kDeviceRounds + 2);
  if (!needs_across_rounds(*outer.job_context)) return std::unique_ptr<AcrossMachines>();
  return AcrossMaker(outer, environment, timeout, among).make();
}

}  // namespace tutti::detail
