// StagingPool: the resources that the staged calls (staging.h) of one communicator share: pinned host memory, streams,
// events, and the tickets that callbacks of streams receive. Made by HostStaging. Calls and tickets keep it alive,
// because streams may hold them for longer than the communicator exists. Thread-safe, except that for take(),
// stream_for() and take_event() the communicator's submission mutex must be held.
//
// Memory blocks are windows of the transport, so that peers on this machine can access them in place. A block can be
// reused after its call has ended. Memory is not freed while a ticket is out or a graph may use it, because a stream
// may still use it. A ticket exists until its callback cannot run any more.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "cuda/resources.h"
#include "transports/transport.h"

namespace tutti::detail {

class StagedCall;

class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // Host memory: a window of the transport, which is pinned for all devices as long as the block exists.
  struct Block {
    std::unique_ptr<Window> window;
    std::unique_ptr<cuda::RegisteredMemory> pin;  // must be destroyed before the window
    std::size_t size_class = 0;
  };
  // The argument of one host callback in a stream (cuLaunchHostFunc). The first four members are constant.
  struct Ticket {
    std::shared_ptr<StagingPool> pool;
    std::uint64_t number = 0;  // numbers begin at 1
    std::size_t part = 0;      // index of the part of the call that the callback belongs to
    // the callback is captured in a graph: each replay uses this ticket, and it is never cancelled
    bool lasting = false;
    // The call; null after the ticket was used or cancelled. A lasting ticket keeps its call. Guarded by the pool's
    // mutex, unless the ticket is lasting.
    std::shared_ptr<StagedCall> call{};
  };
  // `driver` and `transport` must exist until close() has returned.
  StagingPool(const cuda::Driver& driver, Transport& transport);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Returns a free block of at least `bytes` bytes, or makes one, pinned for every context. `device`: at the first
  // call, the pool retains the primary context of this device, and uses it to pin all its blocks; ignored later.
  // Errors: kSystem, those of the driver.
  Result<Block> take(std::size_t bytes, int device);
  void give_back(Block block);
  void retire(Block block);  // for a block that a stream may still use: it is not reused, and kept until close()

  // Returns the communicator's own stream for the output copies of segments, one for each context. `context` must
  // be the current context.
  Result<cuda::CUstream> stream_for(cuda::CUcontext context);
  // Returns a free event, or makes one. `context` must be the current context.
  Result<cuda::Event> take_event(cuda::CUcontext context);
  void give_back(cuda::CUcontext context, cuda::Event event);
  // for an event that a stream may still use, or whose context may be lost: it is not reused, and kept until close()
  void retire(cuda::Event event);

  enum class Use : std::uint8_t { kOnce, kInEachReplay };
  // Makes a ticket for one callback of part `part` of the call. `use`: kInEachReplay if the callback is captured in
  // a graph.
  Ticket& issue(std::shared_ptr<StagedCall> call, std::size_t part, Use use);
  // use() is called at the start of the callback: returns its call, or null if the ticket was cancelled. If it was
  // not null, the callback calls spent() at its end, after it has released the call. spent() destroys the ticket,
  // unless it is lasting.
  static std::shared_ptr<StagedCall> use(Ticket& ticket);
  static void spent(Ticket& ticket);
  void not_handed_out(Ticket& ticket);  // ends a ticket if the driver has refused its callback
  // Cancels the ticket with this number, because its context is lost and so its callback will not run. Returns false,
  // without effect, if the callback has already begun, or if there is no such ticket (number 0, a lasting ticket, or
  // one that has ended).
  bool cut(std::uint64_t number);

  bool has_graphs();  // whether callbacks of captured calls were handed to the driver

  void ring();  // wakes the engine's driver; no effect after close()
  // Calls StagedCall::look() for every call of which callbacks are still in streams or graphs, in order to find
  // lost contexts.
  void look();
  // report() keeps the error, if none is kept yet. take_error() returns the kept error, if there is one, and
  // forgets it.
  void report(const Error& error) noexcept;
  std::optional<Error> take_error();
  // Waits, at most for `limit`, until no ticket is out, so that no stream uses blocks, and then frees the blocks. If
  // tickets are still out after that time, all blocks are leaked, and the result is false. Blocks that graphs may still
  // use are kept until the process exits, which does not change the result.
  bool close(std::chrono::milliseconds limit);

 private:
  static constexpr std::size_t kClasses = 57;  // block lengths are powers of two; class n has blocks of 2^n bytes
  struct Resources {
    // The primary context in which memory is pinned. The caller's context is not used, because the caller may
    // destroy it before the pool. Declared before the blocks, so that it is destroyed after them.
    std::optional<cuda::PrimaryContext> context;
    // Number of blocks and events made so far. The lists of free and of retired ones have capacity for all of them,
    // so that returning one allocates nothing.
    std::size_t blocks = 0;
    std::size_t events = 0;
    std::array<std::vector<Block>, kClasses> free;
    std::vector<Block> retired;
    std::map<cuda::CUcontext, cuda::Stream> streams;
    std::map<cuda::CUcontext, std::vector<cuda::Event>> free_events;
    std::vector<cuda::Event> retired_events;
  };
  void end(std::uint64_t number);

  const cuda::Driver& driver_;
  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable none_out_;
  Resources resources_;
  // Tickets with callbacks in streams, by number: at most two for each part of a call in progress ("staged" and
  // "finished").
  std::map<std::uint64_t, std::unique_ptr<Ticket>> out_;
  std::vector<std::unique_ptr<Ticket>> lasting_;  // tickets of callbacks in graphs, at most two for each captured call
  std::uint64_t last_number_ = 0;
  std::optional<Error> error_;
  bool closed_ = false;
};

}  // namespace tutti::detail
