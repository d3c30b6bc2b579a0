// Rounds: what the algorithms share in which every rank exchanges several chunks with one partner at a time.
//
// A message is one chunk, so a round is many messages, and a connection holds few of them. They are dealt to `lanes`
// connections in turn, and a rank sends up to kRoundSlots * lanes messages before it must have received the first of
// the same round: as long as a round is no longer than that, it costs one latency, whatever the number of its messages.
// Every rank runs the same sequence of sends and receives, so the send of a message waits for nothing but receives that
// stand earlier in that sequence: kRoundSlots messages per connection are enough. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti {

inline constexpr std::uint16_t kRoundSlots = 2;
// Each lane costs connections; with 4, rounds of up to 8 messages (16 ranks) cost one latency.
inline constexpr std::uint16_t kMostRoundLanes = 4;

// Lanes for an algorithm whose longest round has so many messages.
constexpr std::uint16_t round_lanes(std::uint32_t messages) {
  return static_cast<std::uint16_t>(
      std::clamp<std::uint32_t>((messages + kRoundSlots - 1) / kRoundSlots, 1, kMostRoundLanes));
}

// Calls send(m) and receive(m) for m = 0 .. messages-1, each in ascending order, the sends as far ahead as they may be.
template <class Send, class Receive>
void for_each_of_round(std::uint32_t messages, std::uint16_t lanes, Send send, Receive receive) {
  const std::uint32_t ahead = std::min<std::uint32_t>(std::uint32_t{kRoundSlots} * lanes, messages);
  for (std::uint32_t m = 0; m < messages + ahead; ++m) {
    if (m >= ahead) receive(m - ahead);
    if (m < messages) send(m);
  }
}

}  // namespace tutti
