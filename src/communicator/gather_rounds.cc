#include "communicator/gather_rounds.h"

#include <fmt/format.h>

#include <cstddef>

#include "base/assert.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kMostBlobBytes = 4096;

}  // namespace

Result<std::vector<std::string>> all_gather_blobs(std::uint32_t ranks, const RunCollective& run,
                                                  const std::string& blob) {
  std::vector<std::uint64_t> lengths(ranks);
  const std::uint64_t own = blob.size();
  TUTTI_TRY(run({.kind = CollectiveKind::kAllGather,
                 .input = &own,
                 .output = lengths.data(),
                 .count = 1,
                 .type = DataType::kUint64}));
  std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (counts[rank] > kMostBlobBytes) {
      return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                   fmt::format("rank {} has {} bytes for a round of set-up, and at most {} are allowed", rank,
                               counts[rank], kMostBlobBytes)};
    }
  }
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::string all(total, '\0');
  TUTTI_TRY(run({.kind = CollectiveKind::kAllGather,
                 .input = blob.data(),
                 .output = all.data(),
                 .type = DataType::kUint8,
                 .variable = true,
                 .output_counts = {.counts = counts}}));
  std::vector<std::string> blobs;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    blobs.push_back(all.substr(at, count));
    at += count;
  }
  return blobs;
}

}  // namespace tutti::detail
