#include "communicator/operation_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "engine/segments.h"
#include "plan/collective.h"

namespace tutti::detail {
namespace {

// For run_short(): the longest block, in bytes. For longer blocks the time of preparation is negligible.
constexpr std::size_t kMostShortBytes = 256 * 1024;

// The part of a call that one segment consists of.
CheckedCall segment_of(const CheckedCall& whole, const Segment& segment) {
  // The copy includes the tag of the whole call, which holds the arguments that must be the same on all ranks.
  CheckedCall part = whole;
  const std::size_t offset = segment.first * whole.call.element_bytes;
  const std::size_t bytes = segment.count * whole.call.element_bytes;
  part.call.lengths.count = segment.count;
  if (whole.input_bytes > 0) {
    part.call.input += offset;
    part.input_bytes = bytes;
  }
  if (whole.output_bytes > 0) {
    part.call.output += offset;
    part.output_bytes = bytes;
  }
  return part;
}

// Whether the ranks may access each other's buffers directly in this call (single copy).
bool may_be_attached(const Call& call) {
  return call.user.combine == nullptr && call.op != ReduceOp::kPreMulSum && call.lengths.counts.empty();
}

std::uint64_t block_bytes(CollectiveKind kind, std::size_t count, DataType type) {
  if (!has_data(kind)) return 0;
  const std::size_t element_bytes = std::max<std::size_t>(size_of(type), 1);
  return std::min(count, kMaxBytes / element_bytes) * element_bytes;
}

SelectorOptions selector_options(const Membership& membership, const Environment& environment) {
  return {.tuning = membership.job_context == nullptr ? nullptr : membership.job_context->tuning,
          .ranks = membership.ranks,
          .nodes = environment.nodes,
          .cores = environment.cores,
          .choices = environment.choices,
          .memory = environment.transport->shares_memory(),
          .mailboxes = environment.transport->mailboxes() != nullptr,
          .attachment = environment.transport->attachment(),
          .slots = environment.transport->slots(),
          .slot_bytes = environment.transport->slot_bytes()};
}

}  // namespace

OperationBuilder::OperationBuilder(const Membership& membership, Environment& environment,
                                   const std::unique_ptr<DeviceSide>& devices, Engine& engine,
                                   std::chrono::milliseconds timeout, Segmentation segmentation)
    : membership_(membership),
      environment_(environment),
      devices_(devices),
      engine_(engine),
      timeout_(timeout),
      segmentation_(segmentation),
      plans_(membership.rank, membership.ranks, environment),
      selector_(selector_options(membership, environment)),
      driver_loaded_(cuda::Driver::loaded() != nullptr) {}

Result<std::shared_ptr<Operation>> OperationBuilder::prepare(const CollectiveCall& call, const CallOptions& options) {
  if (is_exchange(call)) {  // a v-variant that runs as sends and receives: all_to_all_v, gather_v and scatter_v
    auto exchange = check_exchange(call, options, membership_.caller());
    if (!exchange) return exchange.error();
    return prepare_exchange(std::move(*exchange), options);
  }
  CheckedCall checked;
  TUTTI_TRY(check_call(checked, call, options, membership_.caller()));
  return prepare_collective(std::move(checked), options);
}

// Stages the buffers of a call through host memory. Returns null if they are host memory already or have no bytes.
template <class Checked>
Result<std::shared_ptr<StartCondition>> OperationBuilder::staged_for(Checked& checked, const CallOptions& options) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) {
    if (!options.stream) return std::shared_ptr<StartCondition>();
    return invalid_argument(
        "a stream was given, but this process has not loaded the CUDA driver, so the pointer cannot be a stream");
  }
  if (host_staging_ == nullptr)
    host_staging_ =
        std::make_unique<HostStaging>(*driver, *environment_.transport, environment_.log, membership_.process_ranks);
  driver_loaded_ = true;
  auto staged = host_staging_->stage(checked, options);
  if (staged) return std::shared_ptr<StartCondition>(std::move(*staged));
  if (staged.error().scope == ErrorScope::kProcess) engine_.fail(staged.error());
  return staged.error();
}

