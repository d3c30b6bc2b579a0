// Watchdog: checks the deadlines and the peers of the operations in progress, mainly while none of them makes
// progress, and finds an operation that must fail because its deadline has passed, its stream is lost, its guard
// (OperationGuard) reports a failure, a peer is gone or has failed, or the ranks passed different arguments. It has no
// threads or locks. Only the engine's driver uses it, except for set_beside_devices(), and for start() at the end of a
// short call (engine/short_calls.h), whose thread holds the engine's mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "engine/collective_tasks.h"
#include "engine/engine_state.h"
#include "engine/failed_operations.h"
#include "engine/operation.h"
#include "engine/operation_recorder.h"
#include "engine/staged_operations.h"

namespace tutti {

class Watchdog {
 public:
  // All arguments must outlive this object.
  Watchdog(const EngineContext& context, CollectiveTasks& tasks, StagedOperations& staged, FailedOperations& failed,
           OperationRecorder& recorder)
      : context_(context), tasks_(tasks), staged_(staged), failed_(failed), recorder_(recorder) {}

  // Reads the clock, and sets the deadline of an operation that starts now.
  void start(Operation& operation) {
    last_clock_ns_ = context_.environment.clock->now_ns();
    operation.deadline_ns = last_clock_ns_ + operation.timeout_ns;
    operation.waiting_since_ns = last_clock_ns_;
  }
  // The time of the clock at the last start() or check(), without a new look at the clock.
  std::int64_t last_clock_ns() const { return last_clock_ns_; }
  // Reads the clock, and extends the deadlines of operations that have made progress, or if this process was stopped.
  // At most every kLookEveryNs, or if a deadline has passed, also looks at the peers' status boards, and logs one
  // warning for each operation, except probes, that has waited for kWarnAfterNs. Returns the first of the `active`
  // operations that must fail, with its error. If there is none, `operation` of the result is null.
  EndedOperation check(std::span<const std::shared_ptr<Operation>> active);
  // `beside`: GPUs of the ranks carry out calls on device memory, and the engine does not see these calls. Only affects
  // the wording of timeout messages, and of warnings about long waits. Any thread may call it.
  void set_beside_devices(bool beside) { beside_devices_.store(beside, std::memory_order_relaxed); }

 private:
  static void extend_deadline(Operation& operation, std::int64_t now_ns, std::int64_t gap_ns);
  void warn_if_late(Operation& operation, std::int64_t now_ns) const;
  std::optional<Error> look_at(Operation& operation, std::int64_t now_ns);
  std::string_view hint_for(const Operation& operation) const;

  const EngineContext& context_;
  CollectiveTasks& tasks_;
  StagedOperations& staged_;
  FailedOperations& failed_;
  OperationRecorder& recorder_;
  std::atomic<bool> beside_devices_{false};
  std::int64_t last_look_ns_ = 0;  // when check() last looked at the peers' status boards
  std::int64_t last_clock_ns_ = 0;
};

}  // namespace tutti
