// StagedCall: a call on device memory that the host carries out (docs/decisions/0013). The input is copied to pinned
// host memory in the caller's stream. The engine runs the call there. The stream waits for the engine, copies the
// result back, and continues. No host callback waits for other ranks. The thread that makes the call does not wait for
// its end, except in settle().
//
//   stream   copy out of the device | report "staged" | wait for the flag | copy to the device | report "finished"
//   engine                                      run the call, set the flag
//
// If other ranks of the communicator share the process and the GPU, the wait for the flag could hold up the copies of
// these ranks, because streams share hardware queues (ProcessRanks). Therefore, unless the call is captured, its
// stream does not wait for the flag. If the call has an output on this rank, the thread that makes the call waits
// instead: settle() puts the copies out into the stream when the call has ended.
//
// If the context of a stream is lost (a kernel failed, or the context was destroyed), its callbacks do not run any
// more. Therefore an event is recorded behind all work of the call in each stream. It is queried from time to time:
// by the engine's driver while the input is missing, later by the threads that wait for the end of the call, by
// async_status(), and when the communicator ends.
//
// Each segment of a call on device memory that is divided into segments (engine/segments.h) is a StagedCall. Normally
// (see use_own_output_stream()) the copies of the output, and the waits before them, use a stream of the communicator's
// own, so that they are not queued behind the input copies of later segments. The caller's stream continues when all
// segments are done:
//
//   caller's stream  copy in 0 | "staged" | copy in 1 | "staged" | copy in 2 | "staged" | wait for copy out 2
//   own stream           wait for flag 0 | copy out 0 | wait for flag 1 | copy out 1 | wait for flag 2 | copy out 2
//
// A call that is captured in a graph is submitted anew by each replay, in the callback that reports "staged". So it
// takes its position among the communicator's calls when the stream reaches it. To preserve their order, all calls
// on device memory that follow a captured call on the same communicator are submitted by their callbacks, too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "cuda/resources.h"
#include "device/staged/staged_buffers.h"
#include "device/staged/staging_pool.h"
#include "engine/engine_handle.h"
#include "engine/operation.h"
#include "engine/start_condition.h"

namespace tutti::detail {

// One staged call, or one segment: its copies, and the start condition of its operation. The thread that makes the
// call fills it in. The operation and the tickets of the callbacks in streams keep it alive.
class StagedCall final : public StartCondition, public std::enable_shared_from_this<StagedCall> {
 public:
  StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool);
  ~StagedCall() override;

