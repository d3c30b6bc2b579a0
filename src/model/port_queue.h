// PortQueue: the messages that wait to leave through a port (a NIC) if messages share links. Internal to this
// folder: the event engine uses it. Used by one thread.
//
// A port sends the oldest message as fast as it can. If that message is slowed down by a bottleneck further on its
// route, for example because several senders send to one receiver, the port has bandwidth left. Then it also sends
// the oldest message of another connection, in the same way as NICs serve their queue pairs, and kernels their
// sockets, in turn. Messages of one connection stay in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

class PortQueue {
 public:
  std::uint32_t flows = 0;   // number of active flows
  std::uint32_t pauses = 0;  // number of gaps after messages, in which the port is busy but sends no bytes
  double rate = 0;           // of all flows together, in bytes per us
  // In bytes per us. 0: there is no bottleneck beyond the port, so one message at a time uses its whole bandwidth.
  double most = 0;
  bool listed = false;  // the port is in the caller's list of ports that may have bandwidth left

  void push(std::uint32_t fifo) { fifos_.push_back(fifo); }
  bool is_idle() const { return flows + pauses == 0; }
  bool has_room() const { return flows > 0 && rate < most * kFull; }

  // Removes and returns the FIFO of the oldest message, but skips messages of a FIFO that has an active flow.
  // Considers the first kMostLookedAt messages.
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
  // Frees the memory of messages that were taken, but only now and then.
  void forget(std::size_t served) {
    if (served * 2 <= fifos_.size() + 64 && served < fifos_.size()) return;
    fifos_.erase(fifos_.begin(), fifos_.begin() + at(served));
    next_ = 0;
  }

  // the FIFOs of the waiting messages, in order; at most `slots` messages for each
  std::vector<std::uint32_t> fifos_;
  std::size_t next_ = 0;
};

}  // namespace tutti
