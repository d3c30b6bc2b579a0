// Membership: the ranks of one communicator, and the position of this rank among them. It is a value that does not
// change after the communicator was made, so any thread may read it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/process_ranks.h"
#include "engine/arguments.h"
#include "job/job_context.h"

namespace tutti::detail {

struct Membership {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  // Shared by this rank's communicators that split(), duplicate() or shrink() made from one another; see job_context.h.
  // May be null in a simulated environment; the communicator then cannot be split, shrunk or grown, and agree() is
  // refused.
  std::shared_ptr<JobContext> job_context{};
  std::vector<std::uint32_t> members{};  // element i is the job rank of this communicator's rank i
  std::uint64_t id = 0;                  // the number that identifies the communicator; the same on all its ranks

  // The ranks of the communicator that share this rank's process. May be null in a simulated environment.
  std::shared_ptr<ProcessRanks> process_ranks{};

  Caller caller() const { return {.rank = rank, .ranks = ranks}; }
};

// A timeout of a call that is longer than this is shortened to it.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

// The timeout of a call in nanoseconds: `given`, or `otherwise` if `given` is 0.
inline std::int64_t timeout_ns(std::chrono::milliseconds given, std::chrono::milliseconds otherwise) {
  return std::int64_t{std::min(given.count() > 0 ? given : otherwise, kLongestTimeout).count()} * 1'000'000;
}

}  // namespace tutti::detail
