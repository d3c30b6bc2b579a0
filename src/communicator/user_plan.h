// UserPlanData: the implementation of UserPlan, and its conversion into a Generator, which the runtime needs to
// execute it. Internal to src/communicator and its tests. Everything here is immutable or pure, so any thread may use
// it.
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

  // Proves the plan in `file`; every UserPlan is made by this function. If `file` does not specify
  // PlanShape::windows_in_place, this function sets it to true if that can be proved, because true is faster, and to
  // false otherwise. Errors: kInvalidPlan, kUnsupported.
  static Result<UserPlan> prove(PlanFile file);
  static const UserPlanData& of(const UserPlan& plan) { return *plan.data_; }
  // The generator that bind() needs. It shares the plan's content and may outlive `plan`. The plan is proved already,
  // so it is not proved again.
  static Generator generator(const UserPlan& plan);
};

}  // namespace tutti::detail
