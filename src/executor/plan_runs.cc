// Runs the steps with a run of several chunks. All of their messages go through slots (plan/windows.h).
#include <vector>

#include "base/assert.h"
#include "executor/plan_domain.h"

namespace tutti {

// Lists the pieces of the step's run in run_pieces_: chunks that follow each other in memory are one piece. Returns the
// length of the whole run in bytes. Each chunk is as long as the local operand (bytes_of() has the rule). A run without
// a local operand and without a sink in the output occurs only in plans whose blocks have one chunk, and only in calls
// in which all blocks are equally long, so all of its chunks have the length of any chunk of the tile.
std::uint64_t PlanExecution::Domain::list_pieces(const Step& step, std::uint64_t tile) {
  const BoundPlan& plan = plan_execution_.plan_;
  const std::uint32_t sources = space_chunks(plan.shape, plan.rank, step.source.space);
  const std::uint32_t sinks = space_chunks(plan.shape, plan.rank, step.sink.space);
  std::vector<RunPiece>& pieces = plan_execution_.run_pieces_;
  pieces.clear();
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < step.run; ++i) {
    Place source, sink;
    if (step.source.space != Space::kNone) source = place_of(chunk_of_run(step.source, i, sources), tile);
    if (step.sink.space != Space::kNone) sink = place_of(chunk_of_run(step.sink, i, sinks), tile);
    std::uint64_t bytes = source.bytes;
    if (step.source.space == Space::kNone) {
      bytes = step.sink.space == Space::kOutput ? sink.bytes
                                                : plan_execution_.layout_->block_chunk(tile, 0).count * element_bytes();
    }
    if (step.sink.space == Space::kScratch) {
      plan_execution_.scratch_bytes_[chunk_of_run(step.sink, i, sinks).chunk] = bytes;
    }
    RunPiece* const last = pieces.empty() ? nullptr : &pieces.back();
    if (last != nullptr && (source.data == nullptr || source.data == last->source + last->bytes) &&
        (sink.data == nullptr || sink.data == last->sink + last->bytes)) {
      last->bytes += bytes;
    } else {
      pieces.push_back({.source = source.data, .sink = sink.data, .bytes = bytes});
    }
    total += bytes;
  }
  return total;
}

// The memory of a chunk, and the length of its value.
PlanExecution::Domain::Place PlanExecution::Domain::place_of(const Slice& chunk, std::uint64_t tile) const {
  const std::size_t element = element_bytes();
  if (chunk.space == Space::kScratch) {
    return {.data = address(chunk, tile), .bytes = plan_execution_.scratch_bytes_[chunk.chunk]};
  }
  const Extent at = extent(chunk, tile);
  const Call& call = plan_execution_.call_;
  // Inputs are only read, as in address().
  std::byte* const buffer = chunk.space == Space::kInput ? const_cast<std::byte*>(call.input) : call.output;
  return {.data = buffer + at.offset * element, .bytes = at.count * element};
}

// Runs the step. In its messages, the values are one after another.
void PlanExecution::Domain::apply_run(const Channel& channel, const Step& step, std::uint64_t tile) {
  const std::uint64_t bytes = list_pieces(step, tile);
  TUTTI_ASSERT(bytes <= plan_execution_.call_.tag.tile_bytes, "a message of {} bytes", bytes);
  const auto receives = channel.receives(step);
  for (const std::uint16_t port : receives) {
    const Message message = bound_.ports[port].receive->front();
    if (message.bytes == bytes && message.carrier == Carrier::kSlot && !message.output_offset) continue;
    return report(port, Arrival::kCorrupt);
  }
  const kernels::Reduction how = reduction(step);
  std::uint64_t offset = 0;
  for (const RunPiece& piece : plan_execution_.run_pieces_) {
    if (piece.bytes > 0) combine_piece(channel, step, how, piece, offset);
    offset += piece.bytes;
  }
  for (const std::uint16_t port : receives) bound_.ports[port].receive->release();
  for (const std::uint16_t port : channel.sends(step)) {
    bound_.ports[port].send->send_slot(bytes, plan_execution_.call_.tag);
  }
}

// Combines the operands of one piece, which begins at `offset` in the messages, and writes the result to the sink and
// to the slots of the sends.
void PlanExecution::Domain::combine_piece(const Channel& channel, const Step& step, const kernels::Reduction& how,
                                          const RunPiece& piece, std::uint64_t offset) {
  auto& sources = plan_execution_.sources_;
  auto& destinations = plan_execution_.destinations_;
  sources.clear();
  destinations.clear();
  const auto receives = channel.receives(step);
  for (std::size_t r = 0; r <= receives.size(); ++r) {
    if (step.source.space != Space::kNone && r == step.source_position) sources.push_back(piece.source);
    if (r < receives.size()) sources.push_back(bound_.ports[receives[r]].receive->front().data + offset);
  }
  if (step.sink.space != Space::kNone) destinations.push_back(piece.sink);
  for (const std::uint16_t port : channel.sends(step)) {
    destinations.push_back(bound_.ports[port].send->slot() + offset);
  }
  combine(how, piece.bytes);
}

}  // namespace tutti
