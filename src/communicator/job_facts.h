// What the ranks of a job learn from each other before they make the first communicator.
#pragma once

#include <cstdint>

#include "job/job_context.h"
#include "tutti/result.h"

namespace tutti::detail {

struct JobFacts {
  std::uint64_t id = 0;  // of the first communicator, a random number that rank 0 chooses
  // Number of CPUs on which at least one of the ranks may run, for the measurement of first_choices.h. 0: unknown, for
  // example because there are more than kMostMeasuringRanks ranks, or because two ranks have the same process number
  // (threads of one process, or containers with numbers of their own).
  std::uint32_t cores = 0;
};

// Exchanges the facts in one set-up round, and sets job_context.tuning to the tuning of rank 0 on all ranks. Errors: on
// rank 0, kConfig if its rules are malformed, and kSystem if the system has no random numbers; on all ranks, kRefused
// if the text that rank 0 sent is malformed, and those of gather_or_fail().
Result<JobFacts> exchange_facts(JobContext& job_context, std::uint32_t ranks, const Gather& gather);

}  // namespace tutti::detail
