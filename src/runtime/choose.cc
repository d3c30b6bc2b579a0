#include "runtime/choose.h"

namespace tutti::detail {
namespace {

// Up to here every rank adds all inputs itself: one exchange of messages instead of two. Measured on two cores, see
// docs/results/.
constexpr std::uint64_t kOneShotBytes = 8 * 1024;
constexpr std::uint32_t kManyRanks = 256;  // beyond, every rank would have to read from too many

Algorithm choose_all_reduce(const Collective& collective, std::uint64_t bytes) {
  if (collective.ranks > kManyRanks) return bytes <= 64 * 1024 ? Algorithm::kDoubleTree : Algorithm::kRing;
  return bytes <= kOneShotBytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
}

}  // namespace

Algorithm choose_algorithm(const Collective& collective, std::uint64_t bytes, bool in_rank_order) {
  if (in_rank_order) {
    return collective.kind != CollectiveKind::kAllReduce ? Algorithm::kDirect
           : bytes <= kOneShotBytes                      ? Algorithm::kOneShot
                                                         : Algorithm::kTwoShot;
  }
  switch (collective.kind) {
    case CollectiveKind::kAllReduce: return choose_all_reduce(collective, bytes);
    case CollectiveKind::kBarrier: return collective.ranks <= kManyRanks ? Algorithm::kOneShot : Algorithm::kDoubleTree;
    default: return Algorithm::kDirect;
  }
}

}  // namespace tutti::detail
