// The rules are simple on purpose: rounds against bytes. What is small goes by few rounds, what is long by algorithms
// that send no byte twice; inside one machine every rank reaches every other one's memory, so the direct forms win
// while the ranks are not too many. Numbers: measured on two cores (docs/results), or where the text says so, reasoned.
#include "runtime/choose.h"

namespace tutti::detail {
namespace {

// Up to here every rank adds all inputs itself: one exchange of messages instead of two. Measured.
constexpr std::uint64_t kOneShotBytes = 8 * 1024;
// Up to here across machines a message costs its latency rather than its bytes. Reasoned: 10 us at 1 to 10 GB/s.
constexpr std::uint64_t kShortBytes = 32 * 1024;
// Up to here a round more costs more than sending everything in every round. Reasoned, by the same numbers.
constexpr std::uint64_t kLatencyBytes = 8 * 1024;
constexpr std::uint32_t kManyRanks = 256;  // beyond, every rank would have to read from too many
// One rank that talks to all others in turn: beyond this, passing on is shorter. Reasoned.
constexpr std::uint32_t kFewRanks = 16;
constexpr std::uint64_t kBruckBytes = 256;  // of one block: below, passing on log p times beats p messages. Reasoned.

struct Situation {
  std::uint32_t ranks;
  std::uint64_t bytes;
  bool machines;  // several
  bool shared;    // some machine has several ranks
  bool memory;    // ranks of one machine share memory
  bool attached;  // ranks use each other's memory

  bool many() const { return ranks > kManyRanks; }
  bool is_short() const { return bytes <= kShortBytes; }
};

Algorithm choose_all_reduce(const Situation& s) {
  if (!s.memory && !s.machines && s.ranks > 2 && s.bytes <= kOneShotBytes) return Algorithm::kRecursiveDoubling;
  if (!s.machines) {
    if (s.many()) return s.bytes <= 2 * kShortBytes ? Algorithm::kDoubleTree : Algorithm::kRing;
    return s.bytes <= kOneShotBytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
  }
  if (s.bytes <= kLatencyBytes && !s.many()) return Algorithm::kRecursiveDoubling;
  if (s.is_short()) return s.many() ? Algorithm::kDoubleTree : Algorithm::kHalvingDoubling;
  return s.shared ? Algorithm::kHierarchical : Algorithm::kRing;
}

Algorithm choose_broadcast(const Situation& s) {
  if (s.ranks <= kFewRanks || (!s.machines && !s.many())) return Algorithm::kDirect;
  return s.is_short() ? Algorithm::kBinomial : Algorithm::kDoubleTree;
}

Algorithm choose_reduce(const Situation& s) {
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kBinomial;
  if (s.attached && !s.many()) return Algorithm::kDirect;  // all add
  return s.many() ? Algorithm::kDoubleTree : Algorithm::kRing;
}

Algorithm choose_all_gather_or_reduce_scatter(const Situation& s) {
  if (!s.machines && !s.many()) return Algorithm::kDirect;
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kCirculant;
  return Algorithm::kRing;
}

Algorithm choose_all_to_all(const Situation& s) {
  const bool passing_on = s.ranks > kFewRanks && s.bytes <= kBruckBytes && s.machines;
  return passing_on || s.ranks > 4 * kManyRanks ? Algorithm::kBruck : Algorithm::kDirect;
}

}  // namespace

Algorithm choose_algorithm(const Collective& collective, const Choice& choice) {
  const std::uint64_t bytes = choice.bytes;
  const bool in_rank_order = choice.in_rank_order;
  Situation s{.ranks = collective.ranks,
              .bytes = bytes,
              .machines = false,
              .shared = collective.nodes.empty(),
              .memory = choice.memory,
              .attached = choice.attached};
  std::uint32_t machines = 0;
  for (const std::uint32_t node : collective.nodes) machines = node + 1 > machines ? node + 1 : machines;
  s.machines = machines > 1;
  s.shared |= machines < collective.ranks;
  const bool one_shot = bytes <= kOneShotBytes;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      if (in_rank_order) return one_shot ? Algorithm::kOneShot : Algorithm::kTwoShot;
      return choose_all_reduce(s);
    case CollectiveKind::kReduce: return in_rank_order ? Algorithm::kDirect : choose_reduce(s);
    case CollectiveKind::kReduceScatter:
      return in_rank_order ? Algorithm::kDirect : choose_all_gather_or_reduce_scatter(s);
    case CollectiveKind::kAllGather: return choose_all_gather_or_reduce_scatter(s);
    case CollectiveKind::kBroadcast: return choose_broadcast(s);
    case CollectiveKind::kAllToAll: return choose_all_to_all(s);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return (s.many() && s.is_short()) || s.ranks > 4 * kManyRanks ? Algorithm::kBinomial : Algorithm::kDirect;
    case CollectiveKind::kBarrier: return s.many() || s.machines ? Algorithm::kDoubleTree : Algorithm::kOneShot;
    case CollectiveKind::kSendReceive: break;
  }
  return Algorithm::kDirect;
}

}  // namespace tutti::detail
