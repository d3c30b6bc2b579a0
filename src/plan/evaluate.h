// The evaluator: runs one channel over a domain of values. One function serves every domain: ordered contributions
// (verify), bytes (executor), text.
//
// A domain answers whether a step could run and then applies it:
//   bool receive_ready(port)      the next message on this port is there
//   bool send_ready(port)         this port has a credit
//   bool reached(channel, step, tile)   that step of another channel of this rank has run in that tile
//   void apply(channel, step, tile)     evaluate the equation; all its ports are ready
// Channels are sequential programs over bounded single-producer single-consumer FIFOs, so a plan is a Kahn network:
// which channel is advanced first never changes a value or a deadlock (Kahn 1974).
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Where a channel stands: the next step to run.
struct Cursor {
  std::uint64_t tile = 0;
  std::uint32_t step = 0;
  std::uint32_t after = 0;  // first entry of Channel::after not yet passed in this tile

  bool operator==(const Cursor&) const = default;
};

inline bool finished(const Cursor& cursor, std::uint64_t tiles) { return cursor.tile >= tiles; }

template <class Domain>
bool can_run(const Channel& channel, const Cursor& cursor, Domain& domain) {
  const Step& step = channel.steps[cursor.step];
  for (std::uint32_t i = cursor.after; i < channel.after.size() && channel.after[i].step == cursor.step; ++i) {
    const After& after = channel.after[i];
    if (cursor.tile < after.tiles_before) continue;
    if (!domain.reached(after.other_channel, after.other_step, cursor.tile - after.tiles_before)) return false;
  }
  for (std::uint16_t port : channel.receives(step)) {
    if (!domain.receive_ready(port)) return false;
  }
  for (std::uint16_t port : channel.sends(step)) {
    if (!domain.send_ready(port)) return false;
  }
  return true;
}

// Runs as many steps as can run now, at most `max_steps`; returns how many ran. A channel without steps is finished at
// once.
template <class Domain>
std::uint64_t advance(const Channel& channel, Cursor& cursor, std::uint64_t tiles, std::uint64_t max_steps,
                      Domain& domain) {
  if (channel.steps.empty()) cursor.tile = tiles;
  std::uint64_t ran = 0;
  while (ran < max_steps && !finished(cursor, tiles) && can_run(channel, cursor, domain)) {
    domain.apply(channel, channel.steps[cursor.step], cursor.tile);
    ++ran;
    while (cursor.after < channel.after.size() && channel.after[cursor.after].step == cursor.step) ++cursor.after;
    if (++cursor.step == channel.steps.size()) cursor = {cursor.tile + 1, 0, 0};
  }
  return ran;
}

}  // namespace tutti
