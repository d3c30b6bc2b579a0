// PlanExecution: the CPU executor. It runs one call of a bound plan on bytes in host memory. The channels of the plan
// take turns in the thread that drives progress: each runs some steps, until it has to wait or its turn is over. A step
// takes no lock, writes no log and makes no system call of its own (a connection may make some). It allocates no memory
// either, except to describe a bad message. A reduction function of the user may do all of this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/bind.h"
#include "executor/collective_task.h"
#include "plan/evaluate.h"
#include "plan/layout.h"
#include "transports/transport.h"
#include "tutti/types.h"
#include "tutti/user_reduction.h"

namespace tutti {

class PlanExecution final : public CollectiveTask {
 public:
  // `plan` and `transport` must outlive this object.
  PlanExecution(const BoundPlan& plan, Transport& transport);
  ~PlanExecution() override;
  PlanExecution(const PlanExecution&) = delete;
  PlanExecution& operator=(const PlanExecution&) = delete;

  void start(const Call& call) override;
  // The output of the call. Window 0 (nothing is offered) if Call::output_window has window 0, or if the call is in
  // place and the plan does not permit peers to write into an in-place output.
  WindowRef offered(const Call& call) const override {
    return call.in_place && !plan_.shape.windows_in_place ? WindowRef{} : call.output_window;
  }
  bool shows_output() const override { return shown_; }
  bool revoke_output(std::uint32_t peer) override;
  void withdraw_output(bool gave_up) override;
  bool progress() override;
  bool done() override;
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  // Describes each channel that is not finished, for example "channel 0 step 3 of 7, tile 0 of 2, no message from
  // rank 2".
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  class Domain;
  // The way in which one value is sent through one port.
  struct SendMethod {
    Carrier carrier = Carrier::kSlot;
    // For kSlot: the connection sends directly from the memory of the value, instead of from a copy in the slot.
    bool from_memory = false;
    // The address to which this rank writes the value. Null if the value is published or sent from its memory.
    std::byte* destination = nullptr;
    Message over{};  // for kReplied: the received message that the value overwrites
  };

  // Consecutive chunks of a step's run (Step::run) that also follow each other without gaps in memory, both in the
  // buffer that the step reads and in the one to which it stores. One call of the kernel handles all of them.
  struct RunPiece {
    std::byte* source = nullptr;  // start of the chunks that the step reads; null: it has no local operand
    std::byte* sink = nullptr;    // start of the chunks to which the step stores; null: it has no sink
    std::uint64_t bytes = 0;
  };

  bool agrees_with(std::uint32_t peer);
  void advertise_output();

  const BoundPlan& plan_;
  Transport& transport_;
  Call call_;
  bool shown_ = false;  // the output was advertised to peers that this rank reaches by a network
  // Indexed by peer: the sequence number of the last call that the peer is known to have entered with the same
  // arguments as this rank. See agrees_with().
  std::vector<std::uint64_t> agreed_;
  std::optional<Layout> layout_;
  std::vector<Cursor> cursors_;  // indexed by channel
  // Connections over which values were published in this call. The call ends only when they are drained, because
  // the peers read the values in this rank's memory.
  std::vector<SendConnection*> published_to_;
  std::vector<const std::byte*> sources_;  // addresses of the operands of the current step
  // Addresses to which the value of the current step is written.
  std::vector<std::byte*> destinations_;
  // The ways to send the value of the current step, one for each send.
  std::vector<SendMethod> send_methods_;
  // The scratch chunks of the plan. Each has the length of the longest chunk.
  std::vector<std::byte> scratch_;
  std::vector<std::uint64_t> scratch_bytes_;  // indexed by scratch chunk: length in bytes of the value in it
  std::vector<RunPiece> run_pieces_;          // the pieces of the run of the current step, in their order
  std::vector<std::byte> sum_;                // intermediate result of a user's reduction
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