Result<std::shared_ptr<Operation>> OperationBuilder::prepare_collective(CheckedCall&& checked,
                                                                        const CallOptions& options) {
  checked.collective.nodes = environment_.nodes;
  const bool variable = !checked.call.lengths.counts.empty();
  const std::uint64_t bytes = checked.call.tag.count / (variable ? membership_.ranks : 1) * checked.call.element_bytes;
  const bool in_rank_order = options.reduction.combine != nullptr && !options.reduction.commutative;
  if (auto broken = engine_.broken()) return *broken;
  // Calls that Tutti makes for itself do not use plans of the program.
  const PlanTable::ChosenPlan* chosen =
      purpose_of(checked.call.tag) == CallPurpose::kApplication
          ? plans_.find_user_plan(checked.collective, bytes, options.algorithm, variable)
          : nullptr;
  if (chosen == nullptr && options.algorithm == Algorithm::kUser) {
    return invalid_argument(fmt::format("no plan was given for {} with this root: call use_plan() first",
                                        to_string(checked.collective.kind)));
  }
  Result<bool> on_device = false;
  if (!follows_rule_on_host(checked.collective, bytes)) on_device = devices_->takes(checked, options);
  if (!on_device) return on_device.error();
  Selection selection{.algorithm = chosen != nullptr ? Algorithm::kUser : options.algorithm};
  if (selection.algorithm == Algorithm::kAuto) {
    selection = selector_.choose(checked.collective, {.bytes = bytes,
                                                      .in_rank_order = in_rank_order,
                                                      .gpus = *on_device ? devices_->gpu_use() : GpuUse::kNone,
                                                      .attached = may_be_attached(checked.call)});
  }
  const Algorithm algorithm = selection.algorithm;
  if (*on_device) {
    auto operation = devices_->prepare(checked, options, algorithm, chosen, timeout_ns(options.timeout, timeout_));
    if (operation && *operation != nullptr) (*operation)->call.label = options.label;
    if (!operation || *operation != nullptr) return operation;
  }
  const std::uint32_t tile_bytes = tile_bytes_of(selection);
  const Messages messages =
      variable ? Messages::kOneChunk : messages_for(checked.collective, bytes, {tile_bytes, selector_.shares_memory()});
  auto plan = plans_.bound_plan(checked.collective, algorithm, messages, chosen);
  if (!plan) return plan.error();
  if (variable && (*plan)->shape.longest_run > 1) {
    return Error{
        .code = ErrorCode::kUnsupported,
        .message = fmt::format("the caller's plan has runs of up to {} chunks, and such plans do not run calls with "
                               "a length for each block ({}_v)",
                               (*plan)->shape.longest_run, to_string(checked.collective.kind))};
  }
  if (chosen != nullptr) TUTTI_TRY(PlanTable::check_run((*plan)->shape, tile_bytes, checked.call.element_bytes));
  if (in_rank_order && (*plan)->shape.order != Order::kByRank) {
    return invalid_argument(
        fmt::format("{} of {} ranks does not combine them in rank order, which this reduction needs",
                    to_string(algorithm), membership_.ranks));
  }
  checked.call.tag.algorithm = static_cast<std::uint8_t>(algorithm);
  if (chosen != nullptr) checked.call.tag.digest ^= chosen->plan.digest();
  checked.call.tag.tile_bytes = tile_bytes;
  if (segmentation_ == Segmentation::kLongCalls && may_be_segmented(checked.call.tag) &&
      same_in_segments((*plan)->shape)) {
    return make_segments(checked, options, **plan);
  }
  return make_operation(std::move(checked), options, **plan, bytes);
}

