// ShortCalls: the fast path for short collectives, which bypasses the queue. It applies if no other operation is in
// progress and the collective needs no messages. It has no threads or locks of its own; see run() for the locks.
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
  // The task that runs the call: InlineCollective or SingleCopyCollective.
  enum class Path : std::uint8_t { kInline, kSingleCopy };

  // All arguments must outlive this object.
  ShortCalls(const EngineContext& context, EngineState& state, ProgressLoop& loop)
      : context_(context), state_(state), loop_(loop), tasks_(loop.tasks()) {}

  // See Engine::run_short(). Locks the engine's mutex while `order` is locked. It runs without the queue as long as
  // that is fast. First it polls with the mutex held, because other threads need the mutex only for a moment. Then it
  // polls as the driver and gives the core away from time to time. If the wait lasts longer, the call becomes a queued
  // operation like any other.
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
  // The Operation for the next short call. It is created before the call starts, so that no Operation has to be
  // created if the call becomes a queued operation. The queue then takes this object over.
  std::shared_ptr<Operation> spare_;
};

}  // namespace tutti
