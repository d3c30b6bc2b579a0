// Converts plans to text, in the notation that text.h describes.
#include "plan/formats/text.h"

#include <fmt/format.h>

#include <iterator>

#include "plan/collective.h"

namespace tutti {
namespace {

// For example "in[3]" or, for a run of 4 chunks from chunk 3 on, "in[3 + 4]".
std::string slice_text(const Slice& slice, std::uint32_t run) {
  if (run == 1) return fmt::format("{}[{}]", to_string(slice.space), slice.chunk);
  return fmt::format("{}[{} + {}]", to_string(slice.space), slice.chunk, run);
}

std::string peer_text(const Port& port) {
  return port.lane == 0 ? fmt::format("{}", port.peer) : fmt::format("{}/{}", port.peer, port.lane);
}

}  // namespace

std::string to_text(const Channel& channel, const Step& step) {
  std::string text;
  if (step.sink.space != Space::kNone) text = slice_text(step.sink, step.run) + " = ";
  const auto receives = channel.receives(step);
  const bool local = step.source.space != Space::kNone;
  for (std::size_t i = 0; i <= receives.size(); ++i) {
    const char* plus = i == 0 ? "" : " + ";
    if (local && i == step.source_position) {
      text += plus + slice_text(step.source, step.run);
      plus = " + ";
    }
    if (i < receives.size()) text += fmt::format("{}recv({})", plus, peer_text(channel.ports[receives[i]]));
  }
  if (step.run > 1 && !local && step.sink.space == Space::kNone) text += fmt::format(" ({} chunks)", step.run);
  if (step.completes != 0) text += " (complete)";
  const char* separator = " ; send ";
  for (std::uint16_t port : channel.sends(step)) {
    text += separator + peer_text(channel.ports[port]);
    separator = ", ";
  }
  return text;
}

std::string to_text(const RankPlan& plan, std::uint32_t rank) {
  std::string text;
  auto out = std::back_inserter(text);
  for (std::size_t c = 0; c < plan.channels.size(); ++c) {
    const Channel& channel = plan.channels[c];
    for (std::size_t s = 0, after = 0; s < channel.steps.size(); ++s) {
      fmt::format_to(out, "rank {} channel {}: {}: {}", rank, c, s, to_text(channel, channel.steps[s]));
      for (; after < channel.after.size() && channel.after[after].step == s; ++after) {
        const After& wait = channel.after[after];
        fmt::format_to(out, " ; after {}:{}{}", wait.other_channel, wait.other_step,
                       wait.tiles_before == 0 ? "" : " of the tile before");
      }
      text += '\n';
    }
  }
  return text;
}

std::string to_text(const PlanShape& shape) {
  return fmt::format("{} {}, {} {}{}: {} {} per block and tile, {} scratch, {} {} per connection, {} {}{}{}\n",
                     to_string(shape.collective.kind), to_string(shape.algorithm), shape.collective.ranks,
                     shape.collective.ranks == 1 ? "rank" : "ranks",
                     has_root(shape.collective.kind) ? fmt::format(", root {}", shape.collective.root) : "",
                     shape.chunks, shape.chunks == 1 ? "chunk" : "chunks", shape.scratch_chunks, shape.slots,
                     shape.slots == 1 ? "slot" : "slots", shape.lanes, shape.lanes == 1 ? "lane" : "lanes",
                     shape.longest_run > 1 ? fmt::format(", up to {} chunks in a message", shape.longest_run) : "",
                     reduces(shape.collective.kind) ? fmt::format(", added in {}", to_string(shape.order)) : "");
}

std::string to_text(const Plan& plan) {
  std::string text = to_text(plan.shape);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    text += to_text(plan.ranks[rank], static_cast<std::uint32_t>(rank));
  }
  return text;
}

}  // namespace tutti
