// The evaluator: runs the steps of one channel of a plan. A *domain* is a class that defines the values on which the
// steps operate, and decides when a step can run. Because the evaluator is a template over the domain, the same code
// runs plans on, for example, sets of ranks (plan/verify), bytes (src/executor), message lengths
// (plan/formats/operations.cc) and times (the pictures of tools/plan/svg.cc).
//
// A domain has these functions. The first three report whether a step can run, and apply() runs it:
//   bool receive_ready(port)            true if the next message on this port has arrived
//   bool send_ready(port)               true if this port has a credit, so that a message can be sent on it
//   bool reached(channel, step, tile)   true if this step of another channel of the same rank has run in this tile
//   void apply(channel, step, tile)     runs the step; called only when its ports are ready and its waits are over
// Channels are sequential programs that communicate through bounded FIFOs, each with one sender and one receiver.
// So a plan is a Kahn process network (Kahn 1974): the caller may advance the channels in any order, and this
// order changes neither a value nor whether the plan deadlocks.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// The position of a channel in its program: `step` is the next step to run, and `tile` is the tile in which this step
// is to run.
struct Cursor {
  std::uint64_t tile = 0;
  std::uint32_t step = 0;
  std::uint32_t after = 0;  // index of the first entry of Channel::after for step `step` or later

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

// Runs steps of the channel, over all tiles, until the next step cannot run yet, the channel is finished, or this
// call has run `max_steps` steps. Returns the number of steps that this call ran. A channel without steps is
// finished at once.
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
