// PlanExecution::Domain: runs the steps of one channel. Only the two files with its functions include this header:
// plan_runs.cc has the functions for steps with a run of several chunks (Step::run), and plan_execution.cc has the
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/plan_execution.h"
#include "kernels/cpu/reduce.h"
#include "plan/collective.h"

namespace tutti {

// The domain of values (plan/evaluate.h) with which the evaluator runs one channel of this rank: the values are
// bytes in memory. The evaluator calls the public functions.
class PlanExecution::Domain {
 public:
  Domain(PlanExecution& execution, std::size_t channel)
      : plan_execution_(execution),
        program_(execution.plan_.program.channels[channel]),
        bound_(execution.plan_.channels[channel]),
        cursor_(execution.cursors_[channel]) {}

  bool receive_ready(std::uint16_t port) {
    if (plan_execution_.bad_) return false;  // a bad message was found, so no further step runs
    const BoundPort& from = bound_.ports[port];
    const Arrival arrival =
        from.receive->arrival(plan_execution_.call_.tag, from.by_memory ? place() : std::span<std::byte>());
    if (arrival == Arrival::kMessage) return true;
    if (arrival != Arrival::kNothing) report(port, arrival);
    return false;
  }
  bool send_ready(std::uint16_t port) { return !plan_execution_.bad_ && bound_.ports[port].send->ready(); }
  bool reached(std::uint16_t channel, std::uint32_t step, std::uint64_t tile) {
    const Cursor& cursor = plan_execution_.cursors_[channel];
    return cursor.tile > tile || (cursor.tile == tile && cursor.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

 private:
  void report(std::uint16_t port, Arrival kind) {
    if (plan_execution_.bad_) return;  // only the first bad message is reported
    ReceiveConnection& connection = *bound_.ports[port].receive;
    plan_execution_.bad_ = BadMessage{.peer = bound_.ports[port].peer,
                                      .kind = kind,
                                      .tag = connection.mismatched_tag(),
                                      .damage = connection.damage(),
                                      .loss = connection.loss()};
  }
  std::size_t element_bytes() const { return plan_execution_.call_.element_bytes; }
  // The first byte of the call's input or output, or of this rank's scratch memory.
  std::byte* buffer_of(Space space) const {
    const Call& call = plan_execution_.call_;
    if (space == Space::kScratch) return plan_execution_.scratch_.data();
    // Inputs are only read. The cast avoids a second code path for sources.
    return space == Space::kInput ? const_cast<std::byte*>(call.input) : call.output;
  }
  Extent extent(const Slice& slice, std::uint64_t tile) const {
    return slice.space == Space::kInput ? plan_execution_.layout_->input(tile, slice.chunk)
                                        : plan_execution_.layout_->output(tile, slice.chunk);
  }
  std::span<std::byte> place();
  std::uint64_t bytes_of(const Channel& channel, const Step& step, std::uint64_t tile) const;
  void combine(const kernels::Reduction& how, std::uint64_t bytes);
  std::byte* address(const Slice& slice, std::uint64_t tile) const;
  WindowRef window(const Slice& slice, std::uint64_t tile) const;
  kernels::Reduction reduction(const Step& step) const;
  bool gather_operands(const Channel& channel, const Step& step, std::uint64_t tile, std::uint64_t bytes);
  bool may_publish(const Step& step, const kernels::Reduction& reduction, std::uint64_t bytes) const;
  bool published_operands_valid(const Channel& channel, const Step& step);
  // Properties of the value that a step sends, as far as they restrict the ways to send it.
  struct Value {
    bool may_publish;  // receivers may read it in this rank's memory, see may_publish()
    // The value is in this rank's buffers or scratch, or will be there when the step has stored it to its sink.
    bool stands_in_memory;
  };
  SendMethod send_method(const BoundPort& port, const SendRule& rule, const Step& step, std::uint64_t tile,
                         const Value& value) const;
  void aim(const BoundPort& port, const SendRule& rule, std::uint64_t tile) const;
  void post(const BoundPort& port, const SendMethod& send_method, const Step& step, std::uint64_t tile,
            std::uint64_t bytes);

  // For steps with a run of several chunks: the memory of one chunk, and the length of the value in it.
  struct Place {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  void apply_run(const Channel& channel, const Step& step, std::uint64_t tile);
  std::uint64_t list_pieces(const Step& step, std::uint64_t tile);
  Place place_of(const Slice& chunk, std::uint64_t tile) const;
  void combine_piece(const Channel& channel, const Step& step, const kernels::Reduction& how, const RunPiece& piece,
                     std::uint64_t offset);

  PlanExecution& plan_execution_;
  const Channel& program_;
  const BoundChannel& bound_;
  const Cursor& cursor_;
};

}  // namespace tutti