// Whether a call could run in parts on the GPUs of several machines, but TUTTI_TUNE names an algorithm for it.
bool OperationBuilder::follows_rule_on_host(const Collective& collective, std::uint64_t bytes) const {
  return devices_->runs_in_parts(collective.kind, bytes) && selector_.has_rule(collective, {.bytes = bytes});
}

// Cuts a long call into segments, one operation each. Returns the first segment, which holds the others.
Result<std::shared_ptr<Operation>> OperationBuilder::make_segments(const CheckedCall& whole, const CallOptions& options,
                                                                   BoundPlan& plan) {
  std::shared_ptr<Operation> head;
  for (const Segment& segment : split_into_segments(whole.call.lengths.count, whole.call.element_bytes)) {
    auto made = make_operation(segment_of(whole, segment), options, plan, segment.count * whole.call.element_bytes);
    if (!made) return made.error();
    if (head == nullptr) {
      head = std::move(*made);
    } else {
      (*made)->follows = true;
      head->rest.push_back(std::move(*made));
    }
  }
  return head;
}

// Makes the operation of a call, or of one segment. The call's tag is complete except for the sequence number.
// `bytes`: length of one block.
Result<std::shared_ptr<Operation>> OperationBuilder::make_operation(CheckedCall checked, const CallOptions& options,
                                                                    BoundPlan& plan, std::uint64_t bytes) {
  auto staged = staged_for(checked, options);
  if (!staged) return staged.error();
  auto operation = std::make_shared<Operation>();
  const Algorithm algorithm{checked.call.tag.algorithm};
  const bool may_be_short = algorithm != Algorithm::kUser && options.reduction.combine == nullptr &&
                            checked.call.lengths.counts.empty() && environment_.transport->mailboxes() != nullptr;
  operation->plan = &plan;
  operation->by_mailbox = may_be_short && InlineCollective::takes(checked.collective, algorithm, bytes);
  operation->direct = may_be_short && !operation->by_mailbox &&
                      SingleCopyCollective::takes(checked.collective, algorithm, checked.call.op);
  ShortPlans& short_plans = short_plans_[static_cast<std::size_t>(checked.collective.kind)];
  if (operation->by_mailbox && short_plans.by_mailbox != &plan) short_plans = {&plan, short_plans.direct};
  if (operation->direct && short_plans.direct != &plan) short_plans = {short_plans.by_mailbox, &plan};
  operation->timeout_ns = timeout_ns(options.timeout, timeout_);
  operation->start_condition = std::move(*staged);
  operation->call = std::move(checked.call);
  Call& made = operation->call;
  made.input_window = environment_.transport->find_window(made.input, checked.input_bytes);
  // Peers that store directly into an output assume that its blocks are contiguous, so an output with displacements
  // gets no window.
  if (made.lengths.displacements.empty()) {
    made.output_window = environment_.transport->find_window(made.output, checked.output_bytes);
  }
  return operation;
}

// Chooses the algorithm, unless `algorithm` names it, and decides whether and how a call of `bytes` bytes runs without
// messages: by mailbox or by single copy.
OperationBuilder::ShortChoice OperationBuilder::choose_short(const ShortPlans& plans, std::size_t bytes,
                                                             Algorithm algorithm) {
  const Collective& collective = (plans.by_mailbox != nullptr ? plans.by_mailbox : plans.direct)->shape.collective;
  Selection selection{.algorithm = algorithm};
  if (algorithm == Algorithm::kAuto) selection = selector_.choose(collective, {.bytes = bytes, .attached = true});
  const bool by_mailbox = InlineCollective::takes(collective, selection.algorithm, bytes);
  // The ReduceOp is not kPreMulSum (may_be_attached()), and takes() treats all others alike.
  if (!by_mailbox && !SingleCopyCollective::takes(collective, selection.algorithm, ReduceOp::kSum)) return {};
  BoundPlan* const plan = by_mailbox ? plans.by_mailbox : plans.direct;
  if (plan == nullptr || plan->shape.algorithm != selection.algorithm) return {};
  return {.plan = plan,
          .path = by_mailbox ? Engine::ShortPath::kInline : Engine::ShortPath::kSingleCopy,
          .tile_bytes = tile_bytes_of(selection)};
}

