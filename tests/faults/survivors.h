// What ranks of a scenario do when their calls are over, well or not: find out who is left, and go on together. The
// production code of consensus, rendezvous, mail and set-up, over simulated sockets and a simulated exchange.
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

struct AgreeEnd {
  std::optional<Error> error;
  Agreement agreement;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  // 0: it died in it
  bool operator==(const AgreeEnd&) const = default;
};

struct ShrinkEnd {
  std::optional<Error> error;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;            // 0: it died in it
  std::int32_t rank = -1;             // in the new communicator, and how many these are
  std::int32_t size = 0;              //
  std::optional<Error> call_error;    // of the calls on it
  std::int64_t call_end_ns = 0;       // 0: it died in them
  std::vector<std::int32_t> members;  // what they gave: by rank there, the rank in the old one
  std::int64_t sum = 0;               // of value_of() of these
  bool operator==(const ShrinkEnd&) const = default;
};

// What a rank brings to agree() and to the sum on the new communicator.
std::int64_t value_of(const Scenario& scenario, std::uint32_t rank);

// In the thread of that rank, which has the endpoint and all addresses.
std::shared_ptr<JobContext> make_job_context(const Scenario& scenario, SimEnvironment& sim, SimOobDatagrams& datagrams,
                                             std::uint32_t rank, std::shared_ptr<Clock> clock,
                                             std::shared_ptr<VerifiedPlanCache> plan_cache,
                                             std::shared_ptr<TcpEndpoint> endpoint, std::vector<std::string> addresses);

// Where the attempts ended in a timeout, as often as kTries.
inline constexpr int kTries = 3;
void agree(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
           std::vector<AgreeEnd>& ends);
void shrink(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
            std::optional<ShrinkEnd>& end);

}  // namespace tutti::faults
