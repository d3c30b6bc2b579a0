// CommunicatorImpl: construction, callers' plans, blocking and non-blocking calls, sends and receives, and
// registered host memory. The steps that turn a call into an operation are in communicator_prepare.cc, those for
// GPUs in communicator_device.cc.
#include "tutti/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "base/exceptions.h"
#include "communicator/communicator_impl.h"
#include "communicator/user_plan.h"
#include "membership/consensus_participant.h"
#include "membership/survivor_rendezvous.h"
#include "plan/collective.h"
#include "selection/algorithm_selector.h"
#include "transports/shm/mapping.h"

namespace tutti::detail {
namespace {

// WorkImpl::wait() on several operations yields this often between polls; after that it sleeps.
constexpr std::uint32_t kRoundsBeforeSleep = 200;
constexpr std::chrono::microseconds kSleep{100};
constexpr std::size_t kMostUserPlans = 256;
// For run_short_call(): the longest block, in bytes. For longer blocks the time of preparation is negligible.
constexpr std::size_t kMostShortBytes = 256 * 1024;

}  // namespace

void WorkImpl::add(Engine& engine, const std::shared_ptr<Operation>& operation, std::vector<Part>& parts) {
  parts.push_back({.engine = &engine, .operation = operation});
  for (const auto& segment : operation->rest) parts.push_back({.engine = &engine, .operation = segment});
}

Status WorkImpl::wait() {
  const bool one = parts_.size() == 1 && parts_[0].operation->start_condition == nullptr;
  if (one && !done(parts_[0])) return parts_[0].engine->wait(*parts_[0].operation);
  for (std::uint32_t round = 0; !test(); ++round) {
    if (round < kRoundsBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  for (const Part& part : parts_) {
    TUTTI_TRY(part.operation->result);
    if (part.operation->start_condition != nullptr) TUTTI_TRY(part.operation->start_condition->outcome());
  }
  return {};
}

bool WorkImpl::test() {
  bool all = true;
  for (const Part& part : parts_) {
    const bool ended = done(part) || part.engine->test(*part.operation);
    const bool finished = part.operation->start_condition == nullptr ||
                          // The call of finished() makes progress, so every part gets one.
                          part.operation->start_condition->finished();
    all &= ended && finished;
  }
  return all;
}

CommunicatorImpl::CommunicatorImpl(std::uint32_t rank, std::uint32_t ranks, Environment environment,
                                   std::chrono::milliseconds timeout, std::shared_ptr<JobContext> job_context,
                                   std::vector<std::uint32_t> members, std::unique_ptr<DeviceResources> devices,
                                   std::uint64_t id)
    : rank_(rank),
      ranks_(ranks),
      job_context_(std::move(job_context)),
      members_(std::move(members)),
      id_(id),
      environment_(std::move(environment)),
      timeout_(timeout),
      connections_(*environment_.transport),
      uniform_(job_context_ != nullptr && job_context_->config.uniform && ranks > 1),
      selector_({.tuning = job_context_ == nullptr ? nullptr : job_context_->tuning,
                 .ranks = ranks,
                 .nodes = environment_.nodes,
                 .cores = environment_.cores,
                 .memory = environment_.transport->shares_memory(),
                 .mailboxes = environment_.transport->mailboxes() != nullptr,
                 .attachment = environment_.transport->attachment(),
                 .slots = environment_.transport->slots(),
                 .slot_bytes = environment_.transport->slot_bytes()}),
      driver_loaded_(cuda::Driver::loaded() != nullptr),
      device_executor_(devices == nullptr ? nullptr
                                          : std::make_unique<DeviceExecutor>(std::move(devices), rank, ranks,
                                                                             *environment_.plan_cache)),
      segmentation_(job_context_ != nullptr && job_context_->devices && device_executor_ == nullptr
                        ? Segmentation::kLongCalls
                        : Segmentation::kNone),
      engine_(rank, ranks, environment_, connections_, segmentation_) {
  listen_to_devices();
}

CommunicatorImpl::~CommunicatorImpl() = default;

Error CommunicatorImpl::end_by_exception() noexcept {
  Error error = error_of_exception(ErrorScope::kCommunicator, static_cast<std::int32_t>(rank_),
                                   "an internal failure of this rank");
  {
    const std::scoped_lock lock(device_mutex_);
    if (device_executor_ != nullptr) device_executor_->fail(error);
  }
  engine_.fail(error);
  engine_.end_all();  // the caller gets an error and may free its buffers, so nothing may use them any more
  return error;
}

std::unique_ptr<Communicator> CommunicatorImpl::wrap(std::unique_ptr<CommunicatorImpl> impl) {
  // The constructor is private, so make_unique cannot be used.
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

Status CommunicatorImpl::use_plan(const UserPlan& plan, const PlanUse& use) {
  Status used = take_plan(plan, use);
  if (used) return used;
  Error error = std::move(used).error();
  error.message =
      fmt::format("use_plan{}: {}", plan.name().empty() ? "" : fmt::format(" \"{}\"", plan.name()), error.message);
  return error;
}

Status CommunicatorImpl::take_plan(const UserPlan& plan, const PlanUse& use) {
  const Generator generator = UserPlanData::generator(plan);
  const Collective& collective = generator.shape.collective;
  if (collective.ranks != ranks_) {
    return invalid_argument(
        fmt::format("the plan is for {} ranks, this communicator has {}", collective.ranks, ranks_));
  }
  if (!collective.nodes.empty() && collective.nodes != environment_.nodes) {
    return invalid_argument(
        "the plan was made for another assignment of ranks to machines: leave out its \"nodes\", or run it on the "
        "machines that it was made for");
  }
  if (use.min_bytes > use.max_bytes) {
    return invalid_argument(fmt::format("min_bytes {} is greater than max_bytes {}", use.min_bytes, use.max_bytes));
  }
  const std::scoped_lock lock(mutex_);
  if (user_plans_.size() >= kMostUserPlans) {
    return invalid_argument(fmt::format("a communicator takes at most {} plans", kMostUserPlans));
  }
  const ChosenPlan chosen{.plan = plan, .use = use};
  auto bound = plan_for(collective, Algorithm::kUser, &chosen);
  if (!bound) return bound.error();
  user_plans_.push_back(chosen);
  return {};
}

// Returns the caller's plan that this call uses, or null.
const CommunicatorImpl::ChosenPlan* CommunicatorImpl::find_user_plan(const Collective& collective, std::uint64_t bytes,
                                                                     Algorithm asked) const {
  if (asked != Algorithm::kAuto && asked != Algorithm::kUser) return nullptr;
  for (std::size_t i = user_plans_.size(); i-- > 0;) {  // the plan that was given last takes precedence
    const ChosenPlan& chosen = user_plans_[i];
    const PlanDescription about = chosen.plan.description();
    if (about.collective != collective.kind || about.root != collective.root) continue;
    if (asked == Algorithm::kUser || (bytes >= chosen.use.min_bytes && bytes <= chosen.use.max_bytes)) return &chosen;
  }
  return nullptr;
}

Result<Generator> CommunicatorImpl::generator_for(const Collective& collective, Algorithm algorithm,
                                                  const ChosenPlan* chosen) const {
  if (chosen != nullptr) return UserPlanData::generator(chosen->plan);
  return find_generator(collective, algorithm);
}

Result<std::unique_ptr<BoundPlan>> CommunicatorImpl::make_plan(const Collective& collective, Algorithm algorithm,
                                                               const ChosenPlan* chosen) {
  auto generator = generator_for(collective, algorithm, chosen);
  if (!generator) return generator.error();
  if (chosen == nullptr)
    // A plan of the caller was already proved when it was built or read.
    TUTTI_TRY(environment_.plan_cache->prove(*generator));
  return bind(*generator, rank_, *environment_.transport);
}

Result<BoundPlan*> CommunicatorImpl::plan_for(const Collective& collective, Algorithm algorithm,
                                              const ChosenPlan* chosen) {
  const PlanKey key{.kind = collective.kind,
                    .algorithm = algorithm,
                    .root = collective.root,
                    .digest = chosen == nullptr ? 0 : chosen->plan.digest()};
  if (last_plan_ != nullptr && key == last_key_) return last_plan_;
  std::unique_ptr<BoundPlan>& plan = plans_[key];
  if (plan == nullptr) {
    auto made = make_plan(collective, algorithm, chosen);
    if (!made) return made.error();
    plan = std::move(*made);
  }
  last_key_ = key;
  last_plan_ = plan.get();
  return last_plan_;
}

std::int64_t CommunicatorImpl::timeout_ns(const CallOptions& options) const {
  const std::chrono::milliseconds timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
  return std::int64_t{std::min(timeout, kLongestTimeout).count()} * 1'000'000;
}

bool CommunicatorImpl::open_group(std::thread::id thread) {
  if (std::find(group_threads_.begin(), group_threads_.end(), thread) != group_threads_.end()) return false;
  group_threads_.push_back(thread);
  return true;
}

// Refuses a call on this communicator while the calling thread has a Group with calls for it: the order of this call
// and the calls of the group would be unclear. Calls of other threads are not affected, because their order is up to
// the caller anyway. Hold the submission mutex.
Status CommunicatorImpl::refuse_in_group() const {
  if (group_threads_.empty()) return {};
  const auto own = std::find(group_threads_.begin(), group_threads_.end(), std::this_thread::get_id());
  if (own == group_threads_.end()) return {};
  return invalid_argument(
      "a Group of this thread holds calls on this communicator: run() or drop the group first, or add this call to it");
}

// The fastest path for short calls. It applies if the arguments are certainly valid, a plan for this type of
// collective has already been proved and used, and nothing else is in progress. Otherwise it returns nothing, and
// the caller continues with prepare() and submit(), which also report an invalid argument.
std::optional<Status> CommunicatorImpl::run_short_call(const CollectiveCall& call, const CallOptions& options,
                                                       std::unique_lock<std::mutex>& lock) {
  if (static_cast<std::size_t>(call.kind) >= short_plans_.size() || call.variable) return std::nullopt;
  ShortPlans& plans = short_plans_[static_cast<std::size_t>(call.kind)];
  if (plans.by_mailbox == nullptr && plans.direct == nullptr) return std::nullopt;
  if (!user_plans_.empty() || options.reduction.combine != nullptr || options.timeout.count() < 0) return std::nullopt;
  if (!is_valid(call.type) || !is_valid(call.op) || call.op == ReduceOp::kPreMulSum) return std::nullopt;
  const std::size_t element_bytes = size_of(call.type);
  const std::size_t count = call.kind == CollectiveKind::kBarrier ? 0 : call.count;
  if (count > kMostShortBytes / element_bytes || (count == 0 && call.kind != CollectiveKind::kBarrier)) {
    return std::nullopt;
  }
  const std::size_t bytes = count * element_bytes;
  const Collective& collective = (plans.by_mailbox != nullptr ? plans.by_mailbox : plans.direct)->shape.collective;
  Selection chosen{.algorithm = options.algorithm};
  if (chosen.algorithm == Algorithm::kAuto) {
    if (plans.chosen.algorithm == Algorithm::kAuto || plans.chosen_bytes != bytes) {
      plans.chosen = selector_.choose(collective, {.bytes = bytes, .attached = true});
      plans.chosen_bytes = bytes;
    }
    chosen = plans.chosen;
  }
  const Algorithm algorithm = chosen.algorithm;
  const bool by_mailbox = InlineCollective::takes(collective, algorithm, bytes);
  if (!by_mailbox && !SingleCopyCollective::takes(collective, algorithm, call.op)) return std::nullopt;
  BoundPlan* plan = by_mailbox ? plans.by_mailbox : plans.direct;
  if (plan == nullptr || plan->shape.algorithm != algorithm) return std::nullopt;
  const std::uint32_t root = plan->shape.collective.root;
  if (has_root(call.kind) && call.root != static_cast<std::int32_t>(root)) return std::nullopt;
  const std::size_t input_bytes = input_blocks(plan->shape.collective, rank_).count * bytes;
  const std::size_t output_bytes = output_blocks(plan->shape.collective, rank_).count * bytes;
  if (options.stream || (driver_loaded_ && (HostStaging::is_device_memory(call.input, input_bytes) ||
                                            HostStaging::is_device_memory(call.output, output_bytes)))) {
    return std::nullopt;
  }
  const auto from = reinterpret_cast<std::uintptr_t>(call.input);
  const auto to = reinterpret_cast<std::uintptr_t>(call.output);
  if (input_bytes > 0 && (from == 0 || from % element_bytes != 0)) return std::nullopt;
  if (output_bytes > 0 && (to == 0 || to % element_bytes != 0)) return std::nullopt;
  const bool overlap = from < to + output_bytes && to < from + input_bytes;
  if (overlap && (from != to || input_bytes != output_bytes)) return std::nullopt;
  Call made;
  made.tag = {.count = count,
              .kind = static_cast<std::uint8_t>(call.kind),
              .type = static_cast<std::uint8_t>(type_of(call)),
              .op = static_cast<std::uint8_t>(op_of(call)),
              .algorithm = static_cast<std::uint8_t>(algorithm),
              .tile_bytes = tile_bytes_of(chosen),
              .root = root};
  made.type = call.type;
  made.element_bytes = element_bytes;
  made.op = op_of(call);
  made.lengths.count = count;
  made.in_place = overlap;
  made.input = static_cast<const std::byte*>(call.input);
  made.output = static_cast<std::byte*>(call.output);
  if (!by_mailbox) {
    made.input_window = environment_.transport->find_window(made.input, input_bytes);
    made.output_window = environment_.transport->find_window(made.output, output_bytes);
  }
  const auto path = by_mailbox ? Engine::ShortPath::kInline : Engine::ShortPath::kSingleCopy;
  return engine_.run_short(path, *plan, made, timeout_ns(options), lock);
}

Status CommunicatorImpl::run_plain(const CollectiveCall& call, const CallOptions& options) {
  std::shared_ptr<Operation> operation;  // shared with the engine's queue
  {
    std::unique_lock lock(mutex_);
    TUTTI_TRY(refuse_in_group());
    if (auto status = run_short_call(call, options, lock)) return *status;
    auto prepared = prepare(call, options);
    if (!prepared) return prepared.error();
    operation = std::move(*prepared);
    TUTTI_TRY(submit(operation, Engine::Progress::kByCaller));
  }
  if (operation->start_condition != nullptr) return settle(*operation);
  Status result = engine_.wait(*operation);
  // Wait for all of them even if one fails, because they use the caller's buffers until they have ended.
  for (const auto& segment : operation->rest) {
    Status one = engine_.wait(*segment);
    if (result.ok()) result = std::move(one);
  }
  return result;
}

Result<Work> CommunicatorImpl::start(const CollectiveCall& call, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  TUTTI_TRY(refuse_in_group());
  auto prepared = prepare(call, options);
  if (!prepared) return prepared.error();
  return submit_work(*prepared);
}

// The Work is made first, because nothing may fail once the operation uses the caller's buffers.
Result<Work> CommunicatorImpl::submit_work(const std::shared_ptr<Operation>& operation) {
  std::vector<WorkImpl::Part> parts;
  WorkImpl::add(engine_, operation, parts);
  Work work(std::make_shared<WorkImpl>(std::move(parts)));
  TUTTI_TRY(submit(operation, Engine::Progress::kInBackground));
  TUTTI_TRY(settle(*operation));
  return work;
}

Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare_transfer(Direction direction, const void* data,
                                                                      std::size_t count, DataType type,
                                                                      std::int32_t peer, const CallOptions& options) {
  auto checked = check_transfer(direction, data, count, type, peer, caller());
  if (!checked) return checked.error();
  if (checked->peer == rank_) {
    return invalid_argument(
        fmt::format("rank {} cannot wait for itself: put the send and the receive into one Group", peer));
  }
  TUTTI_TRY(refuse_in_group());
  return prepare_exchange({.transfers = {*checked}, .own = {}}, options);
}

Status CommunicatorImpl::transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                  std::int32_t peer, const CallOptions& options) {
  std::shared_ptr<Operation> operation;  // shared with the engine's queue
  {
    const std::scoped_lock lock(mutex_);
    auto prepared = prepare_transfer(direction, data, count, type, peer, options);
    if (!prepared) return prepared.error();
    operation = std::move(*prepared);
    TUTTI_TRY(submit(operation, Engine::Progress::kByCaller));
  }
  return operation->start_condition == nullptr ? engine_.wait(*operation) : Status();
}

Result<Work> CommunicatorImpl::start_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                              std::int32_t peer, const CallOptions& options) {
  const std::scoped_lock lock(mutex_);
  auto prepared = prepare_transfer(direction, data, count, type, peer, options);
  if (!prepared) return prepared.error();
  return submit_work(*prepared);
}

Collective CommunicatorImpl::collective_of(CollectiveKind kind) const {
  Collective collective;
  collective.kind = kind;
  collective.ranks = ranks_;
  collective.nodes = environment_.nodes;
  return collective;
}

namespace {

std::uint64_t block_bytes(CollectiveKind kind, std::size_t count, DataType type) {
  if (kind == CollectiveKind::kBarrier) return 0;
  const std::size_t element_bytes = std::max<std::size_t>(size_of(type), 1);
  return std::min(count, kMaxBytes / element_bytes) * element_bytes;
}

}  // namespace

Algorithm CommunicatorImpl::auto_algorithm(CollectiveKind kind, std::size_t count, DataType type) {
  const Collective collective = collective_of(kind);
  const std::uint64_t bytes = block_bytes(kind, count, type);
  const std::scoped_lock lock(mutex_);
  if (find_user_plan(collective, bytes, Algorithm::kAuto) != nullptr) return Algorithm::kUser;
  return selector_.choose(collective, {.bytes = bytes, .attached = true}).algorithm;
}

std::optional<double> CommunicatorImpl::predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                                     Algorithm algorithm) {
  const Collective collective = collective_of(kind);
  const SelectionQuery choice{.bytes = block_bytes(kind, count, type), .attached = true};
  const std::scoped_lock lock(mutex_);
  Selection chosen{.algorithm = algorithm};
  if (algorithm == Algorithm::kAuto) {
    if (find_user_plan(collective, choice.bytes, Algorithm::kAuto) != nullptr) return std::nullopt;
    chosen = selector_.choose(collective, choice);
  }
  if (device_executor_ != nullptr || algorithm == Algorithm::kUser) return std::nullopt;
  return selector_.predict(collective, choice, chosen);
}

Result<Memory> CommunicatorImpl::allocate(std::size_t bytes) {
  if (bytes == 0) return invalid_argument("0 bytes cannot be allocated");
  if (bytes > kMaxBytes) return invalid_argument(fmt::format("{} bytes are more than any memory holds", bytes));
  auto window = environment_.transport->allocate_window(bytes);
  if (!window) return window.error();
  return Memory(std::make_unique<MemoryImpl>(std::move(*window), bytes));
}

Result<Memory> CommunicatorImpl::register_memory(void* data, std::size_t bytes) {
  if (data == nullptr || bytes == 0)
    return invalid_argument("there is no memory to register: data is null or bytes is 0");
  if (bytes <= kMaxBytes && HostStaging::is_device_memory(data, bytes)) return register_on_device(data, bytes);
  const std::size_t page = page_size();
  if (reinterpret_cast<std::uintptr_t>(data) % page != 0 || bytes % page != 0 || bytes > kMaxBytes) {
    return invalid_argument(
        fmt::format("{} bytes at {} are not whole pages of {} bytes: align with aligned_alloc, or use allocate()",
                    bytes, data, page));
  }
  auto window = environment_.transport->adopt_window(data, bytes);
  if (!window) return window.error();
  return Memory(std::make_unique<MemoryImpl>(std::move(*window), bytes));
}

}  // namespace tutti::detail
