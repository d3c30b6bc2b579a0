// PlanExecution: the CPU executor. It runs one call of a bound plan on bytes in host memory. There is one task per
// channel, and the tasks of a rank take turns in the thread that drives progress. A step makes no allocation, lock,
// log entry or system call.
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
  // There is none if the call is in place and the plan does not permit peers to write into an in-place output.
  WindowRef offered(const Call& call) const override {
    return call.in_place && !plan_.shape.windows_in_place ? WindowRef{} : call.output_window;
  }
  bool shows_output() const override { return shown_; }
  bool revoke_output(std::uint32_t peer) override;
  void withdraw_output(bool gave_up) override;
  bool progress() override;
  bool done() override;
  const std::optional<BadMessage>& bad_message() const override { return bad_; }
  // For each channel that is not finished, a text like "channel 0 step 3 of 7, tile 0 of 2, no message from rank 2".
  std::string waits_for() override;
  std::vector<std::uint32_t> waits_for_ranks() override;

 private:
  class Domain;
  // How one value is sent through one port.
  struct SendMethod {
    Carrier carrier = Carrier::kSlot;
    bool from_memory = false;  // for kSlot: sent directly from the value's memory instead of a copy in the slot
    std::byte* destination =
        nullptr;     // address to which the value is written; null if it is published or sent from memory
    Message over{};  // for kReplied: the message that the value overwrites
  };

  bool agrees_with(std::uint32_t peer);
  void advertise_output();

  const BoundPlan& plan_;
  Transport& transport_;
  Call call_;
  bool shown_ = false;  // the output was advertised to peers that share no memory with this rank
  // Indexed by peer: the last call that the peer was seen to enter with the same arguments as this rank.
  std::vector<std::uint64_t> agreed_;
  std::optional<Layout> layout_;
  std::vector<Cursor> cursors_;                // indexed by channel
  std::vector<SendConnection*> published_to_;  // connections that must be drained before the call may end
  std::vector<const std::byte*> sources_;      // operands of the current step
  std::vector<std::byte*> destinations_;
  std::vector<SendMethod> send_methods_;
  std::vector<std::byte> scratch_;
  std::vector<std::uint64_t> scratch_bytes_;  // indexed by scratch chunk: length in bytes of the value in it
  std::vector<std::byte> sum_;                // intermediate result of a user's reduction
  std::optional<BadMessage> bad_;
};

}  // namespace tutti
