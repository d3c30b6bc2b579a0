// The stages inside a machine process the chunks in passes. Pass i (from 0) processes the i-th chunk of every
// member that owns more than i chunks. Each pass has chunks of as many owners as possible, so that every member
// has work, and connections need to hold only few messages. In a pass:
//
// Direct reduce-scatter     send in[c] to its owner, the next member's first; then own c: member 0 (+) 1 (+) ..., own
//                           input at its position, complete: store out[c]
// Direct all-gather         send own out[c] to all; then received from each: store out[c]
// Ring reduce-scatter       hop k = 0 .. L-1 of L members: the chunk whose owner is k + 1 members back
//                           hop 0: send in[c] to the next; hop k: received (+) in[c], send;
//                           hop L-1, the owner: received (+) in[c], complete: store out[c]
// Ring all-gather           hop k = 0 .. L-1: the chunk whose owner is k members back
//                           hop 0, the owner: send out[c]; hop k: received: store out[c], send; hop L-1: only store
//
// If all chunks together have n bytes, and the L members own equal parts of them, a member sends n(L-1)/L bytes in each
// stage. A pass has one round with the direct algorithm, and L-1 rounds with the ring. A step of a ring receives and
// sends, so the connections of a ring must hold 2 messages.
#include "algorithms/inside.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;
constexpr std::uint32_t kNoChunk = ~std::uint32_t{0};

std::size_t passes(const Owned& owned) {
  std::size_t most = 0;
  for (const std::vector<std::uint32_t>& chunks : owned) most = std::max(most, chunks.size());
  return most;
}

// The ring of members, as seen from one member: ahead(d) and behind(d) are the members at distance d. chunk() is
// the chunk of an owner in a pass, or kNoChunk if the owner has no chunk in this pass.
struct Circle {
  const Owned& owned;
  std::uint32_t member;

  std::uint32_t members() const { return static_cast<std::uint32_t>(owned.size()); }
  std::uint32_t ahead(std::uint32_t distance) const { return (member + distance) % members(); }
  std::uint32_t behind(std::uint32_t distance) const { return (member + 2 * members() - distance) % members(); }
  std::uint32_t chunk(std::uint32_t owner, std::size_t pass) const {
    return pass < owned[owner].size() ? owned[owner][pass] : kNoChunk;
  }
};

void direct_reduce_pass(ChannelBuilder& channel, const Circle& circle, std::size_t pass) {
  for (std::uint32_t distance = 1; distance < circle.members(); ++distance) {
    const std::uint32_t owner = circle.ahead(distance);
    const std::uint32_t chunk = circle.chunk(owner, pass);
    if (chunk != kNoChunk) channel.step().local(Space::kInput, chunk).send(channel.send_to(owner, kLane));
  }
  const std::uint32_t own = circle.chunk(circle.member, pass);
  if (own == kNoChunk) return;
  auto add = channel.step();
  for (std::uint32_t m = 0; m < circle.members(); ++m) {
    if (m == circle.member) {
      add.local(Space::kInput, own);
    } else {
      add.receive(channel.receive_from(m, kLane));
    }
  }
  add.store(Space::kOutput, own).completes();
}

void direct_gather_pass(ChannelBuilder& channel, const Circle& circle, std::size_t pass) {
  if (const std::uint32_t own = circle.chunk(circle.member, pass); own != kNoChunk) {
    auto send = channel.step();
    send.local(Space::kOutput, own);
    for (std::uint32_t distance = 1; distance < circle.members(); ++distance) {
      send.send(channel.send_to(circle.ahead(distance), kLane));
    }
  }
  for (std::uint32_t distance = 1; distance < circle.members(); ++distance) {
    const std::uint32_t owner = circle.ahead(distance);
    const std::uint32_t chunk = circle.chunk(owner, pass);
    if (chunk != kNoChunk) channel.step().receive(channel.receive_from(owner, kLane)).store(Space::kOutput, chunk);
  }
}

void ring_reduce_pass(ChannelBuilder& channel, const Circle& circle, std::size_t pass) {
  const std::uint16_t from = channel.receive_from(circle.behind(1), kLane);
  const std::uint16_t to = channel.send_to(circle.ahead(1), kLane);
  for (std::uint32_t hop = 0; hop < circle.members(); ++hop) {
    const std::uint32_t chunk = circle.chunk(circle.behind(hop + 1), pass);
    if (chunk == kNoChunk) continue;
    auto step = channel.step();
    if (hop > 0) step.receive(from);
    step.local(Space::kInput, chunk);
    if (hop + 1 < circle.members()) {
      step.send(to);
    } else {
      step.store(Space::kOutput, chunk).completes();
    }
  }
}

void ring_gather_pass(ChannelBuilder& channel, const Circle& circle, std::size_t pass) {
  const std::uint16_t from = channel.receive_from(circle.behind(1), kLane);
  const std::uint16_t to = channel.send_to(circle.ahead(1), kLane);
  for (std::uint32_t hop = 0; hop < circle.members(); ++hop) {
    const std::uint32_t chunk = circle.chunk(circle.behind(hop), pass);
    if (chunk == kNoChunk) continue;
    auto step = channel.step();
    if (hop == 0) {
      step.local(Space::kOutput, chunk);
    } else {
      step.receive(from).store(Space::kOutput, chunk);
    }
    if (hop + 1 < circle.members()) step.send(to);
  }
}

using Pass = void (*)(ChannelBuilder& channel, const Circle& circle, std::size_t pass);

RankPlan build_passes(Pass add_pass, std::uint32_t member, const Owned& owned) {
  TUTTI_ASSERT(owned.size() >= 2 && member < owned.size());
  ChannelBuilder channel;
  for (std::size_t pass = 0; pass < passes(owned); ++pass) add_pass(channel, {.owned = owned, .member = member}, pass);
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

std::uint16_t inside_slots(Inside how) { return how == Inside::kRing ? 2 : 1; }

RankPlan inside_reduce_scatter(Inside how, std::uint32_t member, const Owned& owned) {
  return build_passes(how == Inside::kRing ? ring_reduce_pass : direct_reduce_pass, member, owned);
}

RankPlan inside_all_gather(Inside how, std::uint32_t member, const Owned& owned) {
  return build_passes(how == Inside::kRing ? ring_gather_pass : direct_gather_pass, member, owned);
}

}  // namespace tutti
