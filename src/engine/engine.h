// Engine: runs the operations of one communicator. Collectives run one after another in the order of their
// submission. Exchanges (groups of sends and receives) do not wait for their turn: all of them make progress at the
// same time as the current collective. Only the transfers between the same two ranks, in the same direction, run in
// the order of their submission. Any thread may call an engine.
//
// One thread at a time is the driver. If threads wait for operations, one of these threads drives, because it is
// blocked anyway. If none waits, the engine's own progress thread drives, as long as operations that were submitted
// in the background are in progress. The first submission of such an operation starts the progress thread. The
// driver polls the operations. When nothing moves, it pauses as the environment's Waiter determines, and between
// the pauses it checks deadlines, abort(), and the peers' status boards.
//
// Engine is only the interface of these parts:
//   EngineState     the mutex, and the state that it guards: the queue, the driver's role, the communicator's error
//   ProgressLoop    the work of the driver, and the state that only the driver uses
//   ShortCalls      the fast path of short collectives, which bypasses the queue
//   ImmediateProbe  checks for a message or a live receiver
//   ProgressThread  the progress thread
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
  // Ends all operations in progress, with kAborted, or with the error that broke the communicator before. Waits
  // until no other thread uses the engine.
  ~Engine();

  // Which thread makes progress with a submitted operation. kInBackground: the progress thread, unless a thread
  // calls wait(). kByCaller: the caller, which must call wait() or test().
  enum class Progress : std::uint8_t { kByCaller, kInBackground };
  // Queues the operation and gives it its sequence number. If an error is returned, nothing was queued and no
  // number was used. Errors: the one that broke the communicator, kInvalidArgument (capacity() is 0), kSystem (the
  // progress thread cannot be started).
  Status submit(const std::shared_ptr<Operation>& operation, Progress progress);
  // Number of further operations that can be submitted now.
  std::size_t capacity();
  std::uint32_t rank() const { return context_.rank; }
  const std::shared_ptr<EngineHandle>& handle() const { return handle_; }
  Status wait(Operation& operation);
  // Runs a collective that needs no messages past the queue, and waits for it. `call` has no sequence number yet.
  // Unlocks `order`, the caller's lock for submissions, as soon as the call has its sequence number. Returns
  // nothing, and leaves `order` locked, if this path is not possible now: an operation is in progress, the
  // communicator is broken, the transport has no mailboxes, a receiver must be checked first (inline), or the plan
  // is not the one that ran last or the last call failed (single copy). The caller then submits an operation
  // instead.
  using ShortPath = ShortCalls::Path;
  std::optional<Status> run_short(ShortPath path, BoundPlan& plan, Call& call, std::int64_t timeout_ns,
                                  std::unique_lock<std::mutex>& order) {
    return short_calls_.run(path, plan, call, timeout_ns, order);
  }
  bool test(Operation& operation);
  // Returns the peer from which a message is available for one of `probes` (receives, at most one from each peer),
  // or nothing if there is no such peer. Never waits for a message. But if another thread drives the engine, this
  // function waits until that thread gives up the role: the progress thread does so at once, a thread in wait()
  // when its operation is done. Errors: the one that broke the communicator, and those of opening connections.
  Result<std::optional<std::uint32_t>> look_for_message(std::vector<Transfer> probes) {
    return probe_.look_for_message(std::move(probes));
  }

  // Call this before `send` is submitted, if no thread will wait for the end of the send. Returns true if the
  // receiver takes part in the communicator, and false if its process may have exited, which is not certain yet:
  // call it again a moment later. Also returns true if the receiver cannot be checked, because another thread
  // drives for too long (20 ms). Errors: the same as for a send to a rank that no longer takes part, the one that
  // broke the communicator, and those of opening connections.
  Result<bool> look_at_receiver(Transfer send) { return probe_.look_at_receiver(send); }

  // Breaks the communicator: all operations in progress end with kAborted, and the peers are notified. Any thread may
  // call this.
  void abort() noexcept { state_.failure.abort(state_.mutex); }
  // Reports that this rank can no longer take part. The peers see the same as after abort(), and this rank's
  // operations fail with `error`. No effect if the communicator is already broken. Any thread may call this.
  void fail(const Error& error) noexcept;
  // Call this after fail(). Waits until all operations in progress have ended, with the error of fail(), so that
  // the engine no longer uses the callers' buffers.
  void end_all() noexcept;
  // Waits for the operations in progress, then makes the engine refuse all further ones. Errors: the one that broke
  // the communicator, before or during finalize(). An error of a single call (ErrorScope::kCall) is reported only
  // to the caller of that call.
  Status finalize();
  // The error that made the communicator unusable; empty if it can be used.
  std::optional<Error> broken();
  // `beside`: GPUs of the ranks carry out the calls on device memory, so the engine does not see these calls. Only
  // affects the wording of timeout messages.
  void set_beside_devices(bool beside) { loop_.watchdog().set_beside_devices(beside); }
  // Sequence number of the last collective that completed on this rank, or 0 if there is none.
  std::uint64_t last_good() const { return loop_.tasks().last_good(); }

 private:
  const EngineContext context_;
  // Shared with the callbacks of streams, which may keep it for longer than the engine exists.
  const std::shared_ptr<EngineHandle> handle_;
  EngineState state_;
  ProgressLoop loop_;
  ShortCalls short_calls_;
  ImmediateProbe probe_;
  ProgressThread progress_thread_;
};

}  // namespace tutti
