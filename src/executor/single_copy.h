// SingleCopyCollective: a collective without messages, over memory of other ranks that this rank can use: registered,
// or private where the transport can attach to it. Ranks show in their mailboxes where their inputs and outputs lie;
// then each does its part: loads what it needs and stores results where they belong. It says that it has done so, and
// ranks whose memory others use wait for that.
//
//   all-reduce, reduce, reduce-scatter   each rank sums its share of all inputs in rank order: as many bytes loaded and
//                                        stored as there can be least, two looks at each other. Of the first two a rank
//                                        does the shares of others, too, that have shown their memory and do not run:
//                                        where ranks share a core, the last to come need not wait for them
//   broadcast, scatter, gather           each rank copies most of what it wants or has, the root the rest for it, so
//                                        that all cores have the same to do
//   all-gather, all-to-all               each rank copies what it wants
//
// It stands for the two-shot plan of an all-reduce and the direct plans of the others, and gives the same bits. Ranks
// need not agree about memory: one whose memory cannot be used copies a short input into its mailbox's room, for sums,
// and fetches its output from where the others have left it in theirs; where it is long, it shows that, and then all
// that need it run the plan, that one without waiting for the others' mailboxes. Where the root would only help, it
// does not.
//
// A rank that gives the call up takes its mark back before its memory goes back to the user, and waits for ranks that
// are inside (Engine::finish); the others look at the marks before each part of what they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/collective_task.h"
#include "executor/mailbox_board.h"
#include "plan/plan.h"

namespace tutti {

// Whether ranks that all mean this call use each other's private memory; `bytes` of one block, `cores` of the machine
// (0: one for each rank). All find the same.
bool uses_attached_memory(const Collective& collective, std::uint64_t bytes, Attachment attachment,
                          std::uint32_t cores);

class SingleCopyCollective final : public CollectiveTask {
 public:
  // Both outlive it. `cores`: as above.
  SingleCopyCollective(MailboxBoard& marks, Transport& transport, std::uint32_t cores);

  // Whether a call tries this way: the same on all ranks that agree about the call.
  static bool takes(const Collective& collective, Algorithm algorithm, ReduceOp op);
  // Runs the plan where memory cannot be used. Set before start().
  void set_plan(CollectiveTask& plan) { plan_ = &plan; }

  void start(const Call& call) override;
  WindowRef offered(const Call& call) const override { return plan_->offered(call); }
  bool progress() override;
  bool done() override { return phase_ == Phase::kPlan ? plan_->done() : phase_ == Phase::kDone; }
  const std::optional<BadMessage>& bad_message() const override {
    return phase_ == Phase::kPlan ? plan_->bad_message() : bad_;
  }
  // That call has failed: what was shown to peers is taken back, before the caller gets its memory back.
  void give_up(std::uint64_t sequence) { marks_.take_back(sequence); }
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kMoving, kAwaiting, kPlan, kDone };
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};       // in place of a rank
  static constexpr std::uint32_t kAttached = ~std::uint32_t{0};  // in place of a window: the offset is an address
  static constexpr std::uint32_t kInRoom = kAttached - 1;        // likewise: it lies in the owner's room, or is fetched
  struct Shown {                                                 // in a mark's payload
    std::uint32_t by_plan;                                       // 1: this rank runs the plan
    std::uint32_t input_window;                                  // 0: not offered
    std::uint32_t output_window;
    std::int32_t cpu;  // where it runs
    std::uint64_t input_offset;
    std::uint64_t output_offset;
  };
  struct Place {                // where some rank's input or output begins
    std::byte* data = nullptr;  // as seen from here; null: only by calls
    std::uint64_t address = 0;  // as its owner sees it
  };
  struct Piece {                    // of this rank's work
    std::uint32_t from = 0;         // rank whose input is copied, or kAll: the sum of all
    std::uint32_t to = 0;           // rank into whose output, or kAll
    std::uint64_t from_offset = 0;  // bytes
    std::uint64_t to_offset = 0;
    std::uint64_t bytes = 0;
  };
  std::uint32_t rank() const { return marks_.rank(); }
  std::uint32_t ranks() const { return marks_.ranks(); }
  bool root_helps() const;                        // does a part of the others' work
  bool input_is_used(std::uint32_t owner) const;  // by other ranks
  bool output_is_used(std::uint32_t owner) const;
  bool uses(std::uint32_t peer) const;  // this rank that peer's memory
  bool shares_out() const { return kind_ == CollectiveKind::kAllReduce || kind_ == CollectiveKind::kReduce; }
  bool others_did_all();
  void begin_moving();
  bool take_share(std::uint32_t of);
  bool help(bool on_other_cores);
  void plan_pieces();
  void plan_rooted_pieces();
  bool write();
  void run_plan();
  bool by_rooms() const;
  std::pair<std::uint64_t, std::uint64_t> share_of(std::uint32_t who) const;
  void fetch_output();
  bool show(const WindowRef& window, const std::byte* data, std::uint32_t& shown_window,
            std::uint64_t& shown_offset) const;
  void advance();
  bool all_hold();
  bool read();
  bool read_of(std::uint32_t peer);
  void note_loss(std::uint32_t peer);
  bool find(std::uint32_t peer, std::size_t which, const WindowRef& shown, std::uint64_t bytes, Place& place);
  bool move_a_part();
  bool copy_part(const Piece& part);
  bool add_part(const Piece& part);
  bool fetch(std::uint32_t peer, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
  bool store(std::uint32_t peer, std::uint64_t offset, const std::byte* from, std::uint64_t bytes);
  bool judge(std::uint32_t peer, MemoryAccess access);
  void prepare_scratch();
  std::byte* scratch(std::uint32_t of) { return scratch_begin_ + of * tile_bytes_; }
  bool all_finished();

  MailboxBoard& marks_;
  Transport& transport_;
  const std::uint32_t cores_;
  CollectiveTask* plan_ = nullptr;
  Call call_;
  CollectiveKind kind_ = CollectiveKind::kAllReduce;
  std::uint64_t block_bytes_ = 0;  // of one rank's block, the whole where there are no blocks
  Phase phase_ = Phase::kDone;
  std::uint32_t next_ = 0;          // the first rank not known to have come as far as is waited for
  std::vector<std::int32_t> cpus_;  // by rank: where it was when it wrote its mailbox
  std::uint32_t part_of_ = 0;       // the rank whose part this one does
  std::vector<bool> summed_;        // by rank: this one did its share
  bool crowded_ = false;            // ranks share cores: one does the others' parts
  std::uint64_t seen_steps_ = 0;    // of the part that is waited for
  std::uint32_t polls_ = 0;         // in vain, for others' parts
  std::vector<Piece> pieces_;
  std::size_t piece_ = 0;      // the one at hand
  std::uint64_t moved_ = 0;    // bytes of it
  std::vector<Place> inputs_;  // by rank
  std::vector<Place> outputs_;
  bool by_calls_ = false;                  // some of them are only reached so
  std::vector<const std::byte*> sources_;  // of the part at hand
  std::vector<std::byte*> destinations_;
  std::vector<std::byte> scratch_;  // one tile for each rank's operand and one for the sum, once calls need it
  std::byte* scratch_begin_ = nullptr;
  std::uint64_t tile_bytes_ = 0;
  bool offered_ = false;       // this rank's memory, to others
  bool fetches_ = false;       // this rank its output, out of the others' rooms
  bool to_rooms_ = false;      // some rank does, out of this one's
  bool gone_ = false;          // a process whose memory is needed has ended
  std::uint32_t missing_ = 0;  // the window that was looked for last
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
