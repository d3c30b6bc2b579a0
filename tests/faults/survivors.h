// The ending of a scenario: after their calls, whether these succeeded or failed, the ranks agree on the survivors
// and continue together. It uses the production code of consensus, rendezvous, out-of-band channel and set-up, over
// simulated sockets and a simulated exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "faults/scenario.h"
#include "faults/sim_exchange.h"
#include "faults/tcp_network.h"
#include "job/job_context.h"
#include "tutti/communicator.h"

namespace tutti::faults {

struct AgreeOutcome {
  std::optional<Error> error;
  Agreement agreement;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  // 0: the rank died in the call
  bool operator==(const AgreeOutcome&) const = default;
};

struct ShrinkOutcome {
  std::optional<Error> error;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;            // 0: the rank died in the call
  std::int32_t rank = -1;             // in the new communicator
  std::int32_t size = 0;              // of the new communicator
  std::optional<Error> call_error;    // of the calls on the new communicator
  std::int64_t call_end_ns = 0;       // 0: the rank died in the calls
  std::vector<std::int32_t> members;  // indexed by the new rank: the old rank, as gathered in the calls
  std::int64_t sum = 0;               // sum of value_of() of these ranks
  bool operator==(const ShrinkOutcome&) const = default;
};

// The value that a rank passes to agree(), and to the sum on the new communicator.
std::int64_t value_of(const Scenario& scenario, std::uint32_t rank);

// Call it in the thread of the rank. The endpoint belongs to this rank, and the addresses are those of all ranks.
std::shared_ptr<JobContext> make_job_context(const Scenario& scenario, SimEnvironment& sim, SimOobDatagrams& datagrams,
                                             std::uint32_t rank, std::shared_ptr<Clock> clock,
                                             std::shared_ptr<VerifiedPlanCache> plan_cache,
                                             std::shared_ptr<TcpEndpoint> endpoint, std::vector<std::string> addresses);

// The maximum number of attempts. An attempt is repeated if it ended in a timeout.
inline constexpr int kTries = 3;
void agree(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
           std::vector<AgreeOutcome>& ends);
void shrink(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
            std::optional<ShrinkOutcome>& end);

}  // namespace tutti::faults
