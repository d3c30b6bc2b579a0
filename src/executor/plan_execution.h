// The CPU executor: runs one call of a bound plan over bytes. One task per channel; the tasks of a rank take turns in
// the thread that drives progress. No allocation, lock, log or system call per step.
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
  // `plan` and `transport` outlive it.
  PlanExecution(const BoundPlan& plan, Transport& transport);
  ~PlanExecution() override;
  PlanExecution(const PlanExecution&) = delete;
  PlanExecution& operator=(const PlanExecution&) = delete;

  void start(const Call& call) override;
  // None where the plan and the call's being in place forbid it.
  WindowRef offered(const Call& call) const override {
    return call.in_place && !plan_.shape.windows_in_place ? WindowRef{} : call.output_window;
  }
  bool shows_output() const override { return shown_; }
  bool recall_output(std::uint32_t peer) override;
  void hide_output(bool gave_up) override;
  bool progress() override;
  bool done() override;
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  // "channel 0 step 3 of 7, tile 0 of 2: no message from rank 2" for each channel that is not finished.
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  class Domain;
  // How one value leaves through one port.
  struct Way {
    Carrier carrier = Carrier::kSlot;
    bool from_memory = false;          // kSlot, but straight from where the value stands
    std::byte* destination = nullptr;  // null when published or from memory
    Message over{};                    // kReplied: what the value is stored over
  };

  bool agrees_with(std::uint32_t peer);
  void show_output();

  const BoundPlan& plan_;
  Transport& transport_;
  Call call_;
  bool shown_ = false;                 // the output, to peers that share no memory with this rank
  std::vector<std::uint64_t> agreed_;  // by peer: the last call that it was seen to enter as this rank did
  std::optional<Layout> layout_;
  std::vector<Cursor> cursors_;                // by channel
  std::vector<SendConnection*> published_to_;  // must be drained before the call may end
  std::vector<const std::byte*> sources_;      // of the step at hand
  std::vector<std::byte*> destinations_;
  std::vector<Way> ways_;
  std::vector<std::byte> scratch_;
  std::vector<std::uint64_t> scratch_bytes_;  // by scratch chunk: the length of the value that stands there
  std::vector<std::byte> sum_;                // of a user's reduction, until it is whole
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
