#include "engine/collective_tasks.h"

#include <utility>

#include "plan/collective.h"

namespace tutti {

CollectiveTasks::CollectiveTasks(const EngineContext& context) : context_(context) {
  if (context.transport.mailboxes() == nullptr) return;
  marks_ = std::make_unique<MailboxBoard>(context.rank, context.transport);
  inline_ = std::make_unique<InlineCollective>(*marks_);
  single_copy_ = std::make_unique<SingleCopyCollective>(*marks_, context.transport, context.environment.choices);
}

std::optional<Error> CollectiveTasks::start(const Operation& operation) {
  const CallTag& tag = operation.call.tag;
  if (operation.by_mailbox) {
    InlineCollective& task = select_inline();
    context_.transport.enter_call(tag, {});
    task.start(operation.call);
    return std::nullopt;
  }
  if (Status opened = open(*operation.plan, context_.connections); !opened.ok()) {
    context_.transport.enter_call(tag, {});
    context_.transport.leave_call(
        tag, CallFailure{.code = opened.error().code, .culprit = static_cast<std::int32_t>(context_.rank)});
    return opened.error();
  }
  if (execution_plan_ != operation.plan) {
    plan_execution_ = std::make_unique<PlanExecution>(*operation.plan, context_.transport);
    execution_plan_ = operation.plan;
  }
  running_ = plan_execution_.get();
  if (operation.direct) select_single_copy();
  running_->start(operation.call);
  context_.transport.enter_call(tag, running_->offered(operation.call));
  // In a collective with a root, a peer may run the call in ShortCalls, outside its queue, and need no data from this
  // rank. That peer compares the arguments by the mailbox marks, not by the status boards, so this rank publishes its
  // tag in its mark, too.
  const bool marked = operation.direct || marks_ == nullptr;
  if (!marked && !needs_all_ranks(operation.plan->shape.collective.kind)) marks_->show_tag(tag);
  if (std::exchange(last_failed_, false)) context_.connections.drop_stale(tag);
  return std::nullopt;
}

std::optional<Error> CollectiveTasks::find_disagreement(const Operation& operation) {
  if (needs_all_ranks(operation.plan->shape.collective.kind)) return std::nullopt;
  const FailureAnalyzer analyzer = context_.analyzer();
  auto diagnosis = analyzer.mismatch(operation.call);
  const auto other = diagnosis || marks_ == nullptr ? std::nullopt : marks_->disagreement();
  // mismatch() has found no difference, so the other rank's board does not show that rank's tag, normally because later
  // calls have replaced it. An empty tag stands for the unknown one.
  if (other) diagnosis = analyzer.bad_message(operation.call, {.peer = *other, .tag = {}});
  if (!diagnosis) return std::nullopt;
  context_.transport.leave_call(operation.call.tag, diagnosis->failure);
  return std::move(diagnosis->error);
}

void CollectiveTasks::note_failure(const Operation& operation) {
  last_failed_ = true;
  if (operation.started && operation.direct) single_copy_->give_up(operation.call.tag.sequence);
}

}  // namespace tutti
