// Runs the steps with a run of several chunks. All of their messages go through slots (plan/windows.h).
#include <vector>

#include "base/assert.h"
#include "executor/plan_domain.h"

namespace tutti {

// The length in bytes of the value of equation `i` of a run, see bytes_of(). A run without a local operand and without
// a sink in the output occurs only in plans whose blocks have one chunk, and only in calls in which all blocks are
// equally long, so all of its chunks have the length of any chunk of the tile.
std::uint64_t PlanExecution::Domain::run_bytes(const Step& step, std::uint32_t i, std::uint64_t tile) const {
  if (step.source.space == Space::kScratch) return plan_execution_.scratch_bytes_[nth(step.source, i).chunk];
  if (step.source.space != Space::kNone) return extent(nth(step.source, i), tile).count * element_bytes();
  if (step.sink.space == Space::kOutput) return extent(nth(step.sink, i), tile).count * element_bytes();
  return plan_execution_.layout_->block_chunk(tile, 0).count * element_bytes();
}

// Runs a step with a run of several chunks. Its messages are in slots, with the values one after another. Neighbouring
// chunks that are also neighbours in memory are combined together.
void PlanExecution::Domain::apply_run(const Channel& channel, const Step& step, std::uint64_t tile) {
  std::vector<std::uint64_t>& lengths = plan_execution_.run_bytes_;
  lengths.clear();
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < step.run; ++i) bytes += lengths.emplace_back(run_bytes(step, i, tile));
  TUTTI_ASSERT(bytes <= plan_execution_.call_.tag.tile_bytes, "a message of {} bytes", bytes);
  const auto receives = channel.receives(step);
  for (const std::uint16_t port : receives) {
    const Message message = bound_.ports[port].receive->front();
    if (message.bytes == bytes && message.carrier == Carrier::kSlot && !message.output_offset) continue;
    return report(port, Arrival::kCorrupt);
  }
  const kernels::Reduction how = reduction(step);
  std::uint64_t offset = 0;
  for (std::uint32_t i = 0; i < step.run;) {
    const std::uint32_t first = i;
    std::uint64_t piece = lengths[i];
    for (++i; i < step.run && follows(step.source, first, i, piece, tile) && follows(step.sink, first, i, piece, tile);
         ++i) {
      piece += lengths[i];
    }
    combine_piece(channel, step, how, {.first = first, .tile = tile, .offset = offset, .bytes = piece});
    offset += piece;
  }
  for (std::uint32_t i = 0; step.sink.space == Space::kScratch && i < step.run; ++i) {
    plan_execution_.scratch_bytes_[nth(step.sink, i).chunk] = lengths[i];
  }
  for (const std::uint16_t port : receives) bound_.ports[port].receive->release();
  for (const std::uint16_t port : channel.sends(step)) {
    bound_.ports[port].send->send_slot(bytes, plan_execution_.call_.tag);
  }
}

// Whether chunk `i` of the run that begins with `run` is in memory directly after its chunks from `first` on, which
// have `bytes` bytes. True if there is no slice.
bool PlanExecution::Domain::follows(const Slice& run, std::uint32_t first, std::uint32_t i, std::uint64_t bytes,
                                    std::uint64_t tile) const {
  return run.space == Space::kNone || address(nth(run, i), tile) == address(nth(run, first), tile) + bytes;
}

// Combines the operands of one piece of a run, and writes the result to the sink and to the slots of the sends.
void PlanExecution::Domain::combine_piece(const Channel& channel, const Step& step, const kernels::Reduction& how,
                                          const Piece& piece) {
  if (piece.bytes == 0) return;
  auto& sources = plan_execution_.sources_;
  auto& destinations = plan_execution_.destinations_;
  sources.clear();
  destinations.clear();
  const auto receives = channel.receives(step);
  for (std::size_t r = 0; r <= receives.size(); ++r) {
    if (step.source.space != Space::kNone && r == step.source_position) {
      sources.push_back(address(nth(step.source, piece.first), piece.tile));
    }
    if (r < receives.size()) sources.push_back(bound_.ports[receives[r]].receive->front().data + piece.offset);
  }
  if (step.sink.space != Space::kNone) destinations.push_back(address(nth(step.sink, piece.first), piece.tile));
  for (const std::uint16_t port : channel.sends(step)) {
    destinations.push_back(bound_.ports[port].send->slot() + piece.offset);
  }
  combine(how, piece.bytes);
}

}  // namespace tutti
