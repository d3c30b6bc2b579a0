// The part of CommunicatorImpl that turns calls into operations: it checks the arguments, selects the algorithm,
// stages buffers in GPU memory through host memory, and cuts long calls into segments. Hold the submission mutex.
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "communicator/communicator_impl.h"
#include "engine/segments.h"
#include "selection/algorithm_selector.h"

namespace tutti::detail {
namespace {

// The part of a call that one segment consists of.
CheckedCall segment_of(const CheckedCall& whole, const Segment& segment) {
  // This includes the tag of the whole call, which holds the arguments that must be the same on all ranks.
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

}  // namespace

// Stages the buffers of a call through host memory. Returns null if they are host memory already.
template <class Checked>
Result<std::shared_ptr<StartCondition>> CommunicatorImpl::staged_for(Checked& checked, const CallOptions& options) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) {
    if (!options.stream) return std::shared_ptr<StartCondition>();
    return invalid_argument(
        "a stream was given, but this process has not loaded the CUDA driver, so the pointer cannot be a stream");
  }
  if (host_staging_ == nullptr)
    host_staging_ = std::make_unique<HostStaging>(*driver, *environment_.transport, environment_.log);
  auto staged = host_staging_->stage(checked, options);
  if (staged) return std::shared_ptr<StartCondition>(std::move(*staged));
  if (staged.error().scope == ErrorScope::kProcess) engine_.fail(staged.error());
  return staged.error();
}

Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare_collective(const CollectiveCall& call,
                                                                        const CallOptions& options) {
  auto checked = check_call(call, options, caller());
  if (!checked) return checked.error();
  checked->collective.nodes = environment_.nodes;
  const std::uint64_t bytes = checked->call.tag.count / (call.variable ? ranks_ : 1) * checked->call.element_bytes;
  const bool in_rank_order = options.reduction.combine != nullptr && !options.reduction.commutative;
  const bool may_be_direct = options.reduction.combine == nullptr && call.op != ReduceOp::kPreMulSum && !call.variable;
  if (auto broken = engine_.broken()) return *broken;
  const ChosenPlan* chosen = user_plans_.empty() && options.algorithm != Algorithm::kUser
                                 ? nullptr
                                 : find_user_plan(checked->collective, bytes, options.algorithm);
  if (chosen == nullptr && options.algorithm == Algorithm::kUser) {
    return invalid_argument(
        fmt::format("no plan was given for {} with this root: call use_plan() first", to_string(call.kind)));
  }
  auto by_device = runs_on_device(options, *checked);
  if (!by_device) return escalate_device_error(by_device.error(), checked->call.tag);
  Selection taken{.algorithm = chosen != nullptr ? Algorithm::kUser : options.algorithm};
  if (taken.algorithm == Algorithm::kAuto) {
    taken = selector_.choose(
        checked->collective,
        {.bytes = bytes, .in_rank_order = in_rank_order, .on_device = *by_device, .attached = may_be_direct});
  }
  const Algorithm algorithm = taken.algorithm;
  if (*by_device) {
    auto operation = prepare_on_device(*checked, options, algorithm, chosen);
    if (!operation || *operation != nullptr) return operation;
  }
  auto plan = plan_for(checked->collective, algorithm, chosen);
  if (!plan) return plan.error();
  if (in_rank_order && (*plan)->shape.order != Order::kByRank) {
    return invalid_argument(
        fmt::format("{} of {} ranks does not combine them in rank order, which this reduction needs",
                    to_string(algorithm), ranks_));
  }
  checked->call.tag.algorithm = static_cast<std::uint8_t>(algorithm);
  if (chosen != nullptr) checked->call.tag.digest ^= chosen->plan.digest();
  checked->call.tag.tile_bytes = tile_bytes_of(taken);
  if (segmentation_ == Segmentation::kLongCalls && may_be_segmented(checked->call.tag) &&
      same_in_segments((*plan)->shape)) {
    return make_segments(*checked, options, **plan);
  }
  return make_operation(*std::move(checked), options, **plan, bytes);
}

// Cuts a long call into segments, one operation each. Returns the first segment, which holds the others.
Result<std::shared_ptr<Operation>> CommunicatorImpl::make_segments(const CheckedCall& whole, const CallOptions& options,
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
Result<std::shared_ptr<Operation>> CommunicatorImpl::make_operation(CheckedCall checked, const CallOptions& options,
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
  if (operation->by_mailbox) short_plans.by_mailbox = &plan;
  if (operation->direct) short_plans.direct = &plan;
  operation->timeout_ns = timeout_ns(options);
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

Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare_exchange(CheckedExchange exchange,
                                                                      const CallOptions& options) {
  if (options.timeout.count() < 0)
    return invalid_argument(fmt::format("timeout {} ms is negative", options.timeout.count()));
  if (auto broken = engine_.broken()) return *broken;
  auto staged = staged_for(exchange, options);
  if (!staged) return staged.error();
  for (Transfer& transfer : exchange.transfers) {
    transfer.tag.tile_bytes = static_cast<std::uint32_t>(environment_.transport->slot_bytes());
  }
  auto operation = std::make_shared<Operation>();
  operation->timeout_ns = timeout_ns(options);
  operation->start_condition = std::move(*staged);
  if (!exchange.transfers.empty()) operation->call.tag = exchange.transfers.front().tag;
  operation->transfers = std::move(exchange.transfers);
  operation->own = std::move(exchange.own);
  return operation;
}

// For v-variants that run as sends and receives: all_to_all_v, gather_v and scatter_v.
Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare_v_exchange(const CollectiveCall& call,
                                                                        const CallOptions& options) {
  auto checked = check_exchange(call, options, caller());
  if (!checked) return checked.error();
  return prepare_exchange(std::move(*checked), options);
}

Result<std::shared_ptr<Operation>> CommunicatorImpl::prepare(const CollectiveCall& call, const CallOptions& options) {
  return is_exchange(call) ? prepare_v_exchange(call, options) : prepare_collective(call, options);
}

}  // namespace tutti::detail
