// FailureAnalyzer: finds the reason why an operation cannot continue, and the rank that caused it, and formats the
// error message. It reads the peers' status boards. Only the driver calls it, and normally only rarely, for example
// every few milliseconds while a call is in progress, and after a failure. So it need not be fast. There are two
// exceptions: mismatch() also runs at the end of each queued collective with a root, and look_before() in each
// Engine::look_at_receiver().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executor/exchange.h"
#include "executor/plan_execution.h"
#include "transports/transport.h"

namespace tutti {

// How long an operation may wait without progress before a warning names the ranks that it waits for. Shorter waits
// are normal, for example because one rank still reads data from a disk. A process that has not checked its operations
// for a quarter of this time is assumed to have been stopped. Its peers may have been on time, so the wait starts
// again.
inline constexpr std::int64_t kWarnAfterNs = 60'000'000'000;

struct Diagnosis {
  Error error;
  CallFailure failure;  // the same failure, in the form in which this rank's status board shows it to peers
};

class FailureAnalyzer {
 public:
  FailureAnalyzer(std::uint32_t rank, std::uint32_t ranks, Transport& transport)
      : rank_(rank), ranks_(ranks), transport_(transport) {}

  // Searches for a reason why `call` cannot complete: a peer failed the call, aborted, or entered it with other
  // arguments. Or a peer left, exited, cannot be reached any more, or failed an earlier call in a way that broke its
  // communicator, before it finished this call. Returns nothing if there is no sign of a problem.
  std::optional<Diagnosis> look(const Call& call) const;
  // Searches the ranks in `awaited`, from which data for `call` is missing, for a rank that has finished `call` and
  // will send nothing more, because it is gone or because a later call broke its communicator. Its data may still
  // be in transit, so the caller waits for a while before it treats the result as an error.
  std::optional<Diagnosis> find_lost_sender(const Call& call, const std::vector<std::uint32_t>& awaited) const;
  // Compares this rank's arguments with those of the ranks that have entered this call, as far as this rank can see
  // them. Returns a kMismatch error if they differ, and nothing if they agree.
  std::optional<Diagnosis> mismatch(const Call& call) const;
  // The error for a message, or an access to memory, that has failed; see BadMessage.
  Diagnosis bad_message(const Call& call, const BadMessage& message) const;
  // The error for a passed deadline. The message groups the peers by their progress in the call, and describes the
  // events for which this rank waits. If some ranks have not entered the call, `hint` is added.
  Diagnosis timed_out(const Call& call, std::int64_t timeout_ms, CollectiveTask& running,
                      std::string_view hint = {}) const;

  // The text of a warning for a call that has waited `waited_s` seconds without progress and goes on. It names the
  // ranks that this rank waits for: those that are furthest behind in their calls. If this rank cannot tell which these
  // are, or if all ranks have entered the call, it names the ranks that its task waits for. The rest is as in
  // timed_out().
  std::string late(const Call& call, std::int64_t waited_s, CollectiveTask& running, std::string_view hint) const;

  // The counterparts of look(), bad_message(), timed_out() and late() for a group of sends and receives. Only the
  // peers of unfinished transfers are looked at.
  std::optional<Diagnosis> look(const Exchange& exchange) const;
  // Called before a send starts. Returns an error if the receiver no longer takes part, because the data would then
  // be lost. Otherwise returns nothing.
  std::optional<Diagnosis> look_before(const Transfer& send) const;
  Diagnosis bad_transfer(const Exchange& exchange) const;
  Diagnosis timed_out(const Exchange& exchange, std::int64_t timeout_ms) const;
  std::string late(const Exchange& exchange, std::int64_t waited_s) const;
  // If one of the group's transfers has moved only in part (Exchange::half_moved()), widens the scope of `error` from
  // the call to the connection. The message then names that transfer and its peer.
  static void escalate_half_moved(const Exchange& exchange, Error& error);

 private:
  // The peers, grouped by their progress in `call` as far as this rank can see it. Each peer is in one list, the first
  // of these that applies: finished (has left the call), ended (PeerStatus::ended), cut (PeerStatus::cut), inside (has
  // entered the call), or absent (has not entered it).
  struct PeerProgress {
    std::vector<std::uint32_t> absent, inside, finished, ended, cut;
  };
  PeerProgress peer_progress(const Call& call) const;
  // The ranks of a list that are furthest behind in their sequence of calls.
  struct FurthestBehind {
    std::vector<std::uint32_t> ranks;
    bool inside_a_call = false;  // they are inside an earlier call; otherwise they are between two calls
  };
  FurthestBehind furthest_behind(const std::vector<std::uint32_t>& absent) const;
  std::string describe_wait(const PeerProgress& peers, CollectiveTask& running, std::string_view hint) const;
  std::string describe_wait(const Exchange& exchange) const;
  std::optional<CallFailure> failure_of(std::uint32_t peer, std::uint64_t sequence) const;
  std::optional<CallFailure> reason_for_leaving(std::uint32_t peer, const PeerStatus& status) const;
  std::int32_t missing_rank(const Call& call, const PeerProgress& peers,
                            const std::vector<std::uint32_t>& waited) const;
  Diagnosis relayed(const Call& call, std::uint32_t peer, const CallFailure& failure) const;
  Diagnosis gone(const std::string& what, std::uint32_t peer, PeerLife life) const;
  std::optional<CallFailure> later_failure(const Call& call, std::uint32_t peer) const;

  std::uint32_t rank_;
  std::uint32_t ranks_;
  Transport& transport_;
};

}  // namespace tutti
