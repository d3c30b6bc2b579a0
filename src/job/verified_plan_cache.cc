#include "job/verified_plan_cache.h"

#include <utility>

#include "plan/verify/verify.h"

namespace tutti {

Status VerifiedPlanCache::prove(const Generator& generator) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  if (!enabled_ || ranks > kMaxRanks) return {};
  const std::scoped_lock lock(mutex_);
  const Collective& collective = generator.shape.collective;
  Key key = {.kind = collective.kind,
             .algorithm = generator.shape.algorithm,
             .ranks = ranks,
             .root = collective.root,
             .nodes = collective.nodes,
             .longest_run = generator.shape.longest_run};
  if (const auto known = proved_.find(key); known != proved_.end()) return known->second;
  // The entry is made after the proof, because a proof that throws (memory is exhausted) has no result.
  const auto report = verify_all(build_plan(generator));
  return proved_.emplace(std::move(key), report ? Status() : Status(report.error())).first->second;
}

}  // namespace tutti
