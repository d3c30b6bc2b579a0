// FailureAnalyzer: finds the reason why an operation cannot continue, and the rank that caused it, and formats the
// error message. It reads the peers' status boards. Only the driver calls it, on slow paths.
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

struct Diagnosis {
  Error error;
  CallFailure failure;  // the same information for this rank's board
};

class FailureAnalyzer {
 public:
  FailureAnalyzer(std::uint32_t rank, std::uint32_t ranks, Transport& transport)
      : rank_(rank), ranks_(ranks), transport_(transport) {}

  // Searches for a reason why `call` cannot complete: a peer failed the call, aborted, or entered another call. Or a
  // peer left, exited, cannot be reached any more, or gave up an earlier call for good, before it finished this one.
  // Returns nothing if there is no sign of a problem.
  std::optional<Diagnosis> look(const Call& call) const;
  // Searches among `awaited` for a rank that reports that it has finished `call` and will send nothing more,
  // because it has gone or has given up a later call for good. Its data may still be in transit. If it does not
  // arrive soon, it is lost.
  std::optional<Diagnosis> find_lost_sender(const Call& call, const std::vector<std::uint32_t>& awaited) const;
  // Finds the ranks that entered this call with different arguments. Returns nothing if the ranks that have entered
  // agree.
  std::optional<Diagnosis> mismatch(const Call& call) const;
  // The error for a received message that does not fit.
  Diagnosis bad_message(const Call& call, const BadMessage& message) const;
  // The error for a passed deadline. It lists the missing ranks and what this rank waits for, and adds `hint` if
  // ranks have not entered the call.
  Diagnosis timed_out(const Call& call, std::int64_t timeout_ms, CollectiveTask& running,
                      std::string_view hint = {}) const;

  // The same for sends and receives. Only the peers of unfinished transfers matter.
  std::optional<Diagnosis> look(const Exchange& exchange) const;
  // Called before a send starts. Returns an error if the receiver no longer takes part, because the data would be
  // lost.
  std::optional<Diagnosis> look_before(const Transfer& send) const;
  Diagnosis bad_transfer(const Exchange& exchange) const;
  Diagnosis timed_out(const Exchange& exchange, std::int64_t timeout_ms) const;

 private:
  // The peers, grouped by their progress in `call` as far as this rank can see it.
  struct PeerProgress {
    std::vector<std::uint32_t> absent, inside, finished, ended, cut;
  };
  PeerProgress peer_progress(const Call& call) const;
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
