// VerifiedPlanCache: verifies the plans of Tutti's algorithms before their first use and remembers the results. See
// prove() for the plans that are not verified. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

class VerifiedPlanCache {
 public:
  // Plans for more than this many ranks are not verified here, because that would take seconds. `tutti verify --ranks`
  // verifies the plans of Tutti's own algorithms for chosen numbers of ranks, up to 4096.
  static constexpr std::uint32_t kMaxRanks = 64;

  explicit VerifiedPlanCache(bool enabled) : enabled_(enabled) {}
  // Proves the generator's plan, or returns the result of an earlier proof. Errors: those of verify_all()
  // (plan/verify/verify.h). Returns success without a proof if `enabled` is false or the plan has more than kMaxRanks
  // ranks.
  Status prove(const Generator& generator);

 private:
  bool enabled_;
  std::mutex mutex_;
  struct Key {
    CollectiveKind kind;
    Algorithm algorithm;
    std::uint32_t ranks;
    std::uint32_t root;
    std::vector<std::uint32_t> nodes;
    // PlanShape::longest_run, in which the two forms of an algorithm's plans differ (Messages in algorithms.h)
    std::uint32_t longest_run;

    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
  };
  std::map<Key, Status> proved_;
};

}  // namespace tutti
