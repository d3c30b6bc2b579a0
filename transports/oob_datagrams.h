// Notes: short messages between ranks that pass beside every connection, so that ranks can still speak where a
// communicator is broken. They come in the order in which they were posted. Who passes them: SegmentExchange inside a
// machine, TcpOobDatagrams across. A channel is a communicator's id: what is meant for one lies in nobody else's way.
//
// OobDatagramQueue holds those that one peer has sent and nobody has taken. A value without a lock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace tutti {

inline constexpr std::size_t kMostDatagramBytes = 4096;    // with a header they fit into the least socket buffer
inline constexpr std::size_t kMostQueuedDatagrams = 4096;  // from one peer; the oldest make room

class OobDatagramQueue {
 public:
  void put(std::uint64_t channel, std::string datagram) {
    if (datagrams_.size() >= kMostQueuedDatagrams) datagrams_.pop_front();
    datagrams_.emplace_back(channel, std::move(datagram));
  }
  // The oldest of that channel.
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
