// ShortCalls: the fast path for short collectives, which bypasses the queue. It can be used if no other operation is in
// progress and the collective runs by mailboxes or by single copy; Engine::run_short() lists all conditions. The class
// has no threads or locks of its own; see run() for the locks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/engine_state.h"
#include "engine/operation.h"
#include "engine/progress_loop.h"

namespace tutti {

class ShortCalls {
 public:
  // The task that runs the call. kInline: InlineCollective. kSingleCopy: SingleCopyCollective.
  enum class Path : std::uint8_t { kInline, kSingleCopy };

  // All arguments must outlive this object.
  ShortCalls(const EngineContext& context, EngineState& state, ProgressLoop& loop)
      : context_(context), state_(state), loop_(loop), tasks_(loop.tasks()) {}

  // See Engine::run_short(); `numbered` is its `call`, and gets the sequence number. Locks the engine's mutex while
  // `order` is locked. The call runs in three phases. First this thread polls with the mutex held, until the call is
  // done or Waiter::spins() polls, at most for about 20 us, have made no progress, so other threads that need the mutex
  // do not wait long. Then it takes the driver's role, unlocks the mutex, and pauses between polls as the Waiter
  // determines. If the call is still not done, or if a mailbox shows other arguments for a call with a root, it becomes
  // a queued operation like any other, and this thread drives until it is done.
  std::optional<Status> run(Path path, BoundPlan& plan, Call& numbered, std::int64_t timeout_ns,
                            std::unique_lock<std::mutex>& order);

 private:
  template <class TaskType>
  void start(TaskType& task, const Call& call, std::uint64_t& waited_until);
  bool run_past_queue(std::unique_lock<std::mutex>& lock, Operation& operation, const Call& call,
                      std::uint64_t& waited_until);
  void poll_with_pauses(std::uint32_t changes);
  Status end_by_exception(std::unique_lock<std::mutex>& lock, Operation& operation, Call& call) noexcept;

  const EngineContext& context_;
  EngineState& state_;
  ProgressLoop& loop_;
  CollectiveTasks& tasks_;
  // The Operation for the next short call; null before the first one and after the queue has taken it over. It is
  // created before the call starts, because a call that has started must be able to become a queued operation
  // without an allocation of this object, which could fail.
  std::shared_ptr<Operation> spare_;
};

}  // namespace tutti
