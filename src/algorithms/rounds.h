// Rounds: common code of algorithms that run in rounds. In each round, every rank that takes part sends one or more
// chunks to one partner and receives as many chunks from one partner (the same or another rank). In plans with runs
// (Messages in algorithms.h), the chunks of a round are one message in each direction.
//
// In plans with one chunk per message, a round consists of many messages, while the algorithms rely on only kRoundSlots
// slots of a connection. Therefore the messages of a round are distributed over several connections (lanes) to the
// partner: message m uses lane m % lanes. A rank sends up to kRoundSlots * lanes messages before it has to receive the
// first message of the same round. A round with at most that many short messages takes about the time of one network
// latency. A longer round takes several latencies. Every rank that takes part runs the same sequence of sends and
// receives. So a send waits for a free slot only until the partner has run receives that are earlier in this sequence,
// and slots for kRoundSlots messages per connection are enough to avoid a deadlock. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tutti {

// Number of messages that each connection must be able to hold (PlanShape::slots of these algorithms).
inline constexpr std::uint16_t kRoundSlots = 2;
// Largest number of lanes. More lanes would need more connections and their memory. With 4 lanes of 2 slots, rounds of
// up to 8 messages take one latency. The longest round has at most half as many messages as there are ranks, so with up
// to 17 ranks all rounds take one latency.
inline constexpr std::uint16_t kMostRoundLanes = 4;

// Number of lanes for an algorithm if its longest round has `messages` messages per rank: enough to send them all at
// once, but at most kMostRoundLanes.
constexpr std::uint16_t round_lanes(std::uint32_t messages) {
  return static_cast<std::uint16_t>(
      std::clamp<std::uint32_t>((messages + kRoundSlots - 1) / kRoundSlots, 1, kMostRoundLanes));
}

// Calls send(m) and receive(m) once for each m = 0 .. messages-1, each in ascending order of m. A send is called
// as early as the slots allow: kRoundSlots * lanes messages before the receive with the same number.
template <class Send, class Receive>
void for_each_of_round(std::uint32_t messages, std::uint16_t lanes, Send send, Receive receive) {
  const std::uint32_t ahead = std::min<std::uint32_t>(std::uint32_t{kRoundSlots} * lanes, messages);
  for (std::uint32_t m = 0; m < messages + ahead; ++m) {
    if (m >= ahead) receive(m - ahead);
    if (m < messages) send(m);
  }
}

}  // namespace tutti
