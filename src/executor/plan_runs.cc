// Runs the steps with a run of several chunks (Step::run). All of their messages go through slots (plan/windows.h). In
// a message, the values of the chunks follow each other without gaps.
#include <vector>

#include "base/assert.h"
#include "executor/plan_domain.h"

namespace tutti {

// Divides the step's run into pieces and lists them in run_pieces_. Returns the length of the whole run in bytes.
//
// The length of each value is that of the local operand or, if there is none, that of the output chunk to which it is
// stored. If there is neither, the plan has one chunk per block (the verifier demands this, check_structure()), and the
// call is no v-variant. Then all chunks of a tile have the same length, that of chunk 0 of any block.
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
  return {.data = buffer_of(chunk.space) + at.offset * element, .bytes = at.count * element};
}

// Runs one step, as apply() does for steps with one chunk. If a received message does not have the length of the run,
// or does not lie in a slot, it is reported as kCorrupt, and the step is not run.
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

// Combines the operands of one piece, and writes the result to the sink and to the slots of the messages to send. In
// all messages of the step, received and sent, the piece begins `offset` bytes after the beginning.
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
