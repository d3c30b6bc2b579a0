// Picks an algorithm by name and refuses what it cannot do.
#include "algorithms/algorithms.h"

#include <fmt/format.h>

#include "algorithms/generators.h"

namespace tutti {
namespace {

Error refusal(ErrorCode code, std::string message) {
  return {.code = code, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

}  // namespace

Result<Generator> find_generator(const Collective& collective, Algorithm algorithm) {
  if (collective.kind != CollectiveKind::kAllReduce) {
    return refusal(ErrorCode::kUnsupported, "there are plans for all_reduce only");
  }
  if (collective.ranks == 0) return refusal(ErrorCode::kInvalidArgument, "a collective needs at least 1 rank, not 0");
  if (collective.ranks > kMaxRanks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} ranks are more than the {} that a plan takes", collective.ranks, kMaxRanks));
  }
  const bool direct = algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot;
  if (direct && collective.ranks > kMaxDirectRanks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} adds all ranks' values in one step and takes at most {} ranks, not {}; "
                               "use ring or double_tree",
                               to_string(algorithm), kMaxDirectRanks, collective.ranks));
  }
  switch (algorithm) {
    case Algorithm::kRing: return ring_all_reduce(collective);
    case Algorithm::kDoubleTree: return double_tree_all_reduce(collective);
    case Algorithm::kOneShot: return one_shot_all_reduce(collective);
    case Algorithm::kTwoShot: return two_shot_all_reduce(collective);
    case Algorithm::kAuto: break;
  }
  return refusal(ErrorCode::kInvalidArgument,
                 fmt::format("algorithm {} is not one that has a plan; choose ring, double_tree, one_shot or two_shot",
                             to_string(algorithm)));
}

}  // namespace tutti
