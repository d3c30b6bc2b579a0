// Windows of a communicator, and the one-sided calls on them.
//
// ncclCommWindowRegister() is collective; a window has the same number on all ranks. Puts and signals travel as
// messages between the two ranks, over a communicator of their own, so that they do not mix with the program's sends
// and receives. A put copies what it sends and returns. It lands while the target is in a one-sided call that waits:
// for a signal of any rank, for room for a put, or for its last puts when the communicator is finalized. NCCL promises
// to show it after ncclWaitSignal() only.
//
// Limits: a rank has at most kMostPuts puts and kMostBytes bytes of them under way. A further put waits until targets
// have taken some of them, and takes meanwhile what has been put here, so that ranks which put to each other without
// waiting for signals go on. It waits until its deadline if the target never enters a call that waits: because the
// target only computes, or because the same thread would have to make the call.
//
// Threads: any.
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

struct Window {
  std::uint32_t number = 0;  // the same on all ranks; from 1
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::uint64_t> all_bytes{};  // by rank
  Registration registration{};
};

struct Signal {
  std::int32_t peer = 0;
  std::int32_t index = 0;
  std::int32_t context = 0;

  auto operator<=>(const Signal&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14
};

class Windows {
 public:
  // Of puts under way from one rank.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  static constexpr std::size_t kMostPuts = 1024;  // each costs time whenever one of them moves

  explicit Windows(std::int32_t rank) : rank_(rank) {}
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Collective over `parent`: one at a time. Errors, the same on all ranks: that it failed on one.
  Result<ncclWindow_t> add(Communicator& parent, void* data, std::size_t bytes);
  // Collective where the window is of device memory. Errors: kInvalidArgument (none of this communicator's).
  Status remove(ncclWindow_t handle);
  Result<std::byte*> data_of(ncclWindow_t handle);

  // `data`: host or device memory, as `stream` leaves it. A null window, with 0 bytes: the signal alone. Errors:
  // kPeerLost if the process of the target had ended a second before; of an earlier put that has failed since.
  Status put(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
             void* stream);
  // Until `count` more signals have come.
  Status wait(const Signal& from, std::uint64_t count);
  Status finish();  // waits until all puts have gone, and takes meanwhile what has been put here
  void abort();     // from any thread, while others are in the functions above

 private:
  // Of a message; ranks of one job run the same build. A short payload travels inside: one message instead of two.
  static constexpr std::size_t kInsideBytes = 224;
  struct Header {
    std::uint32_t window = 0;  // 0: a signal alone
    std::int32_t index = 0;
    std::int32_t context = 0;
    std::uint32_t unused = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::array<std::byte, kInsideBytes> inside{};
  };
  static_assert(sizeof(Header) == 256);
  struct Put {
    std::unique_ptr<Header> header;  // stays where it is while it is sent
    std::vector<std::byte> payload;  // empty: it is inside the header
    Work work;
  };
  std::shared_ptr<Communicator> channel();
  Result<Put> prepare(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
                      void* stream);
  enum class When : std::uint8_t { kIsThere, kMayBeLate };  // a message
  using Lock = std::unique_lock<std::mutex>;                // of mutex_; let go while peers are waited for
  Status look_at_target(Lock& lock, Communicator& channel, std::int32_t peer);
  Status send(Communicator& channel, std::int32_t peer, Put put);
  Status make_room(Lock& lock, Communicator& channel, std::size_t bytes);
  Status receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer);
  Result<Work> start_receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer);
  Status take(Lock& lock, Communicator& channel, std::int32_t peer, When when);
  Result<bool> take_any(Lock& lock, Communicator& channel);
  Status take_until(Lock& lock, Communicator& channel, int looks_per_probe, const std::function<bool()>& done);
  Status receive_and_land(Lock& lock, Communicator& channel, std::int32_t peer, When when, Status& landed);
  Status land(Communicator& channel, const Header& header, std::int32_t peer, Status& landed);
  void forget_done();
  Status take_failure();

  const std::int32_t rank_;
  std::mutex mutex_;  // not held while peers are waited for
  std::condition_variable changed_;
  std::uint32_t last_number_ = 0;
  std::map<ncclWindow_t, std::shared_ptr<Window>> windows_;  // shared with what lands in them
  std::map<Signal, std::uint64_t> arrived_;                  // and not yet waited for
  std::uint64_t takes_ = 0;                                  // messages that some thread has begun to take
  std::set<std::int32_t> receiving_;                         // from these peers some thread receives
  std::map<std::int32_t, Header> headers_;                   // by peer, of the message that is received
  std::map<std::int32_t, Error> not_landed_;                 // by the peer whose put could not; for the next wait()
  std::optional<Error> lost_put_;                            // of this rank's; for its next put() or finish()
  std::map<std::int32_t, std::chrono::steady_clock::time_point> looked_at_;  // targets, when look_at_target() did so
  // Under way, by target; they end after the channel that sends them. Those to one target end in their order.
  std::map<std::int32_t, std::deque<Put>> puts_;
  std::size_t puts_under_way_ = 0;
  std::size_t bytes_under_way_ = 0;
  std::mutex channel_mutex_;               // held around what is put into the channel, and where it is made
  std::shared_ptr<Communicator> channel_;  // made with the first window; shared by who uses it
};

}  // namespace tutti::nccl
