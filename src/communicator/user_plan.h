// What stands behind a UserPlan, and how the runtime runs one. Internal to src/communicator and its tests; everything
// here is immutable or pure, so any thread may use it.
#pragma once

#include <cstdint>

#include "plan/formats/json.h"
#include "plan/plan.h"
#include "tutti/plan.h"
#include "tutti/result.h"

namespace tutti::detail {

struct UserPlanData {
  PlanDescription description;
  Plan plan;  // canonical (plan/canonical.h) and proved
  PlanProof proof;
  std::uint32_t digest = 0;

  // The only way to a UserPlan: proves `file`. Where the file does not say whether PlanShape::windows_in_place, the
  // faster true is taken if it can be proved, else false. Errors: kInvalidPlan, kUnsupported.
  static Result<UserPlan> prove(PlanFile file);
  static const UserPlanData& of(const UserPlan& plan) { return *plan.data_; }
  // What bind() takes. The generator shares the plan's content and may outlive `plan`. It needs no second proof.
  static Generator generator(const UserPlan& plan);
};

}  // namespace tutti::detail
