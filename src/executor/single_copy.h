// SingleCopyCollective: a collective without messages. Ranks of one machine read and write each other's memory, so
// that each byte is copied only once. The memory must be registered, or it may be private if the transport can
// attach to it. Each rank writes into its mailbox where its input and output are. Then each rank does its part of
// the work: it loads its operands and stores the results directly into the outputs. Finally it reports that its part
// is finished. If others use the memory of a rank, that rank waits for their reports.
//
//   all-reduce, reduce, reduce-scatter  Each rank adds its share of all inputs in rank order. This loads and stores the
//                                       least possible number of bytes, and ranks wait for each other only twice. In an
//                                       all-reduce or reduce, a rank also does the shares of ranks that have advertised
//                                       their memory but are not running. If ranks share a core, the last rank to
//                                       arrive therefore need not wait for the others.
//   broadcast, scatter, gather          Each rank copies most of its own block, and the root copies the rest, so that
//                                       all cores have the same amount of work.
//   all-gather, all-to-all              Each rank copies the blocks that it needs.
//
// It replaces the two-shot plan of an all-reduce and the direct plans of the others, and returns the same bits.
//
// Ranks need not agree on whether their memory can be used. There are two fallbacks for a rank if its memory cannot
// be used. In a reduction with a short input, it copies the input into its payload buffer, and copies its output
// from the payload buffers in which the others have left the results. Otherwise it reports that it runs the plan,
// and all ranks that need its memory run the plan as well; this rank does not wait for the mailboxes of the others.
// In a rooted collective that only copies, no such fallback is necessary for a rank other than the root: that rank
// copies its block alone, without the help of the root.
//
// The parts: WorkDivision knows which memory is used and how the work is divided, PeerBuffers finds the memory, PartMover
// copies and adds, and WorkShares lets ranks do the shares of others. This class has the phases of a call.
//
// A rank that gives the call up withdraws its mark before its memory is returned to the user, and waits for ranks
// that still use the memory (FailedOperations). The other ranks check the marks before each part of their work.
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
#include "plan/plan.h"

namespace tutti {

// Whether the ranks of a call use each other's private memory. `bytes`: length of one block. `cores`: cores of the
// machine; 0: one for each rank. The result is the same on all ranks that agree about the call.
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          std::uint32_t cores);

class SingleCopyCollective final : public CollectiveTask {
 public:
  // `marks` and `transport` must outlive this object. `cores`: see uses_attached_memory().
  SingleCopyCollective(MailboxBoard& marks, Transport& transport, std::uint32_t cores);
  SingleCopyCollective(const SingleCopyCollective&) = delete;  // its parts refer to each other
  SingleCopyCollective& operator=(const SingleCopyCollective&) = delete;

  // Whether a call tries this path. The result is the same on all ranks that agree about the call.
  static bool takes(const Collective& collective, Algorithm algorithm, ReduceOp op);
  // Sets the task that runs the plan if memory cannot be used. Call it before start().
  void set_plan(CollectiveTask& plan) { plan_ = &plan; }

  void start(const Call& call) override;
  WindowRef offered(const Call& call) const override { return plan_->offered(call); }
  bool progress() override;
  bool done() override { return phase_ == Phase::kPlan ? plan_->done() : phase_ == Phase::kDone; }
  const std::optional<BadMessage>& bad_message() const override {
    return phase_ == Phase::kPlan ? plan_->bad_message() : bad_;
  }
  // The call with that sequence number has failed: withdraws this rank's mark, before the caller gets its memory
  // back.
  void give_up(std::uint64_t sequence) { marks_.take_back(sequence); }
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kMoving, kAwaiting, kPlan, kDone };
  void advance();
  void run_plan();
  // Looks up the memory of all ranks that share memory with this rank in this call. Switches to the plan as soon as
  // one of them runs the plan. Returns false if some memory was not found yet.
  bool read();
  // Whether all shares are finished although this rank has not found all memory yet. A rank that has done the shares
  // may then have left the call and freed its memory. Only the results are left to fetch.
  bool all_shares_finished();
  void begin_moving();
  void begin_waiting();
  // Begins with the share of rank `of`, which was taken.
  void begin_share(std::uint32_t of);
  // Takes and begins the share of another rank (WorkShares::take_of_others()). Returns false if there is none.
  bool help(bool on_other_cores);
  bool all_hold();
  bool move_a_part();
  // Copies those shares of the output that this rank has not added itself from the payload buffers of the others.
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
  // The first rank that is not known to have reached the state that this rank waits for.
  std::uint32_t next_ = 0;
  std::uint32_t part_of_ = 0;     // this rank is doing the part of that rank
  std::uint64_t seen_steps_ = 0;  // steps_of() the part that this rank waits for, at the last look
  std::uint32_t polls_ = 0;       // unsuccessful polls while waiting for parts of others
  std::vector<WorkItem> items_;   // the work of this rank
  std::size_t item_index_ = 0;    // index of the current item
  std::uint64_t moved_ = 0;       // bytes of the current item that are done
};

}  // namespace tutti
