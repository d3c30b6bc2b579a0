// ProgressLoop: makes progress with the operations of an engine. The driver, the one thread that has the
// DriverRole, calls it. The loop polls the operations. When nothing moves, it pauses as the environment's Waiter
// determines, and between the pauses it checks deadlines, abort(), and the peers' status boards.
//
// The loop owns the state that only the driver uses. It has no threads or locks of its own; run() and drive() are
// called with the engine's mutex held, and unlock it while they poll.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/collective_tasks.h"
#include "engine/engine_state.h"
#include "engine/failed_operations.h"
#include "engine/operation.h"
#include "engine/operation_recorder.h"
#include "engine/receiver_liveness.h"
#include "engine/staged_operations.h"
#include "engine/watchdog.h"

namespace tutti {

class ProgressLoop {
 public:
  // `context` and `state` must outlive this object.
  ProgressLoop(const EngineContext& context, EngineState& state);
  ProgressLoop(const ProgressLoop&) = delete;
  ProgressLoop& operator=(const ProgressLoop&) = delete;

  // When a run ends. kDone: when an operation has ended, or when the queue has changed, because the next run must
  // then list the operations anew. kWanted: in these cases, and when another thread wants to drive. kOnePoll: after one
  // poll of each operation, or earlier if one of them has ended.
  enum class Until : std::uint8_t { kDone, kWanted, kOnePoll };
  // Becomes the driver for one run, and ends at most one operation. Call it only if no other thread drives and the
  // engine is not idle.
  void run(std::unique_lock<std::mutex>& lock, Until until) noexcept;
  // Waits until no other thread drives, then drives until `until_done` is done. Returns earlier if another driver
  // completes that operation.
  void drive(std::unique_lock<std::mutex>& lock, Operation& until_done);
  // Does the work that the end of an operation requires, except for the queue: publishes the success of a collective
  // (its failure was published before, if it had started), or takes the memory of a failed operation back from the
  // peers. Then reports the end to the operation's stream and to the recorder, and stores `result` in the operation. If
  // publishing or taking back throws, the operation fails and the communicator breaks, because the peers may not have
  // been notified.
  void finish(Operation& operation, Status result) noexcept;

  // Records how many TCP segments were sent again. Call it before the connections are closed, when no thread drives.
  void record_retransmissions() noexcept;

  CollectiveTasks& tasks() { return tasks_; }
  const CollectiveTasks& tasks() const { return tasks_; }
  ReceiverLiveness& receivers() { return receivers_; }
  Watchdog& watchdog() { return watchdog_; }

 private:
  void run_once(std::unique_lock<std::mutex>& lock, Until until) noexcept;
  EndedOperation advance(std::unique_lock<std::mutex>& lock, Until until);
  EndedOperation end_by_exception() noexcept;
  EndedOperation break_off(const Error& broken);
  EndedOperation poll_until(Until until, std::uint32_t changes);
  EndedOperation poll_active(bool& moved);
  EndedOperation pause(Idle& idle);
  std::optional<Error> start(Operation& operation);
  std::optional<Error> poll(Operation& operation, bool& moved);

  const EngineContext& context_;
  EngineState& state_;
  CollectiveTasks tasks_;
  ReceiverLiveness receivers_;
  StagedOperations staged_;
  OperationRecorder recorder_;
  FailedOperations failed_;
  Watchdog watchdog_;
  // the operations that this run polls; see OperationQueue::list_active()
  std::vector<std::shared_ptr<Operation>> active_;
  std::uint32_t moves_ = 0;  // number of polls of single operations that made progress
};

}  // namespace tutti