// Whether a buffer of the call may be device memory. Until the CUDA driver is loaded, none is, but Driver::loaded()
// must look whether a library was loaded in the meantime. That takes some tens of nanoseconds, and more than a
// microsecond if two threads look at the same time, because the dynamic loader has a mutex. Therefore the builder
// remembers the regions of 2 MiB in which host buffers were, and looks only for buffers in other regions. CUDA reserves
// addresses for device memory in units of at least 2 MiB, so a region has either host or device memory. A region could
// only change if the program unmapped all of its host memory and the driver, loaded after that, reserved the same
// addresses.
bool OperationBuilder::may_be_on_device(const CheckedCall& checked) {
  if (!driver_loaded_) {
    const auto region_of = [](const std::byte* data, std::size_t bytes) {
      return bytes > 0 ? reinterpret_cast<std::uintptr_t>(data) >> 21 : 0;
    };
    const HostRegions regions{.input = region_of(checked.call.input, checked.input_bytes),
                              .output = region_of(checked.call.output, checked.output_bytes)};
    HostRegions& known = host_regions_[(regions.input * 31 + regions.output) % host_regions_.size()];
    if (known == regions) return false;
    driver_loaded_ = cuda::Driver::loaded() != nullptr;
    if (!driver_loaded_) {
      known = regions;
      return false;
    }
  }
  return HostStaging::is_device_memory(checked.call.input, checked.input_bytes) ||
         HostStaging::is_device_memory(checked.call.output, checked.output_bytes);
}

std::optional<Status> OperationBuilder::run_short(CheckedCall& checked, const CallOptions& options,
                                                  std::unique_lock<std::mutex>& submission) {
  const CollectiveKind kind = checked.collective.kind;
  ShortPlans& plans = short_plans_[static_cast<std::size_t>(kind)];
  if (plans.by_mailbox == nullptr && plans.direct == nullptr) return std::nullopt;
  Call& call = checked.call;
  if (plans_.has_user_plans() || !may_be_attached(call)) return std::nullopt;
  const std::size_t bytes = call.lengths.count * call.element_bytes;
  if (bytes > kMostShortBytes || (bytes == 0 && has_data(kind))) return std::nullopt;
  ShortChoice choice;
  if (options.algorithm != Algorithm::kAuto) {
    choice = choose_short(plans, bytes, options.algorithm);
  } else {
    if (!plans.chosen || plans.chosen_bytes != bytes) {
      plans.chosen = choose_short(plans, bytes, Algorithm::kAuto);
      plans.chosen_bytes = bytes;
    }
    choice = *plans.chosen;
  }
  if (choice.plan == nullptr || choice.plan->shape.collective.root != checked.collective.root) return std::nullopt;
  if (options.stream || may_be_on_device(checked)) return std::nullopt;
  call.tag.algorithm = static_cast<std::uint8_t>(choice.plan->shape.algorithm);
  call.tag.tile_bytes = choice.tile_bytes;
  if (choice.path == Engine::ShortPath::kSingleCopy) {
    call.input_window = environment_.transport->find_window(call.input, checked.input_bytes);
    call.output_window = environment_.transport->find_window(call.output, checked.output_bytes);
  }
  return engine_.run_short(choice.path, *choice.plan, call, timeout_ns(options.timeout, timeout_), submission);
}

