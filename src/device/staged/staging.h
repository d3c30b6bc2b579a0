// StagedCall: a call on device memory that the host carries out (docs/decisions/0013). The input is copied to pinned
// host memory in the caller's stream. The engine runs the call there. The stream waits for the engine, copies the
// result back, and continues. No thread waits for a stream, and no host callback waits for anything.
//
//   stream   copy out of the device | report "staged" | wait for the flag | copy to the device | report "finished"
//   engine                                      run the call, set the flag
//
// If the context of a stream is lost (a kernel failed, or the context was destroyed), its callbacks do not run any
// more. Therefore an event is recorded behind all work of the call and queried now and then: by the engine's driver
// while the input is missing, then by the threads that wait for the end, by async_status(), and when the
// communicator ends.
//
// Each segment of a call that is cut (engine/segments.h) is a StagedCall. The copies out of host memory, and the
// waits before them, use a stream of the communicator's own, so that they are not queued behind the input copies of
// later segments. The caller's stream continues when all segments are done:
//
//   caller's stream  copy in 0 | "staged" | copy in 1 | "staged" | copy in 2 | "staged" | wait for copy out 2
//   own stream           wait for flag 0 | copy out 0 | wait for flag 1 | copy out 1 | wait for flag 2 | copy out 2
//
// A call that is captured in a graph is submitted anew by each replay, in the callback that reports "staged". It
// therefore takes its position among the communicator's calls when the stream reaches it. To preserve their order,
// all calls on device memory that follow a captured call on the same communicator are submitted by their callbacks,
// too.
#pragma once

#include <atomic>
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

// The copies of one call, and its start condition. Made and filled in by the caller's thread. Kept alive by the
// operation and by the callbacks in streams.
class StagedCall final : public StartCondition, public std::enable_shared_from_this<StagedCall> {
 public:
  StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool);
  ~StagedCall() override;

  // Adds a buffer of device memory that the call uses, in the order of `stream` (null: the default stream of that
  // memory's context). Returns the number of the buffer. Errors: kInvalidArgument (a stream of another context),
  // kUnsupported (a captured call that uses several contexts).
  Result<std::size_t> add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes);
  // For the copies of each buffer, and their memory.
  StagedBuffers& buffers() { return buffers_; }
  // Allocates the host memory. Call it once, after all buffers were added. Errors: kSystem.
  Status allocate();

  // captured(): the call is captured in a graph. submits_itself(): the streams submit the call when they reach it,
  // and the caller must not submit it.
  bool captured() const { return captured_; }
  bool submits_itself() { return captured_ || pool_->has_graphs(); }
  void submit_later(std::shared_ptr<EngineHandle> handle, std::shared_ptr<Operation> operation);
  // For a segment. use_own_output_stream() must be called before enqueue(); the copies out then go into the
  // communicator's own stream. Afterwards call join(), also if enqueue() failed: it makes the caller's stream wait
  // for these copies. Both do nothing if the streams submit the call, or if the call uses several streams; the
  // segments then run one after another.
  Status use_own_output_stream();
  Status join();
  // Puts all copies, waits and callbacks into the streams. Call it once. After an error the streams continue, and
  // nothing is staged.
  Status enqueue();
  // Releases the streams, because the operation has ended or will not be submitted.
  void release_streams() { buffers_.release_streams(); }

  bool open() const override { return captured_ || to_stage_.load(std::memory_order_acquire) == 0; }
  std::optional<Error> lost() override;
  void ended(const Status& result) noexcept override;
  void dropped() noexcept override;
  bool finished() override;
  Status outcome() override;

  // Checks whether contexts were lost, and gives up the work in their streams. May be called by any thread.
  void look();
  // Call it for a captured call when its communicator ends. Later replays then submit no operation, and only release
  // their streams.
  void forget();

 private:
  struct Part {  // the work of the call in one stream
    cuda::CUstream stream = nullptr;
    cuda::CUcontext context = nullptr;
    int device = 0;
    std::optional<cuda::Event> event{};  // recorded behind all work of the call in this stream
    cuda::CUstream out = nullptr;        // stream of the copies out if it is another one, otherwise null
    std::optional<cuda::Event> fork{};   // recorded in `stream` if `out` is set; `out` waits for it
    // Ticket numbers of its callbacks; 0: none was issued.
    std::uint64_t staged = 0;
    std::uint64_t finished = 0;

    // Queries the event.
    cuda::CUresult ask(const cuda::Driver& driver) const;
    // Returns the stream of the copies out, which waits for the copies in.
    Result<cuda::CUstream> stream_of_output(const cuda::Driver& driver, StagingPool& pool);
  };
  // The operation, and how it ended.
  struct Outcome {
    std::shared_ptr<EngineHandle> handle;  // shared by the communicator's calls
    // The operation that the streams submit; of a captured call, the model that each replay copies.
    std::shared_ptr<Operation> operation;
    bool ended = false;
    bool reported = false;
    std::optional<Error> lost;
  };
  Result<std::size_t> part_of(const cuda::PointerInfo& where, cuda::CUstream stream);
  Status enqueue(std::size_t part);
  Status enqueue_output(std::size_t part, cuda::CUstream stream);
  Result<std::uint64_t> call_back(std::size_t part, cuda::CUstream stream, cuda::CUhostFn function);
  void give_up(const Part& part, cuda::CUresult why);
  void report(const Error& error) noexcept;
  void submit() noexcept;
  static void on_staged(void* self);
  static void on_finished(void* self);

  const cuda::Driver& driver_;
  const std::shared_ptr<StagingPool> pool_;  // shared by all calls, because streams may outlive the communicator
  std::vector<Part> parts_;
  StagedBuffers buffers_;
  std::atomic<std::size_t> to_stage_{0};  // number of parts that have not copied their input yet
  std::atomic<std::size_t> to_finish_{0};
  std::atomic<std::uint32_t> asked_{0};  // number of calls of finished()
  bool captured_ = false;
  bool retires_ = false;  // not all of the call could be put into the streams, or the streams will not reach it
  std::mutex looking_;    // only one thread at a time runs look()
  // Guards outcome_. Not held while the driver is called, because callbacks lock it.
  std::mutex mutex_;
  Outcome outcome_;
};

}  // namespace tutti::detail
