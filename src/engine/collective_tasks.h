// CollectiveTasks: the three tasks that run the collectives of one communicator, one collective at a time:
// InlineCollective (mailboxes), SingleCopyCollective, and PlanExecution (messages); see collective_task.h. The
// class starts the task of a collective, and records how the last collectives ended. It has no threads or locks. Only
// the engine's driver (engine_state.h) uses it, except for last_good().
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

  // Starts the collective of an operation. Unless it runs by mailboxes, first opens its connections if they are not
  // open. If that fails, notifies the peers, and returns the error of the transport. Returns nothing if the collective
  // has started.
  std::optional<Error> start(const Operation& operation);
  // The task that was selected last; it may be done, or not started yet. Null if none was selected.
  CollectiveTask* running() const { return running_; }

  // True if the transport has mailboxes, which short calls need.
  bool has_mailboxes() const { return marks_ != nullptr; }
  // True if select_single_copy() can be used for this plan without start(): the plan is the one that ran last with
  // connections or by single copy, and no collective has failed since the last start() with connections. (A failed
  // collective may have left messages, which only start() drops.)
  bool may_start_single_copy(const BoundPlan& plan) const { return execution_plan_ == &plan && !last_failed_; }
  // Each of these two functions makes one task the running one and returns it. The caller must still start it, and can
  // call the functions of its class directly, which is faster than virtual calls. Both functions require mailboxes.
  // Outside of start(), select_single_copy() also requires may_start_single_copy().
  InlineCollective& select_inline() {
    running_ = inline_.get();
    return *inline_;
  }
  SingleCopyCollective& select_single_copy() {
    single_copy_->set_plan(*plan_execution_);
    running_ = single_copy_.get();
    return *single_copy_;
  }
  // True if a peer's mailbox shows that the peer has entered the running call with other arguments. Requires
  // mailboxes.
  bool mailboxes_disagree() const { return marks_->disagreement().has_value(); }

  // Call it when the running task is done. If this rank sees that ranks passed different arguments, notifies the peers
  // and returns the error. Otherwise returns nothing. Makes no check if every rank needs data from every other rank,
  // because that data carries the arguments. In a collective with a root, some ranks only send (for example the root of
  // a broadcast), so no message may show them a disagreement. Therefore each rank, before it reports success, checks
  // the arguments that the others have published so far.
  std::optional<Error> find_disagreement(const Operation& operation);
  // Records that a collective has completed, and publishes that on this rank's status board. `needed_all_ranks`: in
  // this collective every rank needs data from every other rank, at least an empty message or a mark. Because this rank
  // has completed it, all ranks have entered it.
  void conclude(const CallTag& tag, bool needed_all_ranks) {
    if (marks_ != nullptr && needed_all_ranks) marks_->note_all_entered(tag.sequence);
    context_.transport.leave_call(tag, std::nullopt);
    last_good_.store(tag.sequence, std::memory_order_release);
  }
  // Records that a collective has failed, whether or not it had started. The next start() with connections then drops
  // the messages that it left behind. If it ran by single copy, also withdraws this rank's mark, so that other ranks
  // stop using its memory.
  void note_failure(const Operation& operation);
  // Sequence number of the last collective that this object has concluded, or 0 if there is none. Any thread may call
  // it.
  std::uint64_t last_good() const { return last_good_.load(std::memory_order_acquire); }

 private:
  const EngineContext& context_;
  // These three are set if the transport has mailboxes, otherwise null.
  std::unique_ptr<MailboxBoard> marks_;
  std::unique_ptr<InlineCollective> inline_;
  std::unique_ptr<SingleCopyCollective> single_copy_;
  // Executes execution_plan_. Null before the first collective with connections or by single copy.
  std::unique_ptr<PlanExecution> plan_execution_;
  // The plan that ran last with connections or by single copy; null before the first.
  const BoundPlan* execution_plan_ = nullptr;
  CollectiveTask* running_ = nullptr;  // one of the three tasks above; null before the first selection
  bool last_failed_ = false;           // a collective has failed, and its messages have not been dropped yet
  std::atomic<std::uint64_t> last_good_{0};
};

}  // namespace tutti
