// Out-of-band datagrams: short messages between ranks. They do not travel over the connections of a Transport, so ranks
// can still communicate if a communicator is broken. Datagrams of one channel from one rank to another arrive in the
// order in which they were posted, but some can be lost, for example if the receiver does not take them
// (kMostQueuedDatagrams). SegmentExchange transfers them between ranks of the same machine (JobContext::machines), and
// TcpOobDatagrams between ranks of different machines, also if create_all() only simulates these machines. Each
// datagram belongs to a channel, a number that is derived from the id of a communicator, so that communicators do not
// receive each other's datagrams.
//
// OobDatagramQueue holds the datagrams from one peer that have arrived but have not been taken. A value; it has no
// lock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace tutti {

// The longest datagram, in bytes. With its header it fits into the smallest possible send buffer of a Unix socket.
inline constexpr std::size_t kMostDatagramBytes = 4096;
// Limit for the datagrams in one OobDatagramQueue, on all channels together; a further datagram replaces the oldest
// one.
inline constexpr std::size_t kMostQueuedDatagrams = 4096;

class OobDatagramQueue {
 public:
  void put(std::uint64_t channel, std::string datagram) {
    if (datagrams_.size() >= kMostQueuedDatagrams) datagrams_.pop_front();
    datagrams_.emplace_back(channel, std::move(datagram));
  }
  // Removes and returns the oldest datagram of `channel`; nullopt if there is none.
  std::optional<std::string> take(std::uint64_t channel) {
    for (auto at = datagrams_.begin(); at != datagrams_.end(); ++at) {
      if (at->first != channel) continue;
      std::string datagram = std::move(at->second);
      datagrams_.erase(at);
      return datagram;
    }
    return std::nullopt;
  }

 private:
  std::deque<std::pair<std::uint64_t, std::string>> datagrams_;
};

}  // namespace tutti
