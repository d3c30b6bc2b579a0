#include "communicator/plan_table.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "communicator/user_plan.h"
#include "engine/arguments.h"
#include "plan/tiling.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostUserPlans = 256;

}  // namespace

Status PlanTable::use_plan(const UserPlan& plan, const PlanUse& use) {
  Status used = add_user_plan(plan, use);
  if (used) return used;
  Error error = std::move(used).error();
  error.message =
      fmt::format("use_plan{}: {}", plan.name().empty() ? "" : fmt::format(" \"{}\"", plan.name()), error.message);
  return error;
}

Status PlanTable::add_user_plan(const UserPlan& plan, const PlanUse& use) {
  const Generator generator = UserPlanData::generator(plan);
  const Collective& collective = generator.shape.collective;
  if (collective.ranks != ranks_) {
    return invalid_argument(
        fmt::format("the plan is for {} ranks, this communicator has {}", collective.ranks, ranks_));
  }
  if (!collective.nodes.empty() && collective.nodes != environment_.nodes) {
    return invalid_argument(
        "the plan was made for another assignment of ranks to machines: leave out its \"nodes\", or run it on the "
        "machines that it was made for");
  }
  if (use.min_bytes > use.max_bytes) {
    return invalid_argument(fmt::format("min_bytes {} is greater than max_bytes {}", use.min_bytes, use.max_bytes));
  }
  if (user_plans_.size() >= kMostUserPlans) {
    return invalid_argument(fmt::format("a communicator takes at most {} plans", kMostUserPlans));
  }
  TUTTI_TRY(check_run(generator.shape, environment_.transport->slot_bytes(), 1));
  const ChosenPlan chosen{.plan = plan, .use = use, .has_runs = generator.shape.longest_run > 1};
  auto bound = bound_plan(collective, Algorithm::kUser, Messages::kOneChunk, &chosen);
  if (!bound) return bound.error();
  user_plans_.push_back(chosen);
  return {};
}

Status PlanTable::check_run(const PlanShape& shape, std::uint64_t slot_bytes, std::size_t element_bytes) {
  if (run_fits(slot_bytes, shape.longest_run, element_bytes)) return {};
  const std::size_t least = longest_chunk_bytes(0, shape.longest_run, element_bytes);
  const std::size_t slot = (least * shape.longest_run + kSlotUnit - 1) / kSlotUnit * kSlotUnit;
  const std::string remedy = slot <= kMostSlotBytes
                                 ? fmt::format("set TUTTI_SLOT_BYTES to {} on all ranks, or use shorter runs", slot)
                                 : fmt::format("use shorter runs, because a slot has at most {} bytes", kMostSlotBytes);
  return Error{.code = ErrorCode::kUnsupported,
               .message = fmt::format("the plan has messages of {} chunks of at least {} bytes, and a slot of this "
                                      "communicator has {} bytes; {}",
                                      shape.longest_run, least, slot_bytes, remedy)};
}

const PlanTable::ChosenPlan* PlanTable::find_user_plan(const Collective& collective, std::uint64_t bytes,
                                                       Algorithm asked, bool variable) const {
  if (asked != Algorithm::kAuto && asked != Algorithm::kUser) return nullptr;
  const ChosenPlan* unusable = nullptr;
  for (std::size_t i = user_plans_.size(); i-- > 0;) {  // the plan that was given last takes precedence
    const ChosenPlan& chosen = user_plans_[i];
    const PlanDescription about = chosen.plan.description();
    if (about.collective != collective.kind || about.root != collective.root) continue;
    if (asked == Algorithm::kAuto && (bytes < chosen.use.min_bytes || bytes > chosen.use.max_bytes)) continue;
    if (!variable || !chosen.has_runs) return &chosen;
    if (unusable == nullptr) unusable = &chosen;
  }
  return asked == Algorithm::kUser ? unusable : nullptr;
}

Result<Generator> PlanTable::generator_for(const Collective& collective, Algorithm algorithm, Messages messages,
                                           const ChosenPlan* chosen) {
  if (chosen != nullptr) return UserPlanData::generator(chosen->plan);
  return find_generator(collective, algorithm, messages);
}

Result<std::unique_ptr<BoundPlan>> PlanTable::make_plan(const Collective& collective, Algorithm algorithm,
                                                        Messages messages, const ChosenPlan* chosen) const {
  auto generator = generator_for(collective, algorithm, messages, chosen);
  if (!generator) return generator.error();
  if (chosen == nullptr)
    // A plan of the caller was already proved when it was built or read.
    TUTTI_TRY(environment_.plan_cache->prove(*generator));
  return bind(*generator, rank_, *environment_.transport);
}

Result<BoundPlan*> PlanTable::bound_plan(const Collective& collective, Algorithm algorithm, Messages messages,
                                         const ChosenPlan* chosen) {
  if (chosen != nullptr || !has_runs(collective.kind, algorithm)) messages = Messages::kOneChunk;  // the only form
  const PlanKey key{.kind = collective.kind,
                    .algorithm = algorithm,
                    .messages = messages,
                    .root = collective.root,
                    .digest = chosen == nullptr ? 0 : chosen->plan.digest()};
  if (last_plan_ != nullptr && key == last_key_) return last_plan_;
  std::unique_ptr<BoundPlan>& plan = plans_[key];
  if (plan == nullptr) {
    auto made = make_plan(collective, algorithm, messages, chosen);
    if (!made) return made.error();
    plan = std::move(*made);
  }
  last_key_ = key;
  last_plan_ = plan.get();
  return last_plan_;
}

}  // namespace tutti::detail
