// Runs the ending of a scenario: agree() and shrink() of the survivors.
#include "faults/survivors.h"

#include <utility>

namespace tutti::faults {

std::int64_t value_of(const Scenario& scenario, std::uint32_t rank) {
  return 1000 + static_cast<std::int64_t>((scenario.seed + rank * 7919ull) % 997);
}

std::shared_ptr<JobContext> make_job_context(const Scenario& scenario, SimEnvironment& sim, SimOobDatagrams& datagrams,
                                             std::uint32_t rank, std::shared_ptr<Clock> clock,
                                             std::shared_ptr<VerifiedPlanCache> plan_cache,
                                             std::shared_ptr<TcpEndpoint> endpoint,
                                             std::vector<std::string> addresses) {
  const Ending& ending = *scenario.ending;
  auto job_context = std::make_shared<JobContext>();  // shared with the communicators
  Config& config = job_context->config;
  config.transport = TransportPolicy::kTcp;
  config.attach = AttachPolicy::kOff;
  config.uniform = !ending.uniform             ? UniformCalls::kNone
                   : ending.uniform_every == 1 ? UniformCalls::kAll
                                               : UniformCalls::kAsked;
  config.setup_timeout = ending.patience;
  config.timeout = scenario.timeout;
  config.slots = scenario.sim.slots;
  config.log_level = LogLevel::kOff;
  config.record = 0;
  job_context->job_rank = rank;
  job_context->cpus = {true};
  job_context->clock = std::move(clock);
  job_context->plan_cache = std::move(plan_cache);
  job_context->make_waiter = [&sim, rank] { return sim.waiter(rank); };
  job_context->exchange = std::make_shared<SimExchange>(sim, datagrams, rank);
  job_context->endpoint = std::move(endpoint);
  job_context->tcp_addresses = std::move(addresses);
  job_context->path_offers.resize(scenario.sim.ranks);
  job_context->machines = ending.machines;
  return job_context;
}

void agree(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
           std::vector<AgreeOutcome>& ends) {
  for (int tried = 0; tried < kTries; ++tried) {
    AgreeOutcome& end = ends.emplace_back();
    end.start_ns = sim.now_ns();
    auto agreement = communicator.agree({.value = value_of(scenario, rank)});
    if (sim.dead(rank)) return;
    end.end_ns = sim.now_ns();
    if (agreement) {
      end.agreement = std::move(*agreement);
      return;
    }
    end.error = agreement.error();
    if (end.error->code != ErrorCode::kTimeout) return;
  }
}

void shrink(const Scenario& scenario, SimEnvironment& sim, std::uint32_t rank, Communicator& communicator,
            std::optional<ShrinkOutcome>& ended) {
  ShrinkOutcome& end = ended.emplace();
  end.start_ns = sim.now_ns();
  auto child = communicator.shrink();
  if (sim.dead(rank)) return;
  end.end_ns = sim.now_ns();
  if (!child) {
    end.error = child.error();
    return;
  }
  end.rank = (*child)->rank();
  end.size = (*child)->size();
  const auto own = static_cast<std::int32_t>(rank);
  std::vector<std::int32_t> members(static_cast<std::size_t>(end.size));
  Status status = (*child)->all_gather(&own, members.data(), 1, DataType::kInt32);
  if (status.ok()) {
    end.members = std::move(members);
    const std::int64_t value = value_of(scenario, rank);
    status = (*child)->all_reduce(&value, &end.sum, 1, DataType::kInt64, ReduceOp::kSum);
  }
  if (sim.dead(rank)) return;
  if (!status.ok()) end.call_error = status.error();
  end.call_end_ns = sim.now_ns();
}

}  // namespace tutti::faults
