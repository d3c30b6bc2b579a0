// JobContext: the state that is shared by the communicators of one rank that were created from one set-up of the job,
// for example the connection to the ranks of its machine (one SegmentExchange), the TCP listener and the peers'
// addresses, the clock, the plan cache, and the configuration.
//
// It is created together with the first communicator of a job, and split(), duplicate() and shrink() reuse it; grow()
// creates another one. Therefore a further communicator needs no rendezvous server and no listener of its own. It has
// its own segment of shared memory, sockets of TCP connections, RDMA data path (if verbs or UCX is selected) and
// DeviceResources (if there are GPUs). For each pair of ranks that communicate over TCP, the sockets are data
// connections for each lane that is used, and control connections (transports/tcp/board.h). With an RDMA data path,
// only the control connections use TCP. The connections are opened when they are needed, through the one listener.
// Communicators may be destroyed in any order, because each of them holds a reference to the JobContext.
//
// Set-up runs in rounds. In each round every rank contributes one blob and receives all blobs. A rank that fails
// contributes its error instead. Then the other ranks fail with an error that normally names the rank that failed, and
// do not wait until the timeout.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/crypto/hmac.h"
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
  std::vector<bool> cpus;                         // indexed by CPU: true if the thread that made this object may use it
  std::uint32_t cpu_limit = 0;                    // limit of the cgroup, in cores; 0: no limit known
  std::shared_ptr<Clock> clock;                   // shared by the ranks of one create_all()
  std::shared_ptr<VerifiedPlanCache> plan_cache;  // shared by the ranks of one create_all()
  // Makes the waiter of each communicator. If null, each gets an AdaptiveWaiter with limits that follow from the
  // number of its ranks on this machine and the cores that they share.
  std::function<std::unique_ptr<Waiter>()> make_waiter;
  // Passes segments of memory between the ranks of this machine. Its peers are numbered by job rank. Shared with the
  // transports, segments, windows and device resources of the communicators.
  std::shared_ptr<SegmentExchange> exchange;
  // The TCP listener. Null if all ranks of the job share memory, unless TUTTI_TRANSPORT names a network. Shared by the
  // ranks of one create_all().
  std::shared_ptr<TcpEndpoint> endpoint;
  // The address of each rank's TCP listener, indexed by job rank. Without listeners, the texts or the vector are empty.
  std::vector<std::string> tcp_addresses;
  // Makes the RDMA data path of each communicator. Null if messages between machines use TCP, or if there is no TCP
  // listener (`endpoint`). Shared by the rank's communicators, and by the ranks of one create_all().
  std::shared_ptr<DataPathMaker> path_maker;
  // Indexed by job rank: the offer of that rank's path_maker; empty if it has none. The vector is empty if create_all()
  // needed no network.
  std::vector<std::string> path_offers;
  // The device of this rank, or null. Shared by the rank's communicators, and by the ranks of one create_all() that use
  // the same GPU.
  std::shared_ptr<detail::RankDevice> device;
  bool devices = false;                          // true if some rank of the job has a device
  std::shared_ptr<const detail::Tuning> tuning;  // rank 0's tuning; shared by the rank's communicators
  // The id of the first communicator, which identifies the job in recordings. 0 if it was not made yet.
  std::uint64_t first_communicator = 0;
  // Null until needed, except after create_all(), whose ranks share one.
  std::shared_ptr<RecordingFolder> recordings;
  // Indexed by job rank: the lowest job rank on the same machine.
  std::vector<std::uint32_t> machines;
};

// Whether some rank of the job is on another machine than rank 0.
inline bool on_several_machines(const JobContext& job_context) {
  const std::vector<std::uint32_t>& machines = job_context.machines;
  return std::any_of(machines.begin(), machines.end(), [&](std::uint32_t one) { return one != machines.front(); });
}

// Runs set-up rounds between the ranks of a communicator, for example of one that is being created.
class Gather {
 public:
  using Blobs = Result<std::vector<std::string>>;
  // `round` runs one round. `has_failed`: see has_failed().
  template <std::invocable<const std::string&> Round>
  Gather(Round round, std::function<bool()> has_failed = nullptr)
      : round_(std::move(round)), has_failed_(std::move(has_failed)) {}
  // One round: sends this rank's blob to all ranks and returns the blobs of all ranks, indexed by rank.
  Blobs operator()(const std::string& blob) const { return round_(blob); }
  // A function that returns whether the next round is already known to fail, for example because a rank has ended. It
  // does not wait. A rank that waits for another rank between two rounds calls it from time to time. If the result is
  // true, the rank ends the wait and takes part in the next round, which reports the reason. Null: nothing is known.
  const std::function<bool()>& has_failed() const { return has_failed_; }

 private:
  std::function<Blobs(const std::string&)> round_;
  std::function<bool()> has_failed_;
};

// A round after a step that may have failed on this rank. Sends the text of `result`, which the step has returned, or
// its error. Three codes mean that the fault is another rank's, or nobody's: kPeerLost (the step has lost another
// rank), kTimeout (it has waited for another rank in vain) and kAborted (it has ended a wait early, because
// gather.has_failed() returned true). No step may use them for a fault of this rank. Errors:
// - The error of the step on this rank, if the fault is this rank's own.
// - The error of the round, if the round failed. But if the step has one of the three codes and names a rank, and the
//   error of the round does not name the cause (it is kTimeout, or it names no rank and is not kAborted), the error
//   names the rank of the step, and the message contains that of the round. If the step has kAborted, this is so only
//   if the error of the round is kTimeout.
// - kSystem, with the message of the first rank that has a fault of its own. The error names that rank.
// - If ranks have only lost other ranks or waited for them in vain: the error of the step on this rank or, if it
//   succeeded, kSystem with the message of the first such rank. The error names the rank that was missing, if that rank
//   is known.
Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result);
// The same for a step whose errors can name other ranks with any code. `rank`: the number of this rank in the round. An
// error that names another rank counts as kPeerLost, unless it has one of the three codes, because the fault is that
// rank's, which reports it itself.
Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result,
                                                std::uint32_t rank);

// Creates the JobContext of one rank, for create() and grow(). (create_all() makes its own.) `ranks` may be 1. The
// rounds include all ranks of the job. `key` is a secret of the job's ranks and their rendezvous server. The ranks use
// it to authenticate the TCP connections of all communicators that share the JobContext. `device` is the device of the
// rank, null if it has none, or the error with which it could not be opened.
Result<std::shared_ptr<JobContext>> make_job_context(const Config& config, std::uint32_t rank, std::uint32_t ranks,
                                                     const std::string& tcp_address, const Key& key,
                                                     std::int64_t timeout_ms, const Gather& gather,
                                                     const Result<std::shared_ptr<detail::RankDevice>>& device);

// Prepares the folder for recordings. Opens no folder or file yet.
std::shared_ptr<RecordingFolder> open_recordings(const Config& config, std::uint32_t job_rank);

// Number of rounds that make_environment() takes, also if it returns an error.
inline constexpr int kEnvironmentRounds = 2;

// Creates the environment of a communicator. Rank i of the communicator is the job rank members[i]. `rank`: the number
// of this rank in the communicator. The rounds include the members. `communicator` is an id that is the same on all
// members and differs from those of the job's other communicators.
Result<Environment> make_environment(const std::shared_ptr<JobContext>& job_context,
                                     const std::vector<std::uint32_t>& members, std::uint32_t rank,
                                     std::uint64_t communicator, const Gather& gather);

}  // namespace tutti
