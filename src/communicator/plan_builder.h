// What stands behind a PlanBuilder. Internal to src/communicator. Used by one thread at a time; never asserts on what
// the user passes: the first mistake is kept and everything after it does nothing, so that what is built stays bounded.
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

  // A step of the user's, as its handle names it.
  struct Place {
    std::uint32_t rank = 0;
    std::uint32_t channel = 0;
    std::uint32_t step = 0;
  };
  void receive(Place place, std::uint32_t peer, std::uint32_t lane);
  void local(Place place, Space space, std::uint32_t chunk);
  void store(Place place, Space space, std::uint32_t chunk);
  void send(Place place, std::uint32_t peer, std::uint32_t lane);
  void completes(Place place);
  void after(Place place, std::uint32_t channel, std::uint32_t step, std::uint32_t tiles_before);

  Result<UserPlan> build() const;

 private:
  // A channel under construction, and what its last step has so far.
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
  void fail_at(Place place, const std::string& what);
  // The channel of a step that may still grow; null, with the mistake kept, where it may not.
  ChannelDraft* open(Place place);
  bool check_end(Place place, std::uint32_t peer, std::uint32_t lane);

  PlanDescription description_;
  std::vector<std::deque<ChannelDraft>> ranks_;  // deques: a StepBuilder refers to its ChannelBuilder
  std::uint64_t steps_ = 0;
  std::uint64_t ends_ = 0;  // sends and receives
  std::uint64_t waits_ = 0;
  std::optional<Error> mistake_;
};

}  // namespace tutti::detail
