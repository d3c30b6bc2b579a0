// Windows of a communicator, and the one-sided calls on them.
//
// ncclCommWindowRegister() is collective; a window has the same number on all ranks. Puts and signals travel as
// messages between the two ranks, over a communicator of their own, so that they do not mix with the program's sends
// and receives. A put copies what it sends and returns; it lands, and a signal counts, when the target waits for
// signals of that rank (ncclWaitSignal()), which is also when NCCL promises to show it.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
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
  explicit Windows(std::int32_t rank) : rank_(rank) {}
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // Collective over `parent`: one at a time. Errors, the same on all ranks: that it failed on one.
  Result<ncclWindow_t> add(Communicator& parent, void* data, std::size_t bytes);
  // Collective where the window is of device memory. Errors: kInvalidArgument (none of this communicator's).
  Status remove(ncclWindow_t handle);
  Result<std::byte*> data_of(ncclWindow_t handle);

  // `data`: host or device memory, as `stream` leaves it. A null window, with 0 bytes: the signal alone.
  Status put(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
             void* stream);
  // Until `count` more signals have come.
  Status wait(const Signal& from, std::uint64_t count);
  Status finish();  // waits until all puts have gone
  void abort();     // from any thread, while others are in the functions above

 private:
  struct Header {              // of a message; ranks of one job run the same build
    std::uint32_t window = 0;  // 0: a signal alone
    std::int32_t index = 0;
    std::int32_t context = 0;
    std::uint32_t unused = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  struct Put {
    std::unique_ptr<Header> header;  // stays where it is while it is sent
    std::vector<std::byte> payload;
    Work work;
  };
  std::shared_ptr<Communicator> channel();
  Result<Put> prepare(const Signal& to, ncclWindow_t window, std::uint64_t offset, const void* data, std::size_t bytes,
                      void* stream);
  Status send(Communicator& channel, std::int32_t peer, Put put);
  Status receive(Communicator& channel, void* to, std::size_t bytes, std::int32_t peer);
  Result<Signal> take_one(Communicator& channel, std::int32_t peer);
  Status land(Communicator& channel, const Header& header, std::int32_t peer);
  void forget_done();

  const std::int32_t rank_;
  std::mutex mutex_;  // not held while peers are waited for, but for room for a put
  std::condition_variable changed_;
  std::uint32_t last_number_ = 0;
  std::map<ncclWindow_t, std::shared_ptr<Window>> windows_;  // shared with what lands in them
  std::map<Signal, std::uint64_t> arrived_;                  // and not yet waited for
  std::set<std::int32_t> receiving_;                         // from these peers some thread receives
  std::deque<Put> puts_;                                     // under way; ends after the channel that sends them
  std::size_t bytes_under_way_ = 0;
  std::mutex channel_mutex_;               // held around what is put into the channel, and where it is made
  std::shared_ptr<Communicator> channel_;  // made with the first window; shared by who uses it
};

}  // namespace tutti::nccl
