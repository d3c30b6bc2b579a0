// The evaluator: runs one channel of a plan over a domain of values. Because it is a template, the same function
// runs plans over ordered contributions (verifier), bytes (executor), lengths (export) and times (pictures).
//
// A domain reports whether a step can run, and then runs it:
//   bool receive_ready(port)            true if the next message on this port has arrived
//   bool send_ready(port)               true if this port has a credit
//   bool reached(channel, step, tile)   true if that step of another channel of this rank has run in that tile
//   void apply(channel, step, tile)     evaluates the equation; all of its ports are ready
// Channels are sequential programs that communicate through bounded single-producer single-consumer FIFOs. So a
// plan is a Kahn network, and the order in which channels are advanced changes neither a value nor whether the
// plan deadlocks (Kahn 1974).
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// The position of a channel: the next step to run.
struct Cursor {
  std::uint64_t tile = 0;
  std::uint32_t step = 0;
  std::uint32_t after = 0;  // index of the first entry of Channel::after for this step or a later one

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

// Runs steps until one is not ready, the channel is finished, or `max_steps` have run. Returns how many ran. A
// channel without steps is finished at once.
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
