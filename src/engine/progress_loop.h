// ProgressLoop: makes progress with the operations of an engine. The driver, the one thread that has the DriverRole,
// calls it. It polls the operations. When nothing moves, it pauses as the environment's Waiter determines, and between
// the pauses it checks deadlines, abort(), and the peers' status boards.
//
// It owns the state that only the driver uses. It has no threads or locks of its own; run() and drive() are called with
// the engine's mutex held, and unlock it while they poll.
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

  // When a run ends. kDone: an operation has ended. kWanted: also if another thread wants to drive. kOnePoll: after
  // one poll.
  enum class Until : std::uint8_t { kDone, kWanted, kOnePoll };
  // Becomes the driver for one run. No other thread may drive.
  void run(std::unique_lock<std::mutex>& lock, Until until) noexcept;
  // Becomes the driver as soon as there is no other driver, and drives until the operation is done.
  void drive(std::unique_lock<std::mutex>& lock, Operation& until_done);
  // Ends an operation: carries out the consequences of `result` for the peers, for the memory of the call and for its
  // stream. Never throws. If a step fails, the operation fails and the communicator breaks, because the peers may not
  // have been notified.
  void finish(Operation& operation, Status result) noexcept;

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
  std::vector<std::shared_ptr<Operation>> active_;  // the operations that are polled; see OperationQueue::list_active()
  std::uint32_t moves_ = 0;                         // number of polls that made progress
};

}  // namespace tutti
