// Windows of a communicator, and the one-sided calls on them.
//
// ncclCommWindowRegister() is collective; a window has the same number on all ranks. Puts and signals travel as
// messages between the two ranks, over a communicator of their own, so that they do not mix with the program's sends
// and receives. A put copies what it sends and returns; it lands, and a signal counts, when the target waits for
// signals of that rank (ncclWaitSignal()), which is also when NCCL promises to show it.
//
// Threads: any; one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "nccl.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

struct Window {
  std::uint32_t number = 0;  // the same on all ranks; from 1
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::vector<std::uint64_t> all_bytes{};  // by rank
  Memory registration{};                   // where the runtime has a use for it
};

struct Signal {
  std::int32_t peer = 0;
  std::int32_t index = 0;
  std::int32_t context = 0;

  auto operator<=>(const Signal&) const = default;
};

class Windows {
 public:
  explicit Windows(std::int32_t rank) : rank_(rank) {}
  ~Windows();

  // Collective over `parent`. Its registration is kept where the runtime takes one.
  Result<ncclWindow_t> add(Communicator& parent, void* data, std::size_t bytes);
  // Collective where the window is of device memory. Errors: kInvalidArgument (none of this communicator's).
  Status remove(ncclWindow_t handle);
  Result<const Window*> find(ncclWindow_t handle);
  bool empty();

  // `data`: host or device memory, as `stream` leaves it. A null window: the signal alone.
  Status put(const Signal& to, const Window* window, std::uint64_t offset, const void* data, std::size_t bytes,
             void* stream);
  // Until `count` more signals have come.
  Status wait(const Signal& from, std::uint64_t count);
  void abort();  // from any thread

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
  Status take_one(std::int32_t peer);
  Status land(std::uint32_t window, std::uint64_t offset, std::uint64_t bytes, std::int32_t peer);
  Status send(std::int32_t peer, Put put);
  void forget_done();

  const std::int32_t rank_;
  std::mutex mutex_;
  std::unique_ptr<Communicator> channel_;  // made with the first window
  std::uint32_t last_number_ = 0;
  std::map<ncclWindow_t, std::unique_ptr<Window>> windows_;
  std::map<Signal, std::uint64_t> arrived_;  // and not yet waited for
  std::deque<Put> puts_;                     // under way
  std::size_t bytes_under_way_ = 0;
};

}  // namespace tutti::nccl
