// Measures the choices inside a machine (MachineChoices) before a job makes its first communicator, if no earlier job
// and no `tutti tune` has stored them.
#pragma once

#include <cstdint>
#include <vector>

#include "job/job_context.h"
#include "selection/tuning.h"
#include "tutti/result.h"

namespace tutti::detail {

// The largest number of ranks of a job that measures. The measurement was seen to work with two ranks; the limit is a
// guess. With many ranks, a single call takes longer than the whole measurement should.
inline constexpr std::uint32_t kMostMeasuringRanks = 16;

// Whether the settings and the kind of job permit the measurement. Among other things, the job must have several ranks
// on one machine, which may use shared memory, and no GPUs. Called by rank 0.
bool may_measure(const JobContext& job_context, std::uint32_t ranks);

// Whether rank 0 permits the measurement (Tuning::measure), and choices for these ranks are missing and can be
// measured. `cores`: JobFacts::cores. False if there are fewer cores than ranks, because the calls then take too long,
// and noise cannot be told from what is measured. The same on all ranks.
bool needs_measurement(const Tuning& tuning, std::uint32_t ranks, std::uint32_t cores);

// The measurement itself. All ranks of the job must call it if needs_measurement() is true. It takes some set-up rounds
// and about 0.06 s with two ranks; after 0.1 s, no further measurement begins. Rank 0 first reads the stored choices
// again; if another job has stored the missing ones meanwhile, nothing is measured. Otherwise rank 0 stores the result.
// Each new tuning of rank 0 replaces job_context.tuning, on all ranks alike. If measuring or storing fails, no choices
// are added, and rank 0 logs the reason. `members`: the ranks of the job. `id`: a random number that is the same on all
// ranks. Errors: those of the rounds, and kRefused if the tuning that rank 0 sent is malformed.
Status measure_first_choices(JobContext& job_context, const std::vector<std::uint32_t>& members, std::uint32_t cores,
                             std::uint64_t id, const Gather& gather);

}  // namespace tutti::detail
