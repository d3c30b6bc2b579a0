// What waits to leave by a port (a NIC) where messages share links. Internal to this folder: the event engine runs it.
// One thread.
//
// A port carries the oldest message as fast as it can. Where the way of that one is narrow further on, as that of
// several senders into one receiver, the port has bandwidth to spare, and begins with the oldest message of another
// connection: cards serve their queue pairs, and kernels their sockets, in turn. Messages of one connection stay in
// order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti {

class PortQueue {
 public:
  std::uint32_t flows = 0;   // under way
  std::uint32_t pauses = 0;  // gaps after messages, in which the port does nothing for them
  double rate = 0;           // of all flows, bytes per us
  double most = 0;           // bytes per us; 0: no link beyond the port is narrow, so one message at a time uses it up
  bool looked_at = false;    // the caller has it in its list of ports with room

  void push(std::uint32_t line) { lines_.push_back(line); }
  bool is_idle() const { return flows + pauses == 0; }
  bool has_room() const { return flows > 0 && rate < most * kFull; }

  // The oldest message whose line has none under way; of the first kMostLookedAt.
  template <class UnderWay>
  std::optional<std::uint32_t> take(UnderWay under_way) {
    const std::size_t end = std::min(lines_.size(), next_ + kMostLookedAt);
    for (std::size_t i = next_; i < end; ++i) {
      const std::uint32_t line = lines_[i];
      if (under_way(line)) continue;
      std::copy_backward(lines_.begin() + at(next_), lines_.begin() + at(i), lines_.begin() + at(i + 1));
      forget(++next_);
      return line;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t kMostLookedAt = 1024;
  static constexpr double kFull = 1 - 1e-9;

  static std::ptrdiff_t at(std::size_t index) { return static_cast<std::ptrdiff_t>(index); }
  void forget(std::size_t served) {  // now and then
    if (served * 2 <= lines_.size() + 64 && served < lines_.size()) return;
    lines_.erase(lines_.begin(), lines_.begin() + at(served));
    next_ = 0;
  }

  std::vector<std::uint32_t> lines_;  // in order; at most `slots` for each connection
  std::size_t next_ = 0;
};

}  // namespace tutti
