// Tests replies that are written into the slot of the peer's message. Checks which replies exist, and that no rank
// sends into a slot whose reply it has not read.
#include "plan/replies.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "algorithms/algorithms.h"

namespace tutti {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce, CollectiveKind::kBroadcast,     CollectiveKind::kReduce,
    CollectiveKind::kAllGather, CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
    CollectiveKind::kGather,    CollectiveKind::kScatter,       CollectiveKind::kBarrier};

TEST(Replies, AnOwnerOfADirectAllReduceAnswersEveryPeerInItsSlot) {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 4}, Algorithm::kTwoShot).value();
  const RankPlan plan = generator.build(generator.shape, 1);
  const std::vector<SlotReply> found = slot_replies(generator, 1, plan, 2);
  ASSERT_EQ(found.size(), 3u);
  const Channel& channel = plan.channels[0];
  for (const SlotReply& reply : found) {
    EXPECT_EQ(reply.step, 3u) << "the reply must be in the step that adds";
    const Step& step = channel.steps[reply.step];
    EXPECT_EQ(channel.ports[channel.sends(step)[reply.send_index]].peer,
              channel.ports[channel.receives(step)[reply.receive_index]].peer);
  }
  // With one slot, the reply would overwrite the message that it answers.
  EXPECT_TRUE(slot_replies(generator, 1, plan, 1).empty());
}

using Message = std::pair<std::uint32_t, std::uint16_t>;  // peer and lane

// The messages of one tile that are answered. For each peer and lane: the number of the message, and the number of
// its reply.
using Answers = std::map<Message, std::set<std::pair<std::size_t, std::size_t>>>;

Answers answers_of(const RankPlan& plan, const std::vector<SlotReply>& replies) {
  Answers answers;
  std::map<Message, std::size_t> received;
  std::map<Message, std::size_t> sent;
  for (std::uint32_t c = 0; c < plan.channels.size(); ++c) {
    const Channel& channel = plan.channels[c];
    for (std::uint32_t s = 0; s < channel.steps.size(); ++s) {
      // number of the message, indexed by its position among the step's receives
      std::map<std::size_t, std::size_t> of_step;
      const auto receives = channel.receives(channel.steps[s]);
      for (std::size_t i = 0; i < receives.size(); ++i) {
        of_step[i] = received[{channel.ports[receives[i]].peer, channel.ports[receives[i]].lane}]++;
      }
      const auto sends = channel.sends(channel.steps[s]);
      for (std::size_t i = 0; i < sends.size(); ++i) {
        const Message to{channel.ports[sends[i]].peer, channel.ports[sends[i]].lane};
        const std::size_t number = sent[to]++;
        for (const SlotReply& reply : replies) {
          if (reply.channel == c && reply.step == s && reply.send_index == i) {
            answers[to].insert({of_step.at(reply.receive_index), number});
          }
        }
      }
    }
  }
  return answers;
}

// Simulates the program of the rank that gets the replies, for three tiles. A slot is in use until its reply was
// read.
void expect_no_slot_is_used_too_early(const RankPlan& plan, std::uint32_t peer, std::uint16_t lane,
                                      const std::set<std::pair<std::size_t, std::size_t>>& answers, std::size_t slots) {
  std::size_t sent = 0;                                  // number of messages sent in all tiles
  std::deque<std::pair<std::size_t, std::size_t>> kept;  // slots in use, with the number of their reply in its tile
  for (int tile = 0; tile < 3; ++tile) {
    std::size_t sent_in_tile = 0;
    std::size_t received_in_tile = 0;
    for (const Channel& channel : plan.channels) {
      for (const Step& step : channel.steps) {
        // A step occupies slots for the messages that it sends before it releases those of the messages that it
        // received.
        for (const std::uint16_t port : channel.sends(step)) {
          if (channel.ports[port].peer != peer || channel.ports[port].lane != lane) continue;
          for (const auto& [slot, reply] : kept) ASSERT_NE(slot, sent % slots) << "still holds reply " << reply;
          for (const auto& [message, reply] : answers) {
            if (message == sent_in_tile) kept.emplace_back(sent % slots, reply);
          }
          ++sent;
          ++sent_in_tile;
        }
        for (const std::uint16_t port : channel.receives(step)) {
          if (channel.ports[port].peer != peer || channel.ports[port].lane != lane) continue;
          if (!kept.empty() && kept.front().second == received_in_tile) kept.pop_front();
          ++received_in_tile;
        }
      }
    }
    ASSERT_TRUE(kept.empty()) << "all slots must be free at the end of the tile";
  }
}

TEST(Replies, NoRankSendsIntoASlotWhoseReplyItHasNotRead) {
  std::size_t found = 0;
  for (const CollectiveKind kind : kKinds) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (std::uint32_t ranks = 2; ranks <= 8; ++ranks) {
        const auto generator = find_generator({.kind = kind, .ranks = ranks}, algorithm);
        if (!generator) continue;
        for (const std::size_t slots : {2u, 3u, 4u}) {
          for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            const RankPlan plan = generator->build(generator->shape, rank);
            const auto replies = slot_replies(*generator, rank, plan, static_cast<std::uint32_t>(slots));
            found += replies.size();
            for (const auto& [to, answers] : answers_of(plan, replies)) {
              SCOPED_TRACE(testing::Message() << to_string(kind) << " " << to_string(algorithm) << " of " << ranks
                                              << " ranks, rank " << rank << " to " << to.first);
              expect_no_slot_is_used_too_early(generator->build(generator->shape, to.first), rank, to.second, answers,
                                               slots);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(found, 500u);
}

}  // namespace
}  // namespace tutti
