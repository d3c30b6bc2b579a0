// The rules for windows, and window_sends(), which finds the receiving step of each send of a rank.
#include "plan/windows.h"

#include <map>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// A step of a peer's plan that receives a message.
struct Receive {
  std::uint32_t channel;
  std::uint32_t step;
};

// The receives of one tile with which a peer receives from one given rank. For each lane, the list has the order in
// which the receives run.
using ReceivesByLane = std::map<std::uint16_t, std::vector<Receive>>;

ReceivesByLane receives_from(const RankPlan& plan, std::uint32_t rank) {
  ReceivesByLane receives;
  for (std::uint32_t c = 0; c < plan.channels.size(); ++c) {
    const Channel& channel = plan.channels[c];
    for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
      for (std::uint16_t index : channel.receives(channel.steps[s])) {
        const Port& port = channel.ports[index];
        if (port.peer == rank) receives[port.lane].push_back({.channel = c, .step = s});
      }
    }
  }
  return receives;
}

// A peer's plan, its receives from this rank, and, for each lane, the number of these receives that were paired
// with sends so far.
struct PeerReceives {
  RankPlan plan;
  ReceivesByLane receives;
  std::map<std::uint16_t, std::size_t> paired;
};

WindowSend pair(const Step& step, PeerReceives& peer, std::uint16_t lane) {
  const std::vector<Receive>& receives = peer.receives[lane];
  const std::size_t k = peer.paired[lane]++;
  TUTTI_ASSERT(k < receives.size(), "a peer receives fewer messages than are sent to it");
  const Step& other = peer.plan.channels[receives[k].channel].steps[receives[k].step];
  WindowSend send;
  send.lane = lane;
  send.peer_channel = receives[k].channel;
  send.peer_step = receives[k].step;
  send.carrier = carrier_of(step, other);
  send.unpublished = carrier_without_publish(other);
  send.peer_sink = other.sink;
  return send;
}

}  // namespace

bool can_publish(const Step& sender_step) {
  const bool mapped = sender_step.source.space == Space::kInput || sender_step.source.space == Space::kOutput;
  return sender_step.receive_count == 0 && mapped && sender_step.completes == 0 && sender_step.run == 1;
}

bool can_push(const Step& receiver_step) {
  return receiver_step.receive_count == 1 && receiver_step.source.space == Space::kNone &&
         receiver_step.sink.space == Space::kOutput && receiver_step.completes == 0 && receiver_step.run == 1;
}

Carrier carrier_of(const Step& sender_step, const Step& receiver_step) {
  return can_publish(sender_step) ? Carrier::kPublished : carrier_without_publish(receiver_step);
}

Carrier carrier_without_publish(const Step& receiver_step) {
  return can_push(receiver_step) ? Carrier::kDelivered : Carrier::kSlot;
}

std::vector<WindowSend> window_sends(const Generator& generator, std::uint32_t rank, const RankPlan& own) {
  std::map<std::uint32_t, PeerReceives> peers;
  std::vector<WindowSend> sends;
  for (std::uint32_t c = 0; c < own.channels.size(); ++c) {
    const Channel& channel = own.channels[c];
    for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
      const Step& step = channel.steps[s];
      for (std::uint16_t i = 0; i < step.send_count; ++i) {
        const Port& port = channel.ports[channel.sends(step)[i]];
        PeerReceives& peer = peers[port.peer];
        if (peer.plan.channels.empty()) {
          peer.plan = generator.build(generator.shape, port.peer);
          peer.receives = receives_from(peer.plan, rank);
        }
        WindowSend send = pair(step, peer, port.lane);
        send.channel = c;
        send.step = s;
        send.send_index = i;
        send.peer = port.peer;
        sends.push_back(send);
      }
    }
  }
  return sends;
}

}  // namespace tutti