Result<std::shared_ptr<Operation>> OperationBuilder::prepare_exchange(CheckedExchange exchange,
                                                                      const CallOptions& options) {
  if (options.timeout.count() < 0)
    return invalid_argument(fmt::format("timeout {} ms is negative", options.timeout.count()));
  if (options.uniform || options.checksum) return only_blocking();
  if (auto broken = engine_.broken()) return *broken;
  if (devices_->runs_on_devices()) {
    auto on_device = devices_->takes(exchange);
    if (!on_device) return on_device.error();
    if (*on_device) return prepare_on_device(std::move(exchange), options);
  }
  auto staged = staged_for(exchange, options);
  if (!staged) return staged.error();
  auto operation = exchange_operation(std::move(exchange), options);
  operation->start_condition = std::move(*staged);
  return operation;
}

// Divides sends and receives into those that the GPU carries out, and those without bytes; see TransferCall::empty.
Result<std::shared_ptr<Operation>> OperationBuilder::prepare_on_device(CheckedExchange exchange,
                                                                       const CallOptions& options) {
  CheckedExchange none;
  const auto first = std::stable_partition(exchange.transfers.begin(), exchange.transfers.end(),
                                           [](const Transfer& transfer) { return transfer.bytes > 0; });
  none.transfers.assign(first, exchange.transfers.end());
  exchange.transfers.erase(first, exchange.transfers.end());
  auto empty = none.transfers.empty() ? nullptr : exchange_operation(std::move(none), options);
  if (empty != nullptr) empty->is_part_of_device_call = true;
  auto operation =
      devices_->prepare(std::move(exchange), std::move(empty), options, timeout_ns(options.timeout, timeout_));
  if (operation && *operation != nullptr) (*operation)->call.label = options.label;
  return operation;
}

// Makes the operation of sends and receives that the host carries out.
std::shared_ptr<Operation> OperationBuilder::exchange_operation(CheckedExchange exchange, const CallOptions& options) {
  for (Transfer& transfer : exchange.transfers) {
    transfer.tag.tile_bytes = static_cast<std::uint32_t>(environment_.transport->slot_bytes());
  }
  auto operation = std::make_shared<Operation>();
  operation->timeout_ns = timeout_ns(options.timeout, timeout_);
  operation->call.tag = exchange.tag();
  operation->call.label = options.label;
  operation->transfers = std::move(exchange.transfers);
  operation->own = std::move(exchange.own);
  return operation;
}

Collective OperationBuilder::collective_of(CollectiveKind kind) const {
  Collective collective;
  collective.kind = kind;
  collective.ranks = membership_.ranks;
  collective.nodes = environment_.nodes;
  return collective;
}

Algorithm OperationBuilder::auto_algorithm(CollectiveKind kind, std::size_t count, DataType type, bool on_device) {
  const Collective collective = collective_of(kind);
  const std::uint64_t bytes = block_bytes(kind, count, type);
  if (plans_.find_user_plan(collective, bytes, Algorithm::kAuto, false) != nullptr) return Algorithm::kUser;
  if (on_device && devices_->runs_in_parts(kind, bytes) && !follows_rule_on_host(collective, bytes))
    return Algorithm::kHierarchical;
  const GpuUse gpus = on_device ? devices_->gpu_use() : GpuUse::kNone;
  return selector_.choose(collective, {.bytes = bytes, .gpus = gpus, .attached = true}).algorithm;
}

std::optional<double> OperationBuilder::predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                                     Algorithm algorithm) {
  const Collective collective = collective_of(kind);
  const SelectionQuery query{.bytes = block_bytes(kind, count, type), .attached = true};
  Selection selection{.algorithm = algorithm};
  if (algorithm == Algorithm::kAuto) {
    if (plans_.find_user_plan(collective, query.bytes, Algorithm::kAuto, false) != nullptr) return std::nullopt;
    selection = selector_.choose(collective, query);
  }
  if (devices_->runs_on_devices() || algorithm == Algorithm::kUser) return std::nullopt;
  return selector_.predict(collective, query, selection);
}

std::optional<Error> OperationBuilder::take_staging_error() {
  return host_staging_ == nullptr ? std::nullopt : host_staging_->take_error();
}

}  // namespace tutti::detail
