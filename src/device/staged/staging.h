// Staging: calls on device memory that the host carries out (docs/decisions/0013). The input is copied to pinned host
// memory in the caller's stream; the engine runs the call there; the stream, which waits for that, copies the result
// back and goes on. Nobody waits in a host callback, and no thread waits for a stream.
//
//   stream   copy out of the device | say "staged" | wait for the word | copy to the device | say "finished"
//   engine                            run the call    set the word
//
// A stream whose context is lost (a kernel failed, it was destroyed) says nothing more. So an event behind all that is
// asked now and then: by the engine's driver while the input is missing, by whoever waits for the end after that, by
// async_status(), and when the communicator ends.
//
// The pieces of a call that is cut (pieces.h) are a StagedCall each. Their copies out, and the waits before them, go by
// a stream of the communicator's own, so that they do not wait behind the copies in of later pieces; the caller's
// stream goes on when all are done.
//
//   caller's stream   copy in 0 | "staged" | copy in 1 | "staged" | copy in 2 | "staged"        wait for copy out 2 |
//   own stream                   wait for word 0 | copy out 0 | wait for word 1 | copy out 1 | wait for word 2 | copy
//   out 2
//
// A call that is captured in a graph is submitted anew in each replay, by the callback that says "staged", and so takes
// its place among the communicator's calls when the stream comes to it. So do, for the sake of their order, all calls
// on device memory that follow a captured one on its communicator.
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
#include "device/staged/staging_pool.h"
#include "engine/engine.h"

namespace tutti::detail {

// One call's copies and its start_condition. Made and filled in by the caller's thread; kept alive by the operation and
// by what it has put into streams.
class StagedCall final : public StartCondition, public std::enable_shared_from_this<StagedCall> {
 public:
  StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool);
  ~StagedCall() override;

  // A piece of device memory that the call uses, in the order of `stream` (null: the default one of that memory's
  // context); gives its number. Errors: kInvalidArgument (a stream of another context), kUnsupported (a captured call
  // of several contexts).
  Result<std::size_t> add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes);
  // Bytes [offset, offset + bytes) of a piece are copied before the call, or after it.
  void copy_in(std::size_t piece, std::size_t offset, std::size_t bytes);
  void copy_out(std::size_t piece, std::size_t offset, std::size_t bytes);
  // Once, when all pieces are known. Errors: kSystem.
  Status allocate();
  std::byte* staged(std::size_t piece) const { return block_.window->data() + pieces_[piece].offset; }

  // The streams submit the call when they come to it, and nobody else does.
  bool captured() const { return captured_; }
  bool submits_itself() { return captured_ || pool_->has_graphs(); }
  void submit_later(std::shared_ptr<EngineHandle> handle, std::shared_ptr<Operation> operation);
  // Of a piece, before enqueue(), which it makes put the copies out into the communicator's own stream; then, whether
  // or not that went well, join() makes the caller's stream wait for them. Both do nothing where the streams submit the
  // call, or several take part: then pieces go in turn.
  Status part_ways();
  Status join();
  // Puts everything into the streams, once. On an error the streams go on and nothing will be staged.
  Status enqueue();
  // The operation will not be submitted: lets the streams go on.
  void cancel();

  bool open() const override { return captured_ || to_stage_.load(std::memory_order_acquire) == 0; }
  std::optional<Error> lost() override;
  void ended(const Status& result) noexcept override;
  void dropped() noexcept override;
  bool finished() override;
  Status outcome() override;

  // From any thread. Gives up the parts whose contexts are lost.
  void look();
  // Of a captured call: its communicator ends, replays find nothing to submit any more.
  void forget();

 private:
  struct Piece {
    std::uint64_t device = 0;  // address
    std::size_t offset = 0;    // in the block
    std::size_t bytes = 0;
    std::size_t part = 0;
  };
  struct Copy {
    std::size_t piece = 0;
    std::size_t offset = 0;  // in the piece
    std::size_t bytes = 0;
  };
  struct Part {  // of one stream
    cuda::CUstream stream = nullptr;
    cuda::CUcontext context = nullptr;
    int device = 0;
    std::optional<cuda::Event> event{};  // behind all of the call
    cuda::CUstream out = nullptr;        // of the copies out, where that is another stream
    std::optional<cuda::Event> fork{};   // then: behind what goes by `stream`
    // Tickets of its callbacks; 0: none was handed out.
    std::uint64_t staged = 0;
    std::uint64_t finished = 0;
  };
  Result<std::size_t> part_of(const cuda::PointerInfo& where, cuda::CUstream stream);
  Status enqueue(std::size_t part);
  Result<cuda::CUstream> stream_of_output(Part& part);
  Status enqueue_output(std::size_t part, cuda::CUstream stream);
  enum class Way : std::uint8_t { kIn, kOut };
  Status copy(Way way, std::size_t part, cuda::CUstream stream);
  Result<std::uint64_t> call_back(std::size_t part, cuda::CUstream stream, cuda::CUhostFn function);
  cuda::CUresult ask(const Part& part) const;
  void give_up(const Part& part, cuda::CUresult why);
  void report(const Error& error) noexcept;
  void submit() noexcept;
  void let_streams_go();
  static void on_staged(void* self);
  static void on_finished(void* self);

  const cuda::Driver& driver_;
  const std::shared_ptr<StagingPool> pool_;  // shared by all calls: streams may outlive the communicator
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
  std::vector<Copy> copies_in_;
  std::vector<Copy> copies_out_;
  StagingPool::Block block_;
  std::atomic<std::uint32_t>* word_ = nullptr;  // in the block: what the streams wait for
  std::atomic<std::size_t> to_stage_{0};        // parts
  std::atomic<std::size_t> to_finish_{0};
  std::atomic<std::uint32_t> asked_{0};  // finished(), so many times
  bool captured_ = false;
  bool retires_ = false;  // not all of it could be put into the streams, or they will not come to it
  std::mutex looking_;    // one looks at a time
  std::mutex mutex_;      // guards what follows; not held while the driver is called, for callbacks take it
  std::shared_ptr<EngineHandle> handle_;  // shared by the communicator's calls
  std::shared_ptr<Operation> operation_;  // that the streams submit; of a captured call, its model
  bool ended_ = false;
  bool reported_ = false;
  std::optional<Error> lost_;
};

}  // namespace tutti::detail
