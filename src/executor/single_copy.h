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
// A rank that gives the call up withdraws its mark before its memory is returned to the user, and waits for ranks
// that still use the memory (FailedOperations). The other ranks check the marks before each part of their work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/collective_table.h"
#include "executor/collective_task.h"
#include "executor/mailbox_board.h"
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
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};  // used as a rank number: all ranks
  // Used as a window number: the memory is private and attached; the offset is an address.
  static constexpr std::uint32_t kAttached = ~std::uint32_t{0};
  // Used as a window number: an input is in the payload buffer of its owner, and an output is copied by its owner from
  // the payload buffers of the others.
  static constexpr std::uint32_t kInPayloadBuffer = kAttached - 1;
  struct MemoryAdvert {          // the payload of a mark: location of the memory of a rank
    std::uint32_t by_plan;       // 1: this rank runs the plan
    std::uint32_t input_window;  // 0: not offered; the same for output_window
    std::uint32_t output_window;
    std::int32_t cpu;  // the core on which the rank runs
    std::uint64_t input_offset;
    std::uint64_t output_offset;
  };
  struct BufferLocation {       // begin of the input or output of a rank
    std::byte* data = nullptr;  // address in this process; null: accessible only by system calls
    std::uint64_t address = 0;  // address in the process of the owner
  };
  struct WorkItem {                 // one unit of this rank's work
    std::uint32_t from = 0;         // the rank to copy from, or kAll: the sum of all inputs
    std::uint32_t to = 0;           // the rank to store to, or kAll
    std::uint64_t from_offset = 0;  // in bytes
    std::uint64_t to_offset = 0;
    std::uint64_t bytes = 0;
  };
  std::uint32_t rank() const { return marks_.rank(); }
  std::uint32_t ranks() const { return marks_.ranks(); }
  // Whether the root does a part of the work of the other ranks.
  bool root_helps() const;
  // Whether other ranks read the input, or write the output, of `owner`.
  bool input_is_used(std::uint32_t owner) const;
  bool output_is_used(std::uint32_t owner) const;
  // Whether this rank uses memory of `peer`.
  bool uses(std::uint32_t peer) const;
  // Whether the work is divided into shares that any rank may do.
  bool shares_out() const { return reduces(kind_) && !has_blocks(kind_); }
  // Whether all shares are finished although this rank has not found all memory yet. A rank that has done the shares
  // may then have left the call and freed its memory. Only the results are left to fetch.
  bool all_shares_finished();
  void begin_moving();
  // Takes the share of rank `of` in an all-reduce or reduce. Returns false if another rank has claimed it.
  bool take_share(std::uint32_t of);
  // Takes the share of a rank that cannot run because this one occupies its core or, if `on_other_cores`, of any
  // rank. Returns false if there is none.
  bool help(bool on_other_cores);
  void plan_work();
  void plan_rooted_work();
  // Advertises this rank's memory. Returns false if the others need it and cannot use it; the mark then reports that
  // this rank runs the plan.
  bool write();
  void run_plan();
  // Whether payload buffers replace memory that cannot be used: only for short operands of reductions. Messages move
  // long values faster, but their number grows with the square of the number of ranks.
  bool uses_payload_buffers() const;
  std::pair<std::uint64_t, std::uint64_t> share_of(std::uint32_t owner) const;
  // Copies those shares of the output that this rank has not added itself from the payload buffers of the others.
  void fetch_output();
  bool show(const WindowRef& window, const std::byte* data, std::uint32_t& shown_window,
            std::uint64_t& shown_offset) const;
  void advance();
  bool all_hold();
  // Reads the marks of all ranks that share memory with this rank in this call. Switches to the plan as soon as one
  // of them runs the plan.
  bool read();
  bool read_of(std::uint32_t peer);
  void note_loss(std::uint32_t peer);
  // Locates memory of a peer. The values in its mark are checked: an offset outside of the peer's registered memory is
  // refused.
  bool find(std::uint32_t peer, std::size_t which, const WindowRef& advert, std::uint64_t bytes,
            BufferLocation& location);
  bool move_a_part();
  bool copy_part(const WorkItem& part);
  bool add_part(const WorkItem& part);
  bool fetch(std::uint32_t peer, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  bool store(std::uint32_t peer, std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  // Turns the result of an access by system call into bad_ or peer_exited_. Returns true if it succeeded. If the
  // process of the peer has exited, the status board of the peer reports that.
  bool check_access(std::uint32_t peer, MemoryAccess access);
  void prepare_scratch();
  std::byte* scratch(std::uint32_t of) { return scratch_begin_ + of * tile_bytes_; }
  bool all_finished();

  MailboxBoard& marks_;
  Transport& transport_;
  const std::uint32_t cores_;
  CollectiveTask* plan_ = nullptr;
  Call call_;
  CollectiveKind kind_ = CollectiveKind::kAllReduce;
  std::uint64_t block_bytes_ = 0;  // length of one rank's block, or of the whole buffer if there are no blocks
  Phase phase_ = Phase::kDone;
  // The first rank that is not known to have reached the state that this rank waits for.
  std::uint32_t next_ = 0;
  // Indexed by rank: the core on which the rank ran when it wrote its mailbox.
  std::vector<std::int32_t> cpus_;
  std::uint32_t part_of_ = 0;     // this rank is doing the part of that rank
  std::vector<bool> summed_;      // indexed by rank: this rank has done the share of that one
  bool crowded_ = false;          // some ranks share a core, so ranks do the shares of others
  std::uint64_t seen_steps_ = 0;  // steps_of() the part that this rank waits for, at the last look
  std::uint32_t polls_ = 0;       // unsuccessful polls while waiting for parts of others
  std::vector<WorkItem> work_items_;
  std::size_t item_index_ = 0;          // index of the current item
  std::uint64_t moved_ = 0;             // bytes of the current item that are done
  std::vector<BufferLocation> inputs_;  // indexed by rank, as outputs_
  std::vector<BufferLocation> outputs_;
  bool by_calls_ = false;                  // some memory is accessible only by system calls
  std::vector<const std::byte*> sources_;  // operands of the current part
  std::vector<std::byte*> destinations_;
  // One tile for the operand of each rank and one for the sum; allocated when system calls are needed.
  std::vector<std::byte> scratch_;
  std::byte* scratch_begin_ = nullptr;
  std::uint64_t tile_bytes_ = 0;
  bool offered_ = false;             // this rank has offered its memory to others
  bool fetches_ = false;             // this rank copies its output from the payload buffers of the others
  bool to_payload_buffers_ = false;  // some rank copies its output from the payload buffer of this one
  bool peer_exited_ = false;         // a process has exited, and its memory is needed
  std::uint32_t missing_ = 0;        // the window that was looked up last
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
