// Who is to blame when an operation cannot go on, in words. Reads the peers' boards; called on slow paths only, by the
// driver.
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
  CallFailure failure;  // the same for this rank's board
};

class FailureAnalyzer {
 public:
  FailureAnalyzer(std::uint32_t rank, std::uint32_t ranks, Transport& transport)
      : rank_(rank), ranks_(ranks), transport_(transport) {}

  // Reasons why `call` cannot end well: a peer that failed it, aborted, left or died before finishing it, or that means
  // another call. Nothing when all is well as far as can be seen.
  std::optional<Diagnosis> look(const Call& call) const;
  // A rank among `awaited` that has finished `call` by its own account, and will send no more: it is gone, or has given
  // up a later call for good. What it sent may still be on its way; where it does not come soon it is lost.
  std::optional<Diagnosis> bereft(const Call& call, const std::vector<std::uint32_t>& awaited) const;
  // The ranks that entered this call with different arguments; nothing if those that have entered agree.
  std::optional<Diagnosis> mismatch(const Call& call) const;
  // A message arrived that does not fit.
  Diagnosis bad_message(const Call& call, const BadMessage& message) const;
  // The deadline has passed; says who is missing, what this rank waits for, and `hint` where ranks have not come.
  Diagnosis timed_out(const Call& call, std::int64_t timeout_ms, CollectiveTask& running,
                      std::string_view hint = {}) const;

  // The same for sends and receives: only the peers of transfers that have not ended matter.
  std::optional<Diagnosis> look(const Exchange& exchange) const;
  // Before a send starts: its receiver takes part no more, so the data would be lost.
  std::optional<Diagnosis> look_before(const Transfer& send) const;
  Diagnosis bad_transfer(const Exchange& exchange) const;
  Diagnosis timed_out(const Exchange& exchange, std::int64_t timeout_ms) const;

 private:
  // The peers by how far they have come with `call`, as far as this rank knows.
  struct Whereabouts {
    std::vector<std::uint32_t> absent, inside, finished, ended, cut;
  };
  Whereabouts whereabouts(const Call& call) const;
  std::optional<CallFailure> failure_of(std::uint32_t peer, std::uint64_t sequence) const;
  std::optional<CallFailure> reason_to_go(std::uint32_t peer, const PeerStatus& status) const;
  std::int32_t missing_rank(const Call& call, const Whereabouts& peers, const std::vector<std::uint32_t>& waited) const;
  Diagnosis relayed(const Call& call, std::uint32_t peer, const CallFailure& failure) const;
  Diagnosis gone(const std::string& what, std::uint32_t peer, PeerLife life) const;
  std::optional<CallFailure> later_failure(const Call& call, std::uint32_t peer) const;

  std::uint32_t rank_;
  std::uint32_t ranks_;
  Transport& transport_;
};

}  // namespace tutti
