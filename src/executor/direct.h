// DirectRun: an all-reduce over registered memory without messages. Every rank shows in its slate where its input and
// output lie; then each sums its share of all inputs in rank order, stores the sums to all outputs, and says that it
// has done so. Whoever has seen that of all others is done. 2sp bytes loaded and stored by p ranks for a message of s
// bytes, the least there can be, and two looks at each other.
//
// It stands for the two-shot plan and gives the same bits. Ranks need not agree about memory: one whose buffers are not
// registered shows that, and then all run the plan, that one without waiting for the others' slates.
//
// A rank that gives the call up takes its mark back before its memory goes back to the user, and waits for ranks that
// are inside (Engine::finish); the others look at the marks before each part of their share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/running.h"
#include "executor/slate_marks.h"
#include "plan/plan.h"

namespace tutti {

class DirectRun final : public Running {
 public:
  // Both outlive it.
  DirectRun(SlateMarks& marks, Transport& transport);

  // Whether a call tries this way: the same on all ranks that agree about the call.
  static bool takes(const Collective& collective, Algorithm algorithm, ReduceOp op);
  // Runs the plan if not all memory is registered. Set before start().
  void set_plan(Running& plan) { plan_ = &plan; }

  void start(const Call& call) override;
  WindowRef offered() const override { return plan_->offered(); }
  bool progress() override;
  bool done() override { return phase_ == Phase::kPlan ? plan_->done() : phase_ == Phase::kDone; }
  const std::optional<BadMessage>& bad_message() const override {
    return phase_ == Phase::kPlan ? plan_->bad_message() : bad_;
  }
  // That call has failed: what was shown to peers is taken back, before the caller gets its memory back.
  void give_up(std::uint64_t sequence) { marks_.take_back(sequence); }
  std::string waits_for() override;

 private:
  enum class Phase : std::uint8_t { kBeforeWriting, kReading, kSumming, kAwaiting, kPlan, kDone };
  struct Shown {  // in a mark's payload
    std::uint32_t input_window;
    std::uint32_t output_window;
    std::uint64_t input_offset;
    std::uint64_t output_offset;
  };
  std::uint32_t rank() const { return marks_.rank(); }
  std::uint32_t ranks() const { return marks_.ranks(); }
  bool registered() const { return call_.input_window.window != 0 && call_.output_window.window != 0; }
  void write();
  void advance();
  bool all_hold();
  bool read();
  bool read_of(std::uint32_t peer);
  bool sum_a_part();
  bool all_finished();

  SlateMarks& marks_;
  Transport& transport_;
  Running* plan_ = nullptr;
  Call call_;
  Phase phase_ = Phase::kDone;
  std::uint32_t next_ = 0;   // the first rank not known to have come as far as is waited for
  std::uint64_t begin_ = 0;  // elements of this rank's share that are still to be summed: [begin_, end_)
  std::uint64_t end_ = 0;
  std::vector<const std::byte*> inputs_;  // by rank
  std::vector<std::byte*> outputs_;
  std::vector<const std::byte*> sources_;  // of the part at hand
  std::vector<std::byte*> destinations_;
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
