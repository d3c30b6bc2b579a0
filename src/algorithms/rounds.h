// Rounds: common code of the algorithms in which every rank exchanges several chunks with one partner at a time.
//
// A message is one chunk, so a round consists of many messages, while a connection holds only a few. The messages
// are distributed over `lanes` connections, round-robin. A rank sends up to kRoundSlots * lanes messages before it
// has to receive the first message of the same round. As long as a round is not longer than that, it takes one
// latency, regardless of the number of its messages. Every rank runs the same sequence of sends and receives. So a
// send waits only for receives that are earlier in this sequence, and kRoundSlots messages per connection are
// enough to avoid a deadlock. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti {

inline constexpr std::uint16_t kRoundSlots = 2;
// Each lane costs connections. With 4 lanes, rounds of up to 8 messages (16 ranks) take one latency.
inline constexpr std::uint16_t kMostRoundLanes = 4;

// Number of lanes for an algorithm with this number of messages in its longest round.
constexpr std::uint16_t round_lanes(std::uint32_t messages) {
  return static_cast<std::uint16_t>(
      std::clamp<std::uint32_t>((messages + kRoundSlots - 1) / kRoundSlots, 1, kMostRoundLanes));
}

// Calls send(m) and receive(m) for m = 0 .. messages-1, each in ascending order, with the sends as early as
// possible.
template <class Send, class Receive>
void for_each_of_round(std::uint32_t messages, std::uint16_t lanes, Send send, Receive receive) {
  const std::uint32_t ahead = std::min<std::uint32_t>(std::uint32_t{kRoundSlots} * lanes, messages);
  for (std::uint32_t m = 0; m < messages + ahead; ++m) {
    if (m >= ahead) receive(m - ahead);
    if (m < messages) send(m);
  }
}

}  // namespace tutti
