// Engine: runs the operations of one communicator. Collectives run one after another in the order of their submission.
// Exchanges (groups of sends and receives) do not wait for collectives or for earlier exchanges to end: they make
// progress at the same time as the current collective. There are two exceptions. Transfers between the same two ranks,
// in the same direction, run in the order of their submission. And an exchange that waits for a stream delays the start
// of all later exchanges. Any thread may call an engine.
//
// One thread at a time is the driver. If threads wait for operations, one of these threads drives, because it is
// blocked anyway. A thread in test() drives for one poll if no other thread drives. If no thread waits, the engine's
// own progress thread drives, if operations were submitted in the background and the engine has not become idle since.
// The first submission of such an operation starts the progress thread. The driver polls the operations, and each poll
// checks whether abort() was called. When nothing moves, the driver pauses as the environment's Waiter determines, and
// from time to time it checks deadlines and the peers' status boards.
//
// Engine is only the interface of these parts:
//   EngineState     the mutex, and the state that it guards: the queue, the driver's role, the communicator's error
//   ProgressLoop    the work of the driver, and the state that only the driver uses
//   ShortCalls      the fast path of short collectives, which bypasses the queue
//   ImmediateProbe  checks for a message or a live receiver
//   ProgressThread  the thread that drives in the background
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine_handle.h"
#include "engine/engine_state.h"
#include "engine/immediate_probe.h"
#include "engine/operation.h"
#include "engine/progress_loop.h"
#include "engine/progress_thread.h"
#include "engine/short_calls.h"
#include "job/environment.h"
#include "tutti/communicator.h"

namespace tutti {

class Engine {
 public:
  // `environment` and `connections` must outlive the engine.
  Engine(std::uint32_t rank, std::uint32_t ranks, Environment& environment, Connections& connections,
         Segmentation segmentation);
  // Ends all operations in progress, normally with kAborted or, if the communicator is broken, with the error that
  // broke it. Waits until no other thread drives or waits for an operation.
  ~Engine();

  // Which thread ensures that a submitted operation makes progress. kInBackground: the progress thread, while no other
  // thread drives. kByCaller: the caller, which must call wait(), or test() until the operation is done. In both cases,
  // each thread that drives makes progress with all operations that can run.
  enum class Progress : std::uint8_t { kByCaller, kInBackground };
  // Queues the operation and numbers it (OperationQueue::add()). If an error is returned, nothing was queued and no
  // number was used. Errors: the one that broke the communicator, kInvalidArgument (Engine::capacity() is 0),
  // kSystem (the progress thread cannot be started).
  Status submit(const std::shared_ptr<Operation>& operation, Progress progress);
  // Number of further operations that can be submitted now.
  std::size_t capacity();
  std::uint32_t rank() const { return context_.rank; }
  const std::shared_ptr<EngineHandle>& handle() const { return handle_; }
  Status wait(Operation& operation);
  // Runs a collective by mailboxes or by single copy, and waits for it. The call starts without the queue, and becomes
  // a queued operation if it does not complete soon (ShortCalls::run()). `call` has no sequence number yet. Unlocks
  // `order`, the caller's lock for submissions, as soon as the call has its sequence number. Returns nothing, and
  // leaves `order` locked, if this path is not possible now: an operation is in progress, another thread drives, the
  // communicator is broken, the transport has no mailboxes, a receiver must be checked first (inline), or
  // CollectiveTasks::may_start_single_copy() is false (single copy). The caller then submits an operation instead.
  using ShortPath = ShortCalls::Path;
  std::optional<Status> run_short(ShortPath path, BoundPlan& plan, Call& call, std::int64_t timeout_ns,
                                  std::unique_lock<std::mutex>& order) {
    return short_calls_.run(path, plan, call, timeout_ns, order);
  }
  bool test(Operation& operation);
  // Returns a peer from which a message has arrived for one of `probes` (receives, at most one from each peer), if no
  // submitted receive will take that message. Returns nothing if there is no such peer. Never waits for a message. But
  // if another thread drives the engine, this function waits until that thread gives up the role: the progress thread
  // does so soon, a thread in wait() when its operation is done. Errors: the one that broke the communicator, and those
  // of opening connections.
  Result<std::optional<std::uint32_t>> look_for_message(std::vector<Transfer> probes) {
    return probe_.look_for_message(std::move(probes));
  }

  // Call this before `send` is submitted, if no thread will wait for the end of the send. Returns true if the
  // receiver takes part in the communicator, and false if its process may have exited, which is not certain yet:
  // call it again a moment later. Also returns true if the receiver cannot be checked, because another thread drives
  // for longer than kMaxDriverWait (immediate_probe.cc). Errors: the same as for a send to a rank that no longer takes
  // part, the one that broke the communicator, and those of opening connections.
  Result<bool> look_at_receiver(Transfer send) { return probe_.look_at_receiver(send); }

  // Breaks the communicator: the operations in progress end, normally with kAborted or, if the communicator was broken
  // before, with the error that broke it. The peers are notified. Any thread may call this.
  void abort() noexcept { state_.failure.abort(state_.mutex); }
  // Reports that this rank can no longer take part. The peers are notified as by abort(), but for the collective in
  // progress they see the code and the rank of `error` instead of kAborted. This rank's operations fail, normally with
  // `error`. No effect if the communicator is already broken. Any thread may call this.
  void fail(const Error& error) noexcept;
  // Call this if the communicator is broken, but this object will exist for some time. Notifies the peers that this
  // rank makes no more calls, because a peer in a receive from this rank would wait until its timeout. No effect if
  // they have been notified, or after finalize(). Any thread may call this.
  void announce_failure() noexcept;
  // Call this after fail(). Waits until all operations in progress have ended, normally with the error that broke the
  // communicator, so that the engine no longer uses the callers' buffers.
  void end_all() noexcept;
  // Waits for the operations in progress, then makes the engine refuse all further ones. Errors: the one that broke
  // the communicator, before or during finalize(). An error of a single call (ErrorScope::kCall) is reported only
  // to the caller of that call.
  Status finalize();
  // The error that made the communicator unusable; empty if it can be used.
  std::optional<Error> broken();
  // `beside`: GPUs of the ranks carry out calls on device memory, and the engine does not see these calls. Only affects
  // the wording of timeout messages, and of warnings about long waits.
  void set_beside_devices(bool beside) { loop_.watchdog().set_beside_devices(beside); }
  // Sequence number of the last collective that this engine completed successfully, or 0 if there is none. (Calls that
  // GPUs carry out do not count.)
  std::uint64_t last_good() const { return loop_.tasks().last_good(); }

 private:
  const EngineContext context_;
  // Shared with callbacks of streams and of LaunchGroups, which may keep it for longer than the engine exists.
  const std::shared_ptr<EngineHandle> handle_;
  EngineState state_;
  ProgressLoop loop_;
  ShortCalls short_calls_;
  ImmediateProbe probe_;
  ProgressThread progress_thread_;
  bool has_left_ = false;  // finalize() has notified the peers; guarded by the mutex of state_
};

}  // namespace tutti
