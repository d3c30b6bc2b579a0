// PortQueue: the messages that wait to leave through one port (a NIC), in the model kFlows, in which messages share
// links. Internal to this folder: the event engine uses it. Used by one thread.
//
// A port sends its oldest message as fast as possible. If that message is slowed down by a bottleneck further on its
// route, for example because several senders send to one receiver, the port has bandwidth left. Then the port also
// sends the oldest message of another connection (unless SimulateOptions::ports_in_order is true). NICs do the same
// when they serve their queue pairs in turn, and kernels when they serve their sockets. Messages of one connection stay
// in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

class PortQueue {
 public:
  // number of messages that the port is sending
  std::uint32_t flows = 0;
  // number of gaps (MessageCost::gap_us) that follow a message and are not over. Until they are, the port is not idle,
  // even if it sends no bytes; it may send other messages meanwhile.
  std::uint32_t pauses = 0;
  // rate of all messages that the port is sending, together, in bytes per us
  double rate = 0;
  // Largest rate of a message of this port, in bytes per us. 0: no link on the routes of this port can be a bottleneck
  // (Flows::can_be_narrow()), so the port sends one message at a time, with its whole bandwidth.
  double most = 0;
  // true if the port is in EventRun::ports_to_fill_, the list of ports that may have bandwidth left
  bool listed = false;

  // Adds a message of a FIFO (a connection of one sending rank, see EventRun) at the end of the queue.
  void push(std::uint32_t fifo) { fifos_.push_back(fifo); }
  // True if the port sends nothing, and no gap after a message is open.
  bool is_idle() const { return flows + pauses == 0; }
  // True if the port sends messages, but they do not use its whole bandwidth, because bottlenecks slow them down.
  bool has_room() const { return flows > 0 && rate < most * kFull; }

  // Removes the oldest message of the queue and returns its FIFO. Skips messages of FIFOs for which under_way(fifo)
  // is true, because a FIFO may have only one message in transit. Only looks at the first kMostLookedAt messages.
  // Returns nothing if it may take none of them.
  template <class UnderWay>
  std::optional<std::uint32_t> take(UnderWay under_way) {
    const std::size_t end = std::min(fifos_.size(), next_ + kMostLookedAt);
    for (std::size_t i = next_; i < end; ++i) {
      const std::uint32_t fifo = fifos_[i];
      if (under_way(fifo)) continue;
      std::copy_backward(fifos_.begin() + at(next_), fifos_.begin() + at(i), fifos_.begin() + at(i + 1));
      forget(++next_);
      return fifo;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kMostLookedAt = 1024;
  static constexpr double kFull = 1 - 1e-9;

  static std::ptrdiff_t at(std::size_t index) { return static_cast<std::ptrdiff_t>(index); }
  // Removes the first `served` entries from the vector; they were taken already. Does so only when they are more than
  // about half of all entries, or all of them, because moving the rest takes time.
  void forget(std::size_t served) {
    if (served * 2 <= fifos_.size() + 64 && served < fifos_.size()) return;
    fifos_.erase(fifos_.begin(), fifos_.begin() + at(served));
    next_ = 0;
  }

  // One entry for each message: its FIFO, the oldest message first. Entries before next_ were taken. A FIFO has at
  // most as many waiting messages as a connection has slots.
  std::vector<std::uint32_t> fifos_;
  std::size_t next_ = 0;
};

}  // namespace tutti
