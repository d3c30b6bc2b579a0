#include "job/verified_plan_cache.h"

#include "plan/verify/verify.h"

namespace tutti {

Status VerifiedPlanCache::prove(const Generator& generator) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  if (!enabled_ || ranks > kMaxRanks) return {};
  const std::scoped_lock lock(mutex_);
  const Collective& collective = generator.shape.collective;
  const auto [entry, fresh] = proved_.try_emplace({.kind = collective.kind,
                                                   .algorithm = generator.shape.algorithm,
                                                   .ranks = ranks,
                                                   .root = collective.root,
                                                   .nodes = collective.nodes});
  if (fresh) {
    const auto report = verify_all(build_plan(generator));
    if (!report) entry->second = report.error();
  }
  return entry->second;
}

}  // namespace tutti
