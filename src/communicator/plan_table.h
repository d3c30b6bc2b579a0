// PlanTable: the plans of one communicator. It keeps the plans that bind() has made for the communicator, so that each
// is made and proved once, and the plans that the caller has given with use_plan(). It owns no threads or locks. Hold
// the communicator's submission mutex in all functions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "algorithms/algorithms.h"
#include "executor/bind.h"
#include "job/environment.h"
#include "plan/plan.h"
#include "tutti/communicator.h"
#include "tutti/plan.h"

namespace tutti::detail {

class PlanTable {
 public:
  // A caller's plan, and the calls that it is used for.
  struct ChosenPlan {
    UserPlan plan;
    PlanUse use;
    bool has_runs = false;  // some step has a run of several chunks (Step::run)
  };

  // `environment` must outlive this object.
  PlanTable(std::uint32_t rank, std::uint32_t ranks, const Environment& environment)
      : rank_(rank), ranks_(ranks), environment_(environment) {}

  // Implements Communicator::use_plan(): binds the plan and adds it to the caller's plans.
  Status use_plan(const UserPlan& plan, const PlanUse& use);
  bool has_user_plans() const { return !user_plans_.empty(); }
  // Returns the caller's plan that a call uses, or null: of the plans that fit the call, the one that was given last.
  // `bytes`: length of one block. `asked`: the algorithm in the options of the call. `variable`: the call is a
  // v-variant (all_gather_v or reduce_scatter_v). A plan with runs cannot carry out v-variants, so it does not fit
  // them. If a v-variant asks for kUser and only such plans exist, the result is one of them, so that the caller can
  // return an error that names the reason. The result is valid until the next call of use_plan().
  const ChosenPlan* find_user_plan(const Collective& collective, std::uint64_t bytes, Algorithm asked,
                                   bool variable) const;
  // Checks that the messages of the longest runs of a caller's plan fit into slots of `slot_bytes` bytes, at least if
  // their chunks are as short as elements of `element_bytes` bytes permit (run_fits()). Errors: kUnsupported.
  static Status check_run(const PlanShape& shape, std::uint64_t slot_bytes, std::size_t element_bytes);

  // Returns the bound plan of `algorithm` in the form `messages` (or in the form kOneChunk if the algorithm has no
  // other one). If `chosen` is not null, returns that caller's plan instead, bound. The plan is made, proved (a
  // caller's plan was proved earlier) and bound when it is first needed. The result is valid as long as this object
  // exists. Errors: those of find_generator(), VerifiedPlanCache::prove() and bind().
  Result<BoundPlan*> bound_plan(const Collective& collective, Algorithm algorithm, Messages messages,
                                const ChosenPlan* chosen);
  // Returns the generator of the plan that bound_plan() with the same arguments binds.
  static Result<Generator> generator_for(const Collective& collective, Algorithm algorithm, Messages messages,
                                         const ChosenPlan* chosen);

 private:
  struct PlanKey {
    CollectiveKind kind = CollectiveKind::kAllReduce;
    Algorithm algorithm = Algorithm::kAuto;
    Messages messages = Messages::kOneChunk;
    std::uint32_t root = 0;
    std::uint32_t digest = 0;  // digest of a caller's plan; 0 for the built-in algorithms

    auto operator<=>(const PlanKey&) const = default;
  };
  Status add_user_plan(const UserPlan& plan, const PlanUse& use);
  Result<std::unique_ptr<BoundPlan>> make_plan(const Collective& collective, Algorithm algorithm, Messages messages,
                                               const ChosenPlan* chosen) const;

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  const Environment& environment_;
  std::map<PlanKey, std::unique_ptr<BoundPlan>> plans_;
  PlanKey last_key_;  // key of last_plan_
  BoundPlan* last_plan_ = nullptr;
  std::vector<ChosenPlan> user_plans_;
};

}  // namespace tutti::detail