  // Adds a buffer of device memory that the call uses, in the order of `stream` (null: the default stream of that
  // memory's context or, for mapped virtual memory, of the current context). `where`: the properties of that memory.
  // Returns the index of the buffer. Errors: kInvalidArgument (the stream belongs to another context than the memory
  // or, for mapped virtual memory, than the current one; or no context is current for mapped virtual memory),
  // kUnsupported (a captured call that uses several contexts), those of the driver.
  Result<std::size_t> add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes);
  // The buffers, for planning their copies and for the addresses of the host copies.
  StagedBuffers& buffers() { return buffers_; }
  // Allocates the host memory. Call it once, after all buffers were added, and before enqueue(). Errors: kSystem,
  // those of the driver.
  Status allocate();

  // captured(): the call is captured in a graph. submits_itself(): the callback of the stream submits the operation
  // to the engine when the stream reaches the call, so the caller must pass the operation to submit_later() and not
  // submit it. True for a captured call, and for every later staged call on the same communicator.
  bool captured() const { return captured_; }
  bool submits_itself() { return captured_ || pool_->has_graphs(); }
  void submit_later(std::shared_ptr<EngineHandle> handle, std::shared_ptr<Operation> operation);
  // For a segment of a call, if settles() is false. Call use_own_output_stream() before enqueue(): the copies of the
  // output then go into the communicator's own stream. After all segments were enqueued, call join(), also if
  // enqueue() failed: it makes the caller's stream wait for these copies. Both functions do nothing if
  // submits_itself() is true, or if the call uses several streams; the segments then run one after another in the
  // caller's streams. (If settles() is true, do not call them, because streams that wait for each other could hold up
  // other ranks.)
  Status use_own_output_stream();
  Status join();
  // Puts all copies, waits and callbacks into the streams; if settles() is true, only the copies in and their
  // callbacks. Call it once. If it returns an error or throws, it has released the streams, and the caller must not
  // submit the operation.
  Status enqueue();
  // settle_later(): call it after all buffers were added, and before enqueue(), if other ranks of the communicator and
  // process share the GPU. If the call is not captured, settles() becomes true, and settle() must be called after the
  // operation was submitted.
  void settle_later() { settles_ = !captured_; }
  bool settles() const { return settles_; }
  // Waits until the call has ended, well or not, and then puts the copies out into the streams. Has no effect if there
  // is nothing to copy out, or if it is called a second time. Errors, after which copies out are missing: those of the
  // driver, for example because the context is lost; kSystem; if the communicator has failed before the stream came to
  // the call, the error of the communicator.
  Status settle();
  // Sets the flag for which the streams wait, because the operation has ended or will not be submitted. Any thread
  // may call it.
  void release_streams() { buffers_.release_streams(); }

  bool open() const override { return captured_ || to_stage_.load(std::memory_order_acquire) == 0; }
  std::optional<Error> lost() override;
  void ended(const Status& result) noexcept override;
  void dropped() noexcept override;
  bool finished() override;
  Status outcome() override;

  // Checks whether contexts were lost, and gives up the work in their streams. Any thread may call it that may call
  // the CUDA driver.
  void look();
  // Call it for a captured call when its communicator ends, or if enqueue() fails: drops the operation. Callbacks
  // that run later, for example in replays, then submit nothing and only release their streams.
  void forget();

 private:
  struct Part {  // the work of the call in one stream
    cuda::CUstream stream = nullptr;
    cuda::CUcontext context = nullptr;
    int device = 0;
    std::optional<cuda::Event> event{};  // recorded behind all work of the call in this stream (or in `out`)
    cuda::CUstream out = nullptr;        // the stream of the output copies, if that is another one; null: `stream`
    // set if `out` is set: recorded in `stream` behind the input copies; `out` waits for it
    std::optional<cuda::Event> fork{};
    // Numbers of the tickets of the part's two callbacks; 0 if the callback was not put into a stream. Guarded by
    // looking_. `staged` is set after `event`, which then stays the same object.
    std::uint64_t staged = 0;
    std::uint64_t finished = 0;

    // Queries `event`, with `context` as the current one. Other results than success and "not ready" can mean that
    // the context is lost.
    cuda::CUresult ask(const cuda::Driver& driver) const;
    // Returns the stream for the output copies. If that is `out`, first makes it wait for the input copies in
    // `stream`.
    Result<cuda::CUstream> stream_of_output(const cuda::Driver& driver, StagingPool& pool);
  };
  // How the call ended, and its operation, if the callback of a stream submits that.
  struct Outcome {
    std::shared_ptr<EngineHandle> handle;  // null if the caller submits the operation
    // The operation that the callback submits; null after that, if it will never be submitted, and if the caller
    // submits it. For a captured call: the model of which each replay submits a copy; null after forget().
    std::shared_ptr<Operation> operation;
    bool ended = false;
    bool reported = false;
    std::optional<Error> lost;
  };
  Result<std::size_t> part_of(const cuda::PointerInfo& where, cuda::CUstream stream);
  Status enqueue(std::size_t part);
  Status enqueue_output(std::size_t part, cuda::CUstream stream);
  Status enqueue_rest();
  Status wait_for_end();
  void drop_if_broken();
  void stop_reuse();
  Result<std::uint64_t> call_back(std::size_t part, cuda::CUstream stream, cuda::CUhostFn function);
  void give_up(const Part& part, cuda::CUresult why);
  void report(const Error& error) noexcept;
  void submit() noexcept;
  static void on_staged(void* self);
  static void on_finished(void* self);

  const cuda::Driver& driver_;
  // shared by all calls, which streams may hold for longer than the communicator exists
  const std::shared_ptr<StagingPool> pool_;
  std::vector<Part> parts_;
  StagedBuffers buffers_;
  std::atomic<std::size_t> to_stage_{0};   // number of parts for which the input copies have not run yet
  std::atomic<std::size_t> to_finish_{0};  // number of parts for which the output copies have not run yet
  std::atomic<bool> gave_up_{false};       // some output copies will never run
  // number of calls of finished() that found some copies neither run nor given up; one in kLooks queries the driver
  std::atomic<std::uint32_t> asked_{0};
  bool captured_ = false;
  bool settles_ = false;
  bool settled_ = false;  // settle() was called
  // The block and the events must not be reused, because a stream may still use them: enqueue() or settle() failed
  // halfway, or a context was lost. Guarded by looking_.
  bool retires_ = false;
  // Held by look(), so that only one thread at a time runs it. Guards Part::staged, Part::finished and retires_.
  std::mutex looking_;
  // Guards outcome_. Not held while the CUDA driver is called, because callbacks lock it, and the driver may wait
  // for callbacks.
  std::mutex mutex_;
  Outcome outcome_;
  std::condition_variable ended_;  // notified when the call has ended or is lost
};

}  // namespace tutti::detail
