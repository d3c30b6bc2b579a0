// QueuePairs: the queue pairs of one VerbsLane, one or several for each rail. It owns them and the registrations of
// the lane's memory with their devices. It posts RDMA writes, counts their completions, and registers memory of the
// user. If a queue pair breaks, QueuePairs fails the lane and informs the peer. Use it in the thread that drives
// progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transports/verbs/lane_memory.h"
#include "transports/verbs/lane_state.h"
#include "transports/verbs/rail.h"
#include "transports/verbs/receive_targets.h"

namespace tutti {

// One rail of a lane: a port of this rank and the port of the peer to which it is connected.
struct LaneRail {
  VerbsRail* rail = nullptr;  // belongs to the VerbsPath, which outlives all uses by the lane
  VerbsPort remote;
};

struct GatherElement {  // one element of the gather list of a request
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;
};

struct RemoteAddress {  // the remote address that a request writes to
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

// One RDMA write. `signaled`: the request is signaled, which means that the device reports its completion. Of the
// other requests, QueuePairs::post() makes at least every depth() / 4th signaled, so that space in the send queue is
// recovered.
struct RdmaWrite {
  std::span<const GatherElement> elements;
  RemoteAddress aim;
  std::optional<std::uint32_t> immediate;  // none: the peer gets no notification
  bool signaled = false;
};

class QueuePairs {
 public:
  using PairRegistrations = ReceiveTargets::PairRegistrations;
  using Use = VerbsDevice::MemoryUse;
  static constexpr std::size_t kMostChained = 2;

  // `options` and `state` must outlive this object.
  QueuePairs(const VerbsLaneOptions& options, LaneState& state) : options_(options), state_(state) {}
  ~QueuePairs() { close(); }
  QueuePairs(const QueuePairs&) = delete;
  QueuePairs& operator=(const QueuePairs&) = delete;

  // Registers `memory` with the device of each rail and creates the queue pairs. Their completions go to `handler`.
  // Errors: kSystem, with the name of the device.
  Status create(const std::vector<LaneRail>& rails, const LaneMemory& memory, CompletionHandler& handler);
  std::string handshake_message(const LaneMemory& memory) const;
  // Connects the queue pairs to those in the handshake message of the peer. Returns false if the message cannot be
  // read, or if its options differ from those of this rank. If a queue pair cannot be connected, the lane fails, and
  // the result is still true.
  bool accept_handshake(const std::string& text);
  void close();  // destroys the queue pairs, and drops all registrations

  std::size_t size() const { return pairs_.size(); }
  std::string describe(std::size_t index) const;  // "rxe0 port 1, queue pair 17 (to queue pair 18 of ... at rank 3)"
  std::string describe_all() const;

  // The next functions are for sending. Call post() and post_empty() only if the lane works.
  bool has_capacity() const;  // true if each queue pair has space for the requests of any message
  // The number of parts that a message needs because the devices limit the length of one write.
  std::size_t least_parts_of(std::uint64_t bytes) const;
  // The number of parts of a message: more than the devices require if the message is long enough for several queue
  // pairs.
  std::size_t parts_of(std::uint64_t bytes) const;
  // For each queue pair, the speed of the slower of its two ports, in Mbit/s. Empty if one of the speeds is unknown.
  std::span<const std::uint32_t> weights() const { return weights_; }
  // The local key with which queue pair number `index` reads the send half of LaneMemory.
  std::uint32_t memory_key(std::size_t index) const { return pairs_[index].source->lkey; }
  RemoteAddress remote_memory(std::size_t index, std::uint64_t offset) const {  // in the receive half of the peer
    return {.address = remote_memory_ + offset, .key = pairs_[index].remote_key};
  }
  // Posts the requests as one list, in the given order. The device is then notified only once for all of them, which
  // costs less than one notification for each request.
  void post(std::size_t index, std::span<const RdmaWrite> writes);
  void post_empty(std::size_t index, std::uint32_t immediate);
  // Holds the registration of user memory until the request that was posted last on this queue pair is complete.
  void pin_until_done(std::size_t index, std::shared_ptr<RegistrationCache::Registration> registration);

  // Processes the completions of all rails of this lane, which includes those of other lanes on the same rails. Returns
  // true if there were any.
  bool poll();
  void note_done(std::size_t index, std::uint64_t number);
  void note_failure(std::size_t index, const std::string& words);
  // True if the NICs have finished reading the memory of the user, or if the lane is closed. False if the lane has
  // broken and is not closed: a caller that waits for true then finds that the peer is unreachable.
  bool pins_done() const;
  bool idle() const;          // true if all requests are completed, or if the lane is broken or closed
  void ask_for_completion();  // requests a completion on each queue pair that needs one, so that idle() can become true
  void note_reports();        // takes the failures of queue pairs that the devices have reported
  void probe();               // queries the state of the queue pairs; fails the lane if one is in the error state

  // Registers memory of the user with the device of every rail of this lane. Returns nothing if that fails for one of
  // them.
  std::optional<PairRegistrations> register_memory(Use use, std::span<const std::byte> memory);
  std::uint64_t most_registered_bytes(Use use) const;  // maximum size of a device's registration cache for `use`
  void forget(Use use, const PairRegistrations& registrations);

 private:
  struct Pair {
    LaneRail rail;
    ibv_qp* pair = nullptr;
    // registration of the send half of the lane's memory with the device of this rail
    ibv_mr* source = nullptr;
    // registration of the receive half with the device of this rail
    ibv_mr* target = nullptr;
    std::uint32_t most_inline = 0;    // longest inline message, in bytes
    std::uint32_t packet_number = 0;  // packet sequence number of the first packet
    std::uint32_t remote_number = 0;
    std::uint32_t remote_key = 0;     // remote key of the peer's receive half
    std::uint64_t posted = 0;         // requests posted so far
    std::uint64_t done = 0;           // number of the last request that is known to be complete
    std::uint64_t last_signaled = 0;  // number of the last request that was posted with a completion (signaled)
    std::uint64_t last_pinned = 0;    // number of the last request that reads memory of the user
    // Registered memory that requests still use: the number of the request, and the registration.
    std::deque<std::pair<std::uint64_t, std::shared_ptr<RegistrationCache::Registration>>> uses;
  };
  // Capacity of a queue pair, in requests: for example the parts of each message, the messages that report releases,
  // and some that only request a completion.
  std::uint32_t depth() const { return 4 * options_.slots + 16; }
  Status create_pair(const LaneRail& rail, ibv_mr* source, ibv_mr* target, CompletionHandler& handler);
  void request_completion(std::size_t index);

  const VerbsLaneOptions& options_;  // belongs to the VerbsLane, like `state_`
  LaneState& state_;
  // Registrations of the lane's memory: two for each rail, for the send half and for the receive half.
  std::vector<std::pair<VerbsRail*, ibv_mr*>> regions_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> weights_;  // see weights()
  std::uint64_t remote_memory_ = 0;     // address of the peer's receive half
};

}  // namespace tutti
