// Notes: short messages between ranks that pass beside every connection, so that ranks can still speak where a
// communicator is broken. They come in the order in which they were posted. Who passes them: SegmentExchange inside a
// machine, TcpNotes across. A channel is a communicator's id: what is meant for one lies in nobody else's way.
//
// NoteBox holds those that one peer has sent and nobody has taken. A value without a lock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace tutti {

inline constexpr std::size_t kMostNoteBytes = 4096;     // with a header they fit into the least socket buffer
inline constexpr std::size_t kMostUntakenNotes = 4096;  // from one peer; the oldest make room

class NoteBox {
 public:
  void put(std::uint64_t channel, std::string note) {
    if (notes_.size() >= kMostUntakenNotes) notes_.pop_front();
    notes_.emplace_back(channel, std::move(note));
  }
  // The oldest of that channel.
  std::optional<std::string> take(std::uint64_t channel) {
    for (auto at = notes_.begin(); at != notes_.end(); ++at) {
      if (at->first != channel) continue;
      std::string note = std::move(at->second);
      notes_.erase(at);
      return note;
    }
    return std::nullopt;
  }

 private:
  std::deque<std::pair<std::uint64_t, std::string>> notes_;
};

}  // namespace tutti
