// Windows: the memory windows of a communicator, and the one-sided calls on them.
//
// ncclCommWindowRegister() is collective, and a window has the same number on all ranks. Puts and signals to other
// ranks are sent as messages. The messages use a communicator of their own (the channel), so that they do not mix with
// the program's sends and receives. A put to another rank copies its data, starts the message and returns; it may first
// have to wait (see below). The target stores the data while one of its threads is in a one-sided call that waits: for
// a signal of any rank, for capacity for a put of its own, or for the end of its own puts when the communicator is
// finalized. This is enough, because NCCL only promises that the data is visible after ncclWaitSignal().
//
// Limits: a rank has at most kMostPuts puts and kMostBytes bytes of puts in flight (or a single larger put). A further
// put waits until targets have received enough of the earlier ones. While a put waits, it receives the puts of other
// ranks, so that ranks which put to each other without waiting for signals do not block each other. If the target never
// enters a call that waits, the put fails when the timeout of an earlier put ends. This happens if the target only
// computes, or if one thread makes the calls of both ranks, because the put blocks this thread.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "nccl.h"
#include "nccl/memory.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

// A window of this rank.
struct Window {
  std::uint32_t number = 0;  // the same on all ranks; the first is 1
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::uint64_t> all_bytes{};  // size of each rank's window, indexed by rank
  Registration registration{};
};

// Identifies a signal: its target (for a put) or its sender (for a wait), and the two numbers that the program chose.
struct Signal {
  std::int32_t peer = 0;
  std::int32_t index = 0;
  std::int32_t context = 0;

  auto operator<=>(const Signal&) const = default;
};

class Windows {
 public:
  // Limit for the bytes of one rank's puts that are in flight. A put with more bytes is allowed, but only while no
  // other is in flight. A payload inside the header does not count while its put is in flight, but it counts when the
  // put is to start.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  // Limit for the number of one rank's puts that are in flight. They are limited because each operation in flight on
  // the channel makes the progress of the others slower.
  static constexpr std::size_t kMostPuts = 1024;

  explicit Windows(std::int32_t rank) : rank_(rank) {}
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Registers a window of `bytes` bytes at `data`. Collective over `parent`, which must be the same communicator in
  // every call. The caller must not run two calls of add() at the same time. If registration fails on one rank, all
  // ranks get an error.
  Result<ncclWindow_t> add(Communicator& parent, void* data, std::size_t bytes);
  // Deregisters a window on this rank, without waiting for other ranks. If the window is registered device memory, all
  // ranks must deregister it at the same place in the order of their calls. Errors: kInvalidArgument if `handle` is not
  // a window of this communicator.
  Status remove(ncclWindow_t handle);
  // The start of this rank's memory of the window. Errors: as remove().
  Result<std::byte*> data_of(ncclWindow_t handle);

  // Writes `bytes` bytes from `data` (host or device memory, read after the work that is in `stream` now) to `offset`
  // in the window of rank to.peer, and then signals that rank. With a null window and 0 bytes it only signals. Errors:
  // kInvalidArgument (unknown window, or the range is not inside that window); kPeerLost if check_target() finds that
  // the process of the target has ended (not every put checks this); the error of an earlier put that failed after it
  // had returned; those of read_in_stream() (streams.h), of write_memory() (memory.h), and of messages on the channel.
  Status put(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
             void* stream);
  // Waits until `count` signals `from` (this peer, index and context) have arrived that no earlier wait() has consumed,
  // and consumes them. If it has to wait, and data of a put of that peer could not be stored, returns that error. Does
  // not wait for signals of this rank itself: if there are fewer than `count`, returns kInvalidArgument.
  Status wait(const Signal& from, std::uint64_t count);
  // Waits until all puts of this rank have ended, and receives the puts of other ranks meanwhile. Then finalizes the
  // channel. Does not finalize it if a put has failed and no put() has returned its error yet (returns that error), or
  // if the channel has failed (returns its error without waiting for the other puts).
  Status finish();
  // Aborts the channel: put(), wait() and finish() that wait for other ranks in other threads end with an error. A
  // put() that waits for the work in its stream goes on waiting.
  void abort();

