// StagingPool: the resources that the staged calls (staging.h) of one communicator share: pinned host memory,
// events, and the tickets that callbacks of streams receive. Made by HostStaging. Calls and tickets keep it alive,
// because streams may hold them for longer than the communicator exists. Thread-safe, except for take(),
// stream_for() and take_event(), which only threads that make collectives may call.
//
// Memory blocks are windows of the transport, so that peers of this machine can access them in place. They are
// reused. Memory that a stream may still use is never freed, and a ticket exists until its callback cannot run any
// more.
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
  // A window that is pinned for all devices until it is destroyed.
  struct Block {
    std::unique_ptr<Window> window;
    std::unique_ptr<cuda::RegisteredMemory> pin;  // must be destroyed before the window
    std::size_t size_class = 0;
  };
  // The argument of one callback from the driver. The first four members are constant.
  struct Ticket {
    std::shared_ptr<StagingPool> pool;
    std::uint64_t number = 0;  // numbers begin at 1
    std::size_t part = 0;      // index of the part of the call
    bool lasting = false;      // belongs to a graph: used by each replay, and never cancelled
    // Null after it was used or cancelled. Guarded by the pool's mutex, unless the ticket is lasting.
    std::shared_ptr<StagedCall> call{};
  };
  // `driver` and `transport` must outlive close().
  StagingPool(const cuda::Driver& driver, Transport& transport);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Returns a block of at least `bytes` bytes, pinned for every context. `device`: the device whose primary context
  // is used to pin the first block. Errors: kSystem.
  Result<Block> take(std::size_t bytes, int device);
  void give_back(Block block);
  void retire(Block block);  // for a block that a stream may still use: it is not reused; close() frees it

  // Returns the stream for the output copies of segments in the current context `context`. There is one stream for
  // each context.
  Result<cuda::CUstream> stream_for(cuda::CUcontext context);
  // Returns an event of the current context `context`.
  Result<cuda::Event> take_event(cuda::CUcontext context);
  void give_back(cuda::CUcontext context, cuda::Event event);
  void retire(cuda::Event event);  // the context of the event may be lost: it is not reused

  enum class Use : std::uint8_t { kOnce, kInEachReplay };
  // Makes a ticket for a callback of the call.
  Ticket& issue(std::shared_ptr<StagedCall> call, std::size_t part, Use use);
  // Called by the callback: returns its call, or null if the ticket was cancelled. After the callback has released
  // the call, it ends the ticket with spent().
  static std::shared_ptr<StagedCall> use(Ticket& ticket);
  static void spent(Ticket& ticket);
  void not_handed_out(Ticket& ticket);  // the driver has refused the callback
  // Cancels a ticket if its callback will not run because the context is lost. Returns false if the callback has
  // already run.
  bool cut(std::uint64_t number);

  bool has_graphs();  // whether some calls were captured

  void ring();  // wakes the engine's driver
  // Calls look() for every call that streams still hold, in order to find lost contexts.
  void look();
  // report() keeps the first error. take_error() returns it and resets it.
  void report(const Error& error) noexcept;
  std::optional<Error> take_error();
  // Waits until no stream uses blocks, and then frees them. Blocks that are still used after `limit` are leaked.
  // Returns true if nothing had to be leaked. Blocks that graphs may still use are kept for ever.
  bool close(std::chrono::milliseconds limit);

 private:
  static constexpr std::size_t kClasses = 57;  // classes of block lengths: powers of two
  struct Resources {
    // The context in which memory is pinned. A context of the caller's might be destroyed before the pool. Declared
    // before the blocks, so that it is destroyed after them.
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
  // Tickets held by the driver: two for each part of a call in progress.
  std::map<std::uint64_t, std::unique_ptr<Ticket>> out_;
  std::vector<std::unique_ptr<Ticket>> lasting_;  // tickets in graphs: two for each captured call
  std::uint64_t last_number_ = 0;
  std::optional<Error> error_;
  bool closed_ = false;
};

}  // namespace tutti::detail
