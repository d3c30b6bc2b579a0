// all_gather_blobs(): one set-up round over the ranks of a communicator that exists already, by ordinary collectives.
// It has no state, so any thread may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti::detail {

// Runs a collective on the communicator and waits for it.
using RunCollective = std::function<Status(const CollectiveCall& call)>;

// An all-gather of the lengths, then an all-gather of the blobs. Returns the blobs of all ranks, indexed by rank.
// Errors: those of the collectives; kRefused on every rank if a blob is longer than kMostBlobBytes (gather_rounds.cc):
// the error's rank is the one with this blob.
Result<std::vector<std::string>> all_gather_blobs(std::uint32_t ranks, const RunCollective& run,
                                                  const std::string& blob);

}  // namespace tutti::detail
