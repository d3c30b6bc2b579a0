// PlanDraft: the implementation of PlanBuilder. Internal to src/communicator.
//
// Used by one thread at a time. It never asserts on the user's arguments: it keeps the first mistake, and all later
// functions then do nothing, so that the size of the draft stays bounded. build() returns the mistake.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "plan/formats/json.h"
#include "plan/plan.h"
#include "tutti/plan.h"

namespace tutti::detail {

class PlanDraft {
 public:
  explicit PlanDraft(PlanDescription description);

  std::uint32_t add_channel(std::uint32_t rank);
  std::uint32_t add_step(std::uint32_t rank, std::uint32_t channel);

  // The position of a step, as the user's handle PlanBuilder::Step stores it.
  struct StepPosition {
    std::uint32_t rank = 0;
    std::uint32_t channel = 0;
    std::uint32_t step = 0;
  };
  void receive(StepPosition position, std::uint32_t peer, std::uint32_t lane);
  void local(StepPosition position, Space space, std::uint32_t chunk);
  void store(StepPosition position, Space space, std::uint32_t chunk);
  void send(StepPosition position, std::uint32_t peer, std::uint32_t lane);
  void completes(StepPosition position);
  void run(StepPosition position, std::uint32_t chunks);  // `chunks`: the length of the step's run
  void after(StepPosition position, std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before);

  Result<UserPlan> build() const;

 private:
  // A channel under construction, and the parts that its last step has so far.
  struct ChannelDraft {
    ChannelBuilder builder{};
    std::optional<ChannelBuilder::StepBuilder> last{};
    std::uint32_t operands = 0;
    std::uint32_t sends = 0;
    bool local = false;
    bool store = false;
  };

  void check_description();
  void fail(std::string what);
  void fail_at(StepPosition position, const std::string& what);
  // Returns the channel of the step, if the step is the last one of the channel and so may still be changed. Otherwise
  // records a mistake and returns null. Also returns null if there was a mistake before.
  ChannelDraft* open(StepPosition position);
  bool check_end(StepPosition position, std::uint32_t peer, std::uint32_t lane);

  PlanDescription description_;
  // Indexed by rank. Deques, because adding a channel must not move the others: a StepBuilder refers to its
  // ChannelBuilder.
  std::vector<std::deque<ChannelDraft>> ranks_;
  std::uint64_t steps_ = 0;
  std::uint64_t ends_ = 0;  // number of sends and receives
  std::uint64_t waits_ = 0;
  std::optional<Error> mistake_;
};

}  // namespace tutti::detail