 private:
  // The header of a message. Set-up refuses ranks with another protocol version, so the layout needs no version of its
  // own. A payload of up to kInlineBytes bytes is part of the header, so that one message is enough instead of two.
  static constexpr std::size_t kInlineBytes = 224;
  struct Header {
    // Number of the window that the payload goes into. 0: the message has no payload and is only a signal.
    std::uint32_t window = 0;
    std::int32_t index = 0;
    std::int32_t context = 0;
    std::uint32_t unused = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::array<std::byte, kInlineBytes> inside{};
  };
  static_assert(sizeof(Header) == 256);
  struct Put {
    std::unique_ptr<Header> header;  // on the heap, so that its address is stable while it is sent
    std::vector<std::byte> payload;  // empty if the payload is in the header, or has no bytes
    Work work;
  };
  // Returns channel_; null before the first add().
  std::shared_ptr<Communicator> channel();
  Result<Put> prepare(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
                      void* stream);
  // kArrived: the message that take() is to receive has already arrived. kMayBeLate: it may arrive later.
  enum class Arrival : std::uint8_t { kArrived, kMayBeLate };
  // Holds mutex_. A function that receives a Lock unlocks it while it waits for peers.
  using Lock = std::unique_lock<std::mutex>;
  Status check_target(Lock& lock, Communicator& channel, std::int32_t peer);
  Status send(Communicator& channel, std::int32_t peer, Put put);
  Status wait_for_capacity(Lock& lock, Communicator& channel, std::size_t bytes);
  Status receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer);
  Result<Work> start_receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer);
  Status take(Lock& lock, Communicator& channel, std::int32_t peer, Arrival when);
  Result<bool> take_any(Lock& lock, Communicator& channel);
  Status take_until(Lock& lock, Communicator& channel, int checks_per_probe, const std::function<bool()>& done);
  Status receive_and_store(Lock& lock, Communicator& channel, std::int32_t peer, Arrival when, Status& stored);
  Status store_payload(Communicator& channel, const Header& header, std::int32_t peer, Status& stored);
  void remove_completed();
  Status take_put_error();

  const std::int32_t rank_;
  // Protects the members below up to channel_mutex_, except last_number_, which only add() uses, and the elements of
  // headers_, which the receiving threads use. Not held during waits for peers, except in Work::test() after a failed
  // operation.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t last_number_ = 0;  // number of the window that was registered last; 0: none
  // Each window is shared with the threads that store a payload in it, because another thread may deregister it
  // meanwhile.
  std::map<ncclWindow_t, std::shared_ptr<Window>> windows_;
  // Number of signals that have arrived and were not consumed by wait().
  std::map<Signal, std::uint64_t> arrived_;
  std::uint64_t receives_begun_ = 0;        // number of messages that threads have begun to receive
  std::set<std::int32_t> receiving_;        // peers from which some thread is receiving a message
  std::map<std::int32_t, Header> headers_;  // by peer: header of the message that is being received
  // By peer: the first error of a put of that peer, if its data could not be stored here. The next wait() for a signal
  // of that peer that has not arrived yet returns the error and removes it.
  std::map<std::int32_t, Error> store_errors_;
  // The first error of a put of this rank that failed after put() had returned. The next put() to another rank, or
  // finish(), returns the error and removes it. Empty: no such error.
  std::optional<Error> put_error_;
  // By target: the time at which check_target() last ended without an error, because it saw no sign that the target's
  // process had ended.
  std::map<std::int32_t, std::chrono::steady_clock::time_point> checked_at_;
  // Puts in flight, by target; puts to one target complete in the order of the deque. Declared before channel_, so that
  // the puts are destroyed after the channel, which may still read their memory.
  std::map<std::int32_t, std::deque<Put>> puts_;
  std::size_t puts_in_flight_ = 0;
  std::size_t bytes_in_flight_ = 0;
  // Held while operations are started on the channel, and while channel_ is read or set.
  std::mutex channel_mutex_;
  // The communicator of the windows' messages. Null until the first add() has created it. Shared with the calls that
  // use it.
  std::shared_ptr<Communicator> channel_;
};

}  // namespace tutti::nccl
