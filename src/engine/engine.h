// Engine: runs the operations of one communicator. Collectives run one after another in the order of their
// submission. Exchanges (groups of sends and receives) run at the same time, beside the collectives and each other.
// Their transfers are ordered only per pair of ranks. Any thread may call an engine.
//
// One thread at a time is the driver. If a thread waits for an operation, that thread drives, because it is blocked
// anyway. Otherwise the engine's own progress thread drives. It is started by the first operation that is submitted
// in the background. The driver polls the operations. When nothing moves, it pauses as the environment's Waiter
// determines, and between the pauses it checks deadlines, abort(), and the peers' status boards.
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
  // Operations in progress end with kAborted.
  ~Engine();

  // The thread that makes progress with a submitted operation. kInBackground: the progress thread, until a thread
  // waits for it. kByCaller: the caller will wait() or test().
  enum class Progress : std::uint8_t { kByCaller, kInBackground };
  // Queues the operation and gives it its sequence number. After an error, nothing is queued and no number is used.
  Status submit(const std::shared_ptr<Operation>& operation, Progress progress);
  // Number of further operations that can be submitted now.
  std::size_t capacity();
  std::uint32_t rank() const { return context_.rank; }
  const std::shared_ptr<EngineHandle>& handle() const { return handle_; }
  Status wait(Operation& operation);
  // Submits a collective that needs no messages, and waits for it. This is the fastest path if no other operation
  // is in progress. `call` has no sequence number yet. Unlocks `order`, the caller's lock for submissions, as soon
  // as the call has its sequence number. Returns nothing if another operation is in progress, or if the plan has
  // not run yet. Then submit an operation instead.
  using ShortPath = ShortCalls::Path;
  std::optional<Status> run_short(ShortPath path, BoundPlan& plan, Call& call, std::int64_t timeout_ns,
                                  std::unique_lock<std::mutex>& order) {
    return short_calls_.run(path, plan, call, timeout_ns, order);
  }
  bool test(Operation& operation);
  // Returns the peer from which a message is available for one of `probes` (receives, at most one from each peer),
  // or nothing if there is no such peer. If another thread drives the engine, waits until the operation of that
  // thread is done. Never waits for a message. Errors: the one that broke the communicator, and those of opening
  // connections.
  Result<std::optional<std::uint32_t>> look_for_message(std::vector<Transfer> probes) {
    return probe_.look_for_message(std::move(probes));
  }

  // Call this before `send` if no thread will wait for the end of the send. Returns true if the receiver takes part
  // in the communicator, and false if its process may have exited; then ask again. Also returns true if another
  // thread drives for so long that this thread cannot check. Errors: the same as for a send to a rank that no
  // longer takes part, the one that broke the communicator, and those of opening connections.
  Result<bool> look_at_receiver(Transfer send) { return probe_.look_at_receiver(std::move(send)); }

  // Any thread may call this.
  void abort() noexcept { state_.failure.abort(state_.mutex); }
  // Reports that this rank can no longer take part. The peers see the same as after abort(), and this rank's calls
  // fail with `error`. Any thread may call this.
  void fail(const Error& error) noexcept;
  // Call this after fail(). Ends all operations in progress, so that the engine no longer uses the callers'
  // buffers.
  void end_all() noexcept;
  // Waits for the operations in progress, and refuses all further ones. If one of these operations fails, only that
  // operation gets the error. Errors: the one that broke the communicator before.
  Status finalize();
  // The error that made the communicator unusable, if there is one.
  std::optional<Error> broken();
  // Set if GPUs of the ranks carry out calls on device memory, which the engine does not see.
  void set_beside_devices(bool beside) { loop_.watchdog().set_beside_devices(beside); }
  // Sequence number of the last collective that completed on this rank, or 0 if there is none.
  std::uint64_t last_good() const { return loop_.tasks().last_good(); }

 private:
  const EngineContext context_;
  // Shared with streams, which may keep it for longer than the engine exists.
  const std::shared_ptr<EngineHandle> handle_;
  EngineState state_;
  ProgressLoop loop_;
  ShortCalls short_calls_;
  ImmediateProbe probe_;
  ProgressThread progress_thread_;
};

}  // namespace tutti
