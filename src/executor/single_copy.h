// SingleCopyCollective: a collective without messages. Ranks of one machine read and write each other's memory, so that
// each byte is normally copied only once. The memory must be registered, or it may be private memory if the transport
// can access that (Transport::attachment()). Each rank writes the location of its input and output into its mailbox.
// Then each rank does its part of the work: it loads its operands from the inputs and stores the results directly into
// the outputs. Finally each rank reports that its part is finished. If other ranks use the memory of a rank, that rank
// waits for their reports.
//
//   all-reduce, reduce, reduce-scatter  Each rank adds its share (a range of elements) of all inputs, in rank order.
//                                       This loads and stores the least possible number of bytes, and ranks wait for
//                                       each other only twice. If ranks share a core, a rank in an all-reduce or reduce
//                                       also does the shares of ranks that have advertised their memory but are not
//                                       running. So the last rank to arrive need not wait until the others run again.
//   broadcast, scatter, gather          The root copies its own block. Each other rank copies a part of its own block,
//                                       and the root copies the rest of it. If the blocks are long, that part is so
//                                       long that all cores have about the same amount of work.
//   all-gather, all-to-all              Each rank copies the blocks that it needs.
//
// A SingleCopyCollective replaces the two-shot plan of an all-reduce and the direct plans of the other collectives,
// and returns the same bits.
//
// Ranks need not agree on whether their memory can be used. There are two fallbacks for a rank if the others cannot
// use its memory. In a reduction with a short input, the rank copies its input into its long payload buffer, and
// later copies its output from the long payload buffers in which the other ranks have left the results. In other cases
// the rank reports in its mailbox that it runs the plan, and all ranks that would use its memory, or whose memory it
// would use, run the plan as well. A third case needs no fallback: in a rooted collective that only copies, a rank
// other than the root copies its whole block itself, without the help of the root.
//
// The parts: WorkDivision computes which memory is used and how the work is divided, PeerBuffers finds the memory,
// PartMover copies and adds, and WorkShares lets ranks do the shares of others. This class goes through the phases of
// a call.
//
// If the call of a rank fails, the rank withdraws the mark of its mailbox before its memory is returned to the user,
// and then waits for a limited time for ranks that may still use the memory (engine/failed_operations.h). The other
// ranks check the marks before each part of their work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/collective_task.h"
#include "executor/mailbox_board.h"
#include "executor/part_mover.h"
#include "executor/peer_buffers.h"
#include "executor/work_division.h"
#include "executor/work_shares.h"
#include "plan/machine_choices.h"
#include "plan/plan.h"

namespace tutti {

// Whether the ranks of a call use each other's private (not registered) memory. `bytes`: length of one block. The
// result is the same on all ranks that pass the same arguments to the call.
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          const MachineChoices& choices);

class SingleCopyCollective final : public CollectiveTask {
 public:
  // The arguments must outlive this object. `choices`: see uses_attached_memory().
  SingleCopyCollective(MailboxBoard& marks, Transport& transport, const MachineChoices& choices);
  SingleCopyCollective(const SingleCopyCollective&) = delete;  // its parts refer to each other
  SingleCopyCollective& operator=(const SingleCopyCollective&) = delete;

  // Whether a call tries to run as a single-copy collective. The result is the same on all ranks that pass the same
  // arguments to the call.
  static bool takes(const Collective& collective, Algorithm algorithm, ReduceOp op);
  // Sets the task that runs the plan if a single copy is not possible. Call it before start().
  void set_plan(CollectiveTask& plan) { plan_ = &plan; }

  void start(const Call& call) override;
  WindowRef offered(const Call& call) const override { return plan_->offered(call); }
  bool progress() override;
  bool done() override { return phase_ == Phase::kPlan ? plan_->done() : phase_ == Phase::kDone; }
  const std::optional<BadMessage>& bad_message() const override {
    return phase_ == Phase::kPlan ? plan_->bad_message() : bad_;
  }
  // Call this when the call with that sequence number has failed, before the user gets the memory back: withdraws
  // this rank's mark, so that other ranks stop using the memory.
  void give_up(std::uint64_t sequence) { marks_.take_back(sequence); }
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kMoving, kAwaiting, kPlan, kDone };
  void advance();
  void run_plan();
  // Looks up the memory of all ranks for which WorkDivision::uses() is true. Returns true if the next phase has begun,
  // because that is complete, because one of these ranks runs the plan (this rank then runs it, too), or because all
  // shares are finished already. Returns false if a mailbox or memory is missing: call it again later, unless bad_ is
  // set.
  bool read();
  // Called when this rank cannot find the memory of a peer. A possible reason is that other ranks have done all
  // shares, and that the peer has left the call and freed its memory. If all shares are finished, continues with
  // phase kAwaiting, in which only the results are left to fetch, and returns true.
  bool all_shares_finished();
  void begin_moving();
  void begin_waiting();
  // Makes the share of rank `of`, which this rank has taken, its current work.
  void begin_share(std::uint32_t of);
  // Takes the share of another rank, if there is one to take (WorkShares::take_of_others()), and makes it the current
  // work. Returns false if there is none.
  bool help(bool on_other_cores);
  bool all_hold();
  bool move_a_part();
  // Completes the output: for each share that another rank has computed, copies the result from the long payload buffer
  // of the rank to which the share belongs. The shares that this rank has computed are in its output already.
  void fetch_output();
  bool all_finished();

  MailboxBoard& marks_;
  CollectiveTask* plan_ = nullptr;
  Call call_;
  WorkDivision work_;
  std::optional<BadMessage> bad_;
  PeerBuffers buffers_;
  PartMover mover_;
  WorkShares shares_;
  Phase phase_ = Phase::kDone;
  // In the phases kReading and kAwaiting: the first rank that this rank still waits for, because its memory is not
  // located or its part is not finished.
  std::uint32_t next_ = 0;
  std::uint32_t part_of_ = 0;     // the rank whose part this rank is doing
  std::uint64_t seen_steps_ = 0;  // the last value of steps_of(next_) in phase kAwaiting
  std::uint32_t polls_ = 0;       // number of polls in phase kAwaiting without success
  std::vector<WorkItem> items_;   // the work that this rank does now: its own, or the share of another rank
  std::size_t item_index_ = 0;    // index of the current item in items_
  std::uint64_t moved_ = 0;       // bytes of the current item that are done
};

}  // namespace tutti
