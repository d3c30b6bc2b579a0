#include "plan/replies.h"

#include <map>
#include <optional>
#include <span>
#include <utility>

namespace tutti {
namespace {

// One message of one tile at one of its ends: the step, and which of its sends or receives it is.
struct End {
  std::uint32_t channel;
  std::uint32_t step;
  std::uint16_t index;
};
using Lane = std::pair<std::uint32_t, std::uint16_t>;  // peer, lane

// The messages of one tile that a rank sends to, or receives from, each peer and lane, in their order.
struct Ends {
  std::map<Lane, std::vector<End>> sends;
  std::map<Lane, std::vector<End>> receives;

  explicit Ends(const RankPlan& plan) {
    for (std::uint32_t c = 0; c < plan.channels.size(); ++c) {
      const Channel& channel = plan.channels[c];
      for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
        const Step& step = channel.steps[s];
        const auto note = [&](auto& ends, std::span<const std::uint16_t> ports) {
          for (std::size_t i = 0; i < ports.size(); ++i) {
            const Port& port = channel.ports[ports[i]];
            ends[{port.peer, port.lane}].push_back({.channel = c, .step = s, .index = static_cast<std::uint16_t>(i)});
          }
        };
        note(sends, channel.sends(step));
        note(receives, channel.receives(step));
      }
    }
  }
};

// The only entry of `step`, if it has just one; and which message of the tile that is.
std::optional<std::size_t> only_of_step(const std::vector<End>& ends, std::uint32_t channel, std::uint32_t step) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].channel != channel || ends[i].step != step) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

// Of one connection there and back: the messages of a tile at each end.
struct ThereAndBack {
  const std::vector<End>& received;  // here, from the peer
  const std::vector<End>& replied;   // here, to the peer
  const std::vector<End>& sent;      // by the peer
  const std::vector<End>& awaited;   // by the peer
};

// Whether the `message`-th message of a tile is still alone in its slot when its sender has read the `reply`-th.
bool slot_is_kept(const ThereAndBack& lane, std::size_t message, std::size_t reply, std::uint32_t slots) {
  if (message >= lane.sent.size() || reply >= lane.awaited.size()) return false;
  const End& asks = lane.sent[message];
  const End& gets = lane.awaited[reply];
  if (asks.channel != gets.channel || asks.step >= gets.step) return false;
  std::size_t taken = 0;
  for (std::size_t i = message; i < lane.sent.size() && lane.sent[i].step <= gets.step; ++i) ++taken;
  return taken <= slots;
}

}  // namespace

std::vector<SlotReply> slot_replies(const Generator& generator, std::uint32_t rank, const RankPlan& own,
                                    std::uint32_t slots) {
  Ends mine(own);
  std::vector<SlotReply> found;
  std::map<std::uint32_t, Ends> peers;
  for (const auto& [key, replied] : mine.sends) {
    const std::vector<End>& received = mine.receives[key];
    if (received.empty()) continue;
    auto peer = peers.find(key.first);
    if (peer == peers.end()) {
      peer = peers.emplace(key.first, Ends(generator.build(generator.shape, key.first))).first;
    }
    const ThereAndBack lane{.received = received,
                            .replied = replied,
                            .sent = peer->second.sends[{rank, key.second}],
                            .awaited = peer->second.receives[{rank, key.second}]};
    for (std::size_t reply = 0; reply < replied.size(); ++reply) {
      const End& end = replied[reply];
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
