// CollectiveTasks: the tasks that run the collectives of one communicator, one collective at a time: by mailboxes, by
// single copy, or by messages (collective_task.h). It starts the task of a collective, and records how the last
// collectives ended. It has no threads or locks. Only the engine's driver uses it, except for last_good().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/engine_state.h"
#include "engine/operation.h"
#include "executor/inline_collective.h"
#include "executor/plan_execution.h"
#include "executor/single_copy.h"

namespace tutti {

class CollectiveTasks {
 public:
  // `context` must outlive this object.
  explicit CollectiveTasks(const EngineContext& context);

  // Starts the collective of an operation, and opens its connections if they are not open. If this fails, the peers
  // are notified. Errors: those of opening connections.
  std::optional<Error> start(const Operation& operation);
  // The task that was started last; null if there was none.
  CollectiveTask* running() const { return running_; }

  // True if the transport has mailboxes, which short calls need.
  bool has_mailboxes() const { return marks_ != nullptr; }
  // True if a single copy of this plan can start without further preparation.
  bool may_start_single_copy(const BoundPlan& plan) const { return execution_plan_ == &plan && !last_failed_; }
  // Make that task the running one. Then start it with its own functions, which are not virtual and thus faster.
  InlineCollective& select_inline() {
    running_ = inline_.get();
    return *inline_;
  }
  SingleCopyCollective& select_single_copy() {
    single_copy_->set_plan(*plan_execution_);
    running_ = single_copy_.get();
    return *single_copy_;
  }
  // True if a peer's mailbox shows a call with other arguments than the running one. Requires mailboxes.
  bool mailboxes_disagree() const { return marks_->disagreement().has_value(); }

  // Call it when the messages of a collective are done. Returns an error if the ranks disagree about the call, and
  // then notifies the peers. In a collective with a root, some ranks only send (for example the root of a broadcast),
  // so no message may show them a disagreement. Therefore each rank checks the arguments that the others have
  // published before it reports success.
  std::optional<Error> find_disagreement(const Operation& operation);
  // Records that a collective has completed, and publishes that on this rank's status board. `needed_all_ranks`: every
  // rank needs data from every other rank, at least an empty message, so all ranks have entered the call.
  void conclude(const CallTag& tag, bool needed_all_ranks) {
    if (marks_ != nullptr && needed_all_ranks) marks_->note_all_entered(tag.sequence);
    context_.transport.leave_call(tag, std::nullopt);
    last_good_.store(tag.sequence, std::memory_order_release);
  }
  // Records that a collective has failed.
  void note_failure(const Operation& operation);
  // Sequence number of the last collective that completed on this rank, or 0 if there is none. Any thread may call it.
  std::uint64_t last_good() const { return last_good_.load(std::memory_order_acquire); }

 private:
  const EngineContext& context_;
  // Set if the transport has mailboxes.
  std::unique_ptr<MailboxBoard> marks_;
  std::unique_ptr<InlineCollective> inline_;
  std::unique_ptr<SingleCopyCollective> single_copy_;
  // For the plan that was used last.
  std::unique_ptr<PlanExecution> plan_execution_;
  const BoundPlan* execution_plan_ = nullptr;
  CollectiveTask* running_ = nullptr;  // one of the three tasks above
  bool last_failed_ = false;           // the previous collective failed
  std::atomic<std::uint64_t> last_good_{0};
};

}  // namespace tutti
