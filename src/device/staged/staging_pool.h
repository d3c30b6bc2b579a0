// StagingPool: what the staged calls (staging.h) of one communicator share: pinned host memory, events, and the tickets
// by which streams call back. Made by HostStaging; kept by the calls and tickets, which streams may hold for longer
// than the communicator lives. Thread-safe, but for take(), stream_for() and take_event(), which are for the callers of
// collectives.
//
// Blocks are windows of the transport, so that peers of the machine reach them in place, and are used again. Nothing
// that a stream may still use is freed, and no callback that may still come finds its ticket gone.
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
  // A window that is pinned for all devices until it ends.
  struct Block {
    std::unique_ptr<Window> window;
    std::unique_ptr<cuda::RegisteredMemory> pin;  // ends before the window
    std::size_t size_class = 0;
  };
  // What one callback of the driver's is handed. The first three are constant.
  struct Ticket {
    std::shared_ptr<StagingPool> pool;
    std::uint64_t number = 0;            // from 1
    std::size_t part = 0;                // of the call
    bool lasting = false;                // a graph's: used in each replay, never cut
    std::shared_ptr<StagedCall> call{};  // null once it was used or cut; guarded by the pool's mutex, unless it lasts
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

  // The stream of the context, which is current, for copies out of calls in pieces: one for each context.
  Result<cuda::CUstream> stream_for(cuda::CUcontext context);
  // An event of the context, which is current.
  Result<cuda::Event> take_event(cuda::CUcontext context);
  void give_back(cuda::CUcontext context, cuda::Event event);
  void retire(cuda::Event event);  // its context may be lost

  enum class Use : std::uint8_t { kOnce, kInEachReplay };
  Ticket& issue(std::shared_ptr<StagedCall> call, std::size_t part, Use use);
  // By the callback: its call; null where the ticket was cut. Then, the call let go, the ticket ends with spent().
  static std::shared_ptr<StagedCall> use(Ticket& ticket);
  static void spent(Ticket& ticket);
  void not_handed_out(Ticket& ticket);  // the driver did not take it
  // A callback that will not come: its context is lost. False: it came.
  bool cut(std::uint64_t number);

  bool has_graphs();  // some calls were captured

  void ring();  // wakes the engine's driver
  // Asks every call that streams have whether they will come to it.
  void look();
  // The first error since it was last asked for.
  void report(const Error& error) noexcept;
  std::optional<Error> take_error();
  // Waits until no stream uses blocks, then frees them; what is still used after `limit` is given up, never freed.
  // True: nothing was given up. What graphs may still use is kept for ever.
  bool close(std::chrono::milliseconds limit);

 private:
  static constexpr std::size_t kClasses = 57;  // powers of two
  struct Resources {
    // In whose name memory is pinned: a context of the caller's may end before the pool. Before the blocks, after which
    // it ends.
    std::optional<cuda::PrimaryContext> context;
    // Made so far. The lists of free and of retired ones have room for as many: giving one back needs no memory.
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
  std::map<std::uint64_t, std::unique_ptr<Ticket>> out_;  // with the driver: two for each part of a call under way
  std::vector<std::unique_ptr<Ticket>> lasting_;          // in graphs: two for each captured call
  std::uint64_t last_number_ = 0;
  std::optional<Error> error_;
  bool closed_ = false;
};

}  // namespace tutti::detail
