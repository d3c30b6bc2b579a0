// Finds the replies of a rank by pairing its messages of one tile with those of each peer, in both directions.
#include "plan/replies.h"

#include <map>
#include <optional>
#include <span>
#include <utility>

namespace tutti {
namespace {

// One end of one message of a tile: the step that sends or receives it, and its index among the sends or receives
// of the step.
struct MessageEnd {
  std::uint32_t channel;
  std::uint32_t step;
  std::uint16_t index;
};
using PeerLane = std::pair<std::uint32_t, std::uint16_t>;  // peer, lane

// The messages of one tile that a rank sends to, and receives from, each peer and lane, in their order.
struct TileMessages {
  std::map<PeerLane, std::vector<MessageEnd>> sends;
  std::map<PeerLane, std::vector<MessageEnd>> receives;

  explicit TileMessages(const RankPlan& plan) {
    for (std::uint32_t c = 0; c < plan.channels.size(); ++c) {
      const Channel& channel = plan.channels[c];
      for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
        const Step& step = channel.steps[s];
        const auto record = [&](auto& ends, std::span<const std::uint16_t> ports) {
          for (std::size_t i = 0; i < ports.size(); ++i) {
            const Port& port = channel.ports[ports[i]];
            ends[{port.peer, port.lane}].push_back({.channel = c, .step = s, .index = static_cast<std::uint16_t>(i)});
          }
        };
        record(sends, channel.sends(step));
        record(receives, channel.receives(step));
      }
    }
  }
};

// If `step` has exactly one end in `ends`, returns that end's index, which is the number of the message in the
// tile. Otherwise returns nothing.
std::optional<std::size_t> only_of_step(const std::vector<MessageEnd>& ends, std::uint32_t channel,
                                        std::uint32_t step) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].channel != channel || ends[i].step != step) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

// The messages of one tile between this rank and a peer on one lane, in both directions and at both ends.
struct ConnectionPair {
  const std::vector<MessageEnd>& received;  // messages from the peer, as this rank receives them
  const std::vector<MessageEnd>& replied;   // messages to the peer, as this rank sends them
  const std::vector<MessageEnd>& sent;      // messages to this rank, as the peer sends them
  const std::vector<MessageEnd>& awaited;   // messages from this rank, as the peer receives them
};

// True if the peer does not need the slot of its message number `message` again before it has read the message
// number `reply` that answers it. The peer's sends from `message` until it reads `reply` must then fit into the
// `slots` slots.
bool slot_is_kept(const ConnectionPair& lane, std::size_t message, std::size_t reply, std::uint32_t slots) {
  if (message >= lane.sent.size() || reply >= lane.awaited.size()) return false;
  const MessageEnd& request = lane.sent[message];
  const MessageEnd& response = lane.awaited[reply];
  if (request.channel != response.channel || request.step >= response.step) return false;
  std::size_t taken = 0;
  for (std::size_t i = message; i < lane.sent.size() && lane.sent[i].step <= response.step; ++i) ++taken;
  return taken <= slots;
}

}  // namespace

std::vector<SlotReply> slot_replies(const Generator& generator, std::uint32_t rank, const RankPlan& own,
                                    std::uint32_t slots) {
  TileMessages mine(own);
  std::vector<SlotReply> found;
  std::map<std::uint32_t, TileMessages> peers;
  for (const auto& [key, replied] : mine.sends) {
    const std::vector<MessageEnd>& received = mine.receives[key];
    if (received.empty()) continue;
    auto peer = peers.find(key.first);
    if (peer == peers.end()) {
      peer = peers.emplace(key.first, TileMessages(generator.build(generator.shape, key.first))).first;
    }
    const ConnectionPair lane{.received = received,
                              .replied = replied,
                              .sent = peer->second.sends[{rank, key.second}],
                              .awaited = peer->second.receives[{rank, key.second}]};
    for (std::size_t reply = 0; reply < replied.size(); ++reply) {
      const MessageEnd& end = replied[reply];
      const auto message = only_of_step(received, end.channel, end.step);
      if (!message || !only_of_step(replied, end.channel, end.step)) continue;
      if (!slot_is_kept(lane, *message, reply, slots)) continue;
      found.push_back({.channel = end.channel,
                       .step = end.step,
                       .send_index = end.index,
                       .receive_index = received[*message].index});
    }
  }
  return found;
}

}  // namespace tutti
