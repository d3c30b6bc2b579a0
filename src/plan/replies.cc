// slot_replies() finds the possible replies of a rank: for each send of the rank, it looks for a message that the same
// step receives from the same peer, and checks in the peer's plan that the peer does not need the slot of this message
// again before it has received the reply.
#include "plan/replies.h"

#include <map>
#include <optional>
#include <span>
#include <utility>

namespace tutti {
namespace {

// One end of one message of a tile: the channel and the step that send (or receive) it, and the index of the
// message among the sends (or receives) of this step.
struct MessageEnd {
  std::uint32_t channel;
  std::uint32_t step;
  std::uint16_t index;
};
using PeerLane = std::pair<std::uint32_t, std::uint16_t>;  // the peer's rank, the lane

// The messages of one tile that a rank sends to each peer and lane, and those that it receives from each peer and
// lane, in the order in which the rank's steps run.
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

// If exactly one of `ends` belongs to the step `step` of `channel`, returns the index of this end, which is the
// number of its message within the tile. Otherwise returns nothing.
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

// The messages of one tile between this rank and a peer on one lane, in both directions, each listed from this
// rank's plan and from the peer's plan.
struct ConnectionPair {
  const std::vector<MessageEnd>& received;  // messages from the peer to this rank, in this rank's plan
  const std::vector<MessageEnd>& replied;   // messages from this rank to the peer, in this rank's plan
  const std::vector<MessageEnd>& sent;      // messages from the peer to this rank, in the peer's plan
  const std::vector<MessageEnd>& awaited;   // messages from this rank to the peer, in the peer's plan
};

// True if the peer does not need the slot of its message number `message` again before it has received the reply,
// which is this rank's message number `reply`. This is true if the peer receives the reply in a later step of the
// same channel, and sends at most `slots` messages on the lane from `message` until it receives the reply.
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
