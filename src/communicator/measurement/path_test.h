// The path test (TUTTI_SELFTEST): checks at set-up that each rank's messages reach each other rank unchanged, and
// measures the speed of each path.
#pragma once

#include <cstdint>
#include <vector>

#include "job/job_context.h"
#include "tutti/result.h"

namespace tutti::detail {

// Every rank sends a pattern to every other rank, through the paths that sends and receives use: those of host memory
// and, if GPUs carry out the calls, those of the ranks' GPUs as well. All ranks of the job must call it. It makes a
// communicator of the job's settings for this, and destroys it. It takes ranks - 1 rounds; in each of them every rank
// sends 1 MiB five times to one rank and receives as much from one. Each time all bytes are compared, and the fastest
// time counts. Rank 0 logs the slowest and the fastest path (level info) and, unless ranks share cores or there are
// only a few paths, a warning for each of the slowest four of a kind that has less than a quarter of its median.
// Errors: kDamaged (some rank has received other bytes; all ranks get this error, which names sender, receiver, their
// hosts and GPUs, the kind of path, and the first byte that differs), kUnsupported (more than 1024 ranks), and those of
// make_communicator() and of the calls.
// `communicator`: a number for the test's communicator that no other communicator of the job has. `gather`: runs the
// set-up rounds.
Status test_paths(const JobContext& job_context, const std::vector<std::uint32_t>& members, std::uint64_t communicator,
                  const Gather& gather);

}  // namespace tutti::detail
