// JobContext: what the communicators of one rank that come from one rendezvous share: the way to the ranks of its
// machine (one exchange of shared memory), the TCP listener and the peers' addresses, clock, plan_cache, configuration.
// The first communicator of a job makes it; split and duplicate use it, so a further communicator costs one segment of
// memory, and no socket but those of its own connections by TCP: one for each direction of each pair of ranks that has
// talked. They are opened when first used, through the one listener. Communicators end in any order, each holds the
// job_context.
//
// Set-up runs in rounds in which every rank gives one blob and gets all. A rank that fails gives its error instead, so
// that the others fail with it, by name, and nobody waits for ever.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/hmac.h"
#include "base/wait.h"
#include "bootstrap/bootstrap.h"
#include "job/environment.h"
#include "job/recording_folder.h"
#include "job/verified_plan_cache.h"
#include "transports/rdma/data_path.h"
#include "transports/shm/exchange.h"
#include "transports/tcp/endpoint.h"

namespace tutti {

namespace detail {
class RankDevice;
struct Tuning;
}  // namespace detail

struct JobContext {
  Config config;
  std::uint32_t job_rank = 0;
  std::vector<bool> cpus;                                // that this process may use
  std::uint32_t cpu_limit = 0;                           // as in HostTopology
  std::shared_ptr<Clock> clock;                          // shared by the ranks of one process
  std::shared_ptr<VerifiedPlanCache> plan_cache;         // likewise
  std::function<std::unique_ptr<Waiter>()> make_waiter;  // for each communicator; null: one for the machine's cores
  std::shared_ptr<SegmentExchange> exchange;             // peers by job rank; shared with segments and windows
  std::shared_ptr<TcpEndpoint> endpoint;         // null where no rank is reached by TCP; shared by the process's ranks
  std::vector<std::string> tcp_addresses;        // by job rank
  std::shared_ptr<DataPathMaker> path_maker;     // null: messages go by TCP. Shared by the rank's communicators
  std::vector<std::string> path_offers;          // by job rank: what its path_maker offers; empty: nothing
  std::shared_ptr<detail::RankDevice> device;    // of this rank; null: it has none. Shared by its communicators
  bool devices = false;                          // some rank of the job has one
  std::shared_ptr<const detail::Tuning> tuning;  // rank 0's; shared by the rank's communicators
  std::uint64_t first_communicator = 0;          // its id, which names the job in recordings; 0: not made yet
  std::shared_ptr<RecordingFolder> recordings;   // null until needed; shared by the process's ranks
  std::vector<std::uint32_t> machines;           // by job rank: the lowest job rank of the same machine
};

// One round: this rank's blob to all ranks of the communicator that is being made, all blobs back, by rank.
using Gather = std::function<Result<std::vector<std::string>>(const std::string& blob)>;

// A round after a step that may have failed here: sends `result`'s text, or its error. Errors: this rank's, else the
// one of the first rank that failed, named; where some only waited in vain, whom they waited for.
Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result);

// The job_context of one process's rank in a job of several. Rounds over the whole job. `key`: all its ranks have it,
// and nobody else; connections between them, for all communicators that come from this one, show it. `device`: the
// rank's, or why it cannot be had.
Result<std::shared_ptr<JobContext>> make_job_context(const Config& config, std::uint32_t rank, std::uint32_t ranks,
                                                     const std::string& tcp_address, const Key& key,
                                                     std::int64_t timeout_ms, const Gather& gather,
                                                     const Result<std::shared_ptr<detail::RankDevice>>& device);

// Where recordings are made; opens nothing yet.
std::shared_ptr<RecordingFolder> open_recordings(const Config& config, std::uint32_t job_rank);

// Rounds that make_environment() takes, whatever happens in them.
inline constexpr int kWorldRounds = 2;

// The environment of a communicator whose ranks are the job ranks `members`, in that order, this rank at `rank`. Rounds
// over the members. `communicator`: an id that all members agree on and no other communicator of the job has.
Result<Environment> make_environment(const std::shared_ptr<JobContext>& job_context,
                                     const std::vector<std::uint32_t>& members, std::uint32_t rank,
                                     std::uint64_t communicator, const Gather& gather);

}  // namespace tutti
