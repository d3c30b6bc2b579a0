// Converts recordings to dumps of PyTorch's flight recorder, which PyTorch's analyser reads (torchfrtrace, or
// torch.distributed.flight_recorder.fr_trace). docs/recorder.md describes the mapping.
//
// A dump is a pickled dict for each rank of the job. The analyser compares the dumps of all ranks: in each process
// group, the calls with the same collective_seq_id must be the same on all ranks of the group. It knows neither the
// length of a ring of records nor which calls are sends and receives. So the conversion makes groups in which its
// comparison is correct:
//
//   process group       members                                         collective_seq_id
//   "7520b2fe"          the ranks of the communicator with this number  the collective's number (CallTag::sequence)
//   "7520b2fe v"        the same                                        the number among the v-variants of sends and
//                                                                       receives (Operation::variable_call)
//   "7520b2fe gpu"      the same                                        the number among the collectives on GPUs
//   "7520b2fe 3->2"     ranks 3 and 2 of the job                        the number among the sends from 3 to 2
//
// Calls that some rank has overwritten already are left out on all ranks. If a communicator has ended without an error
// and the recordings of some of its ranks were removed, the whole communicator is left out. All functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/recorder/recording.h"

namespace tutti::tool {

struct FlightDump {
  std::uint32_t rank = 0;  // rank of the job
  std::string pickle;
};

struct FlightDumps {
  std::vector<FlightDump> dumps;  // in the order of ranks; only those of ranks with a recording
  // The number of recorded calls that are left out because the recordings do not show which call of another rank
  // belongs to them: sends and receives on GPUs, groups of sends and receives (only the first one of a group is
  // recorded), sends and receives that the other rank has overwritten, and collectives on GPUs whose numbers cannot be
  // known (device_collectives()).
  std::size_t unmatched_calls = 0;
};

// `recordings` contains those of one job, sorted, at most one for each rank of a communicator
// (keep_newest_of_each_rank()).
FlightDumps flight_dumps(std::span<const Recording> recordings);

}  // namespace tutti::tool
