// Staging: calls on device memory that the host carries out (docs/decisions/0013). The input is copied to pinned host
// memory in the caller's stream; the engine runs the call there; the stream, which waits for that, copies the result
// back and goes on. Nobody waits in a host callback, and no thread waits for a stream.
//
//   stream   copy out of the device | say "staged" | wait for the word | copy to the device | say "finished"
//   engine                            run the call    set the word
//
// Blocks are windows of the transport, so that peers of the machine reach them in place, and are used again.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "cuda/resources.h"
#include "runtime/engine.h"
#include "transports/transport.h"

namespace tutti::detail {

// Pinned host memory of one communicator. Thread-safe, but for allocation, which is for the callers of collectives.
class StagingPool {
 public:
  // A window that is pinned for all devices until it ends.
  struct Block {
    std::unique_ptr<Window> window;
    std::unique_ptr<cuda::RegisteredMemory> pin;  // ends before the window
    std::size_t size_class = 0;
  };
  // Both outlive close().
  StagingPool(const cuda::Driver& driver, Transport& transport);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // At least `bytes` long, pinned for every context; first of all those of `device`. Errors: kSystem.
  Result<Block> take(std::size_t bytes, int device);
  void give_back(Block block);
  void retire(Block block);  // not used again: a stream may still copy to it; freed by close()

  // A call that uses blocks has begun, or its stream is through with them.
  void begin_call();
  void end_call();
  void ring();  // wakes the engine's driver
  // Waits until no stream uses blocks, then frees them; what is still used after `limit` is given up, never freed.
  // True: nothing was given up.
  bool close(std::chrono::milliseconds limit);

 private:
  static constexpr std::size_t kClasses = 57;  // powers of two
  const cuda::Driver& driver_;
  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable none_in_flight_;
  // In whose name memory is pinned: a context of the caller's may end before the pool. Before the blocks, after which
  // it ends.
  std::optional<cuda::PrimaryContext> context_;
  std::array<std::vector<Block>, kClasses> free_;
  std::vector<Block> retired_;
  std::size_t in_flight_ = 0;
  bool closed_ = false;
};

// One call's copies and its gate. Made and filled in by the caller's thread; kept alive by the operation and by what it
// has put into streams.
class StagedCall final : public Gate, public std::enable_shared_from_this<StagedCall> {
 public:
  // `report`: takes the operation's error, by the engine's driver.
  StagedCall(const cuda::Driver& driver, std::shared_ptr<StagingPool> pool, std::function<void(const Error&)> report);
  ~StagedCall() override;

  // A piece of device memory that the call uses, in the order of `stream` (null: the default one of that memory's
  // context); gives its number. Errors: kInvalidArgument (a stream of another context), kUnsupported (it is captured).
  Result<std::size_t> add(const cuda::PointerInfo& where, void* stream, const void* data, std::size_t bytes);
  // Bytes [offset, offset + bytes) of a piece are copied before the call, or after it.
  void copy_in(std::size_t piece, std::size_t offset, std::size_t bytes);
  void copy_out(std::size_t piece, std::size_t offset, std::size_t bytes);
  // Once, when all pieces are known. Errors: kSystem.
  Status allocate();
  std::byte* staged(std::size_t piece) const { return block_.window->data() + pieces_[piece].offset; }

  // Puts everything into the streams, once. On an error the streams go on and nothing will be staged.
  Status enqueue();
  // The operation will not be submitted: lets the streams go on.
  void cancel();

  bool open() const override { return to_stage_.load(std::memory_order_acquire) == 0; }
  void ended(const Status& result) override;
  bool finished() const override { return to_finish_.load(std::memory_order_acquire) == 0; }

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
  };
  // What a callback of the driver's is handed: it keeps the call alive.
  struct Handle {
    std::shared_ptr<StagedCall> call;
  };
  Result<std::size_t> part_of(const cuda::PointerInfo& where, cuda::CUstream stream);
  Status enqueue(std::size_t part);
  Status copy(const std::vector<Copy>& copies, std::size_t part, bool in);
  Status call_back(cuda::CUstream stream, cuda::CUhostFn function);
  void let_streams_go();
  void finish_part();
  static void on_staged(void* self);
  static void on_finished(void* self);

  const cuda::Driver& driver_;
  const std::shared_ptr<StagingPool> pool_;  // shared by all calls: streams may outlive the communicator
  const std::function<void(const Error&)> report_;
  std::vector<Part> parts_;
  std::vector<Piece> pieces_;
  std::vector<Copy> copies_in_;
  std::vector<Copy> copies_out_;
  StagingPool::Block block_;
  std::atomic<std::uint32_t>* word_ = nullptr;  // in the block: what the streams wait for
  bool retires_ = false;                        // not all of it could be put into the streams
  std::atomic<std::size_t> to_stage_{0};        // parts
  std::atomic<std::size_t> to_finish_{0};
};

}  // namespace tutti::detail
