// Looks up the generator of a collective and an algorithm in kAlgorithmTable (generators.h), and rejects arguments
// and combinations that are not supported.
#include "algorithms/algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "algorithms/generators.h"
#include "base/collective_table.h"
#include "plan/collective.h"
#include "plan/windows.h"

namespace tutti {
namespace {

Error refusal(ErrorCode code, std::string message) {
  return {.code = code, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

std::string names_of(const std::vector<Algorithm>& algorithms) {
  std::string text;
  for (const Algorithm algorithm : algorithms) {
    if (!text.empty()) text += ", ";
    text += to_string(algorithm);
  }
  return text;
}

// Returns the algorithms of the collective that support kMaxRanks ranks. If there are too many ranks for the chosen
// algorithm, the error message suggests the returned ones.
std::vector<Algorithm> algorithms_for_many(CollectiveKind kind) {
  std::vector<Algorithm> algorithms;
  for (const AlgorithmRow& row : kAlgorithmTable) {
    if (row.kind == kind && row.most_ranks == kMaxRanks) algorithms.push_back(row.algorithm);
  }
  return algorithms;
}

}  // namespace

std::vector<Algorithm> algorithms_of(CollectiveKind kind) {
  std::vector<Algorithm> algorithms;
  for (const AlgorithmRow& row : kAlgorithmTable) {
    if (row.kind == kind) algorithms.push_back(row.algorithm);
  }
  std::sort(algorithms.begin(), algorithms.end());
  return algorithms;
}

bool has_runs(CollectiveKind kind, Algorithm algorithm) {
  return std::any_of(std::begin(kAlgorithmTable), std::end(kAlgorithmTable), [&](const AlgorithmRow& row) {
    return row.kind == kind && row.algorithm == algorithm && row.in_runs != nullptr;
  });
}

Messages messages_for(const Collective& collective, std::uint64_t block_bytes, const MessageLimits& limits) {
  const CollectiveRow& row = row_of(collective.kind);
  const std::uint64_t blocks =
      std::max<std::uint64_t>({1, block_count(row.input, collective.ranks), block_count(row.output, collective.ranks)});
  if (block_bytes > std::min(limits.slot_bytes, kMostRunBytes) / blocks) return Messages::kOneChunk;
  // The plans that have a form with runs divide the longer buffer into one chunk for each rank. Halving and doubling
  // has fewer and longer chunks if the number of ranks is not a power of two: one for each core rank (folding.h), so at
  // least half as many.
  const bool long_chunks = blocks * block_bytes / collective.ranks >= kLeastPublished;
  return limits.memory && long_chunks ? Messages::kOneChunk : Messages::kRuns;
}

Result<Generator> find_generator(const Collective& collective, Algorithm algorithm, Messages messages) {
  if (collective.ranks == 0) return refusal(ErrorCode::kInvalidArgument, "a collective needs at least 1 rank, not 0");
  if (collective.ranks > kMaxRanks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} ranks are more than the {} that a plan supports", collective.ranks, kMaxRanks));
  }
  // If the collective has no root, Collective::root must be 0.
  const std::uint32_t roots = has_root(collective.kind) ? collective.ranks : 1;
  if (collective.root >= roots) {
    return refusal(ErrorCode::kInvalidArgument, fmt::format("root {} is outside 0..{}", collective.root, roots - 1));
  }
  if (!collective.nodes.empty() && collective.nodes.size() != collective.ranks) {
    return refusal(ErrorCode::kInvalidArgument,
                   fmt::format("nodes gives the machines of {} ranks, but there are {} ranks", collective.nodes.size(),
                               collective.ranks));
  }
  const auto row = std::find_if(std::begin(kAlgorithmTable), std::end(kAlgorithmTable), [&](const AlgorithmRow& each) {
    return each.kind == collective.kind && each.algorithm == algorithm;
  });
  if (row == std::end(kAlgorithmTable)) {
    const std::vector<Algorithm> known = algorithms_of(collective.kind);
    return refusal(known.empty() ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
                   fmt::format("algorithm {} is not one that has a plan for {}; choose {}", to_string(algorithm),
                               to_string(collective.kind), known.empty() ? "another collective" : names_of(known)));
  }
  if (collective.ranks > row->most_ranks) {
    return refusal(
        ErrorCode::kUnsupported,
        fmt::format("{} lets one rank communicate with all others and supports at most {} ranks, not {}; choose {}",
                    to_string(algorithm), row->most_ranks, collective.ranks,
                    names_of(algorithms_for_many(collective.kind))));
  }
  if (messages == Messages::kRuns && row->in_runs != nullptr) return row->in_runs(collective);
  return row->generator(collective);
}

}  // namespace tutti
