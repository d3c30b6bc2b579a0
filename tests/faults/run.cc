// Runs the ranks of a scenario under the simulated environment, and records how their calls ended.
#include "faults/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "communicator/communicator_impl.h"
#include "faults/tcp_network.h"
#include "transports/sim/sim_environment.h"

namespace tutti::faults {
namespace {

using test::Case;

// Executes one rank's part of a scenario.
class Actor {
 public:
  Actor(const Scenario& scenario, SimEnvironment& sim, TcpNetwork* tcp, SimOobDatagrams& datagrams,
        std::shared_ptr<VerifiedPlanCache> plan_cache, std::uint32_t rank, Outcome& outcome)
      : scenario_(scenario),
        sim_(sim),
        tcp_(tcp),
        datagrams_(datagrams),
        plan_cache_(std::move(plan_cache)),
        rank_(rank),
        end_(outcome.ranks[rank]),
        ending_step_(outcome.extent.ending_steps[rank]) {}

  void run() {
    std::shared_ptr<Clock> clock = sim_.clock(rank_);  // shared with the environment
    std::shared_ptr<TcpEndpoint> endpoint;             // shared as in a JobContext
    std::vector<std::string> addresses;
    std::shared_ptr<JobContext> job_context;  // shared as well
    std::vector<std::uint32_t> members;
    if (tcp_ != nullptr) {
      endpoint = tcp_->listen(rank_, *clock);
      addresses = tcp_->addresses(rank_);
    }
    if (scenario_.ending) {
      job_context = make_job_context(scenario_, sim_, datagrams_, rank_, clock, plan_cache_, endpoint, addresses);
      for (std::uint32_t rank = 0; rank < scenario_.sim.ranks; ++rank) members.push_back(rank);
    }
    auto transport = scenario_.network == Network::kMemory
                         ? sim_.transport(rank_)
                         : tcp_->transport(rank_, *clock, std::move(endpoint), std::move(addresses));
    end_.died = sim_.dead(rank_);
    Environment environment{.clock = clock,
                            .waiter = sim_.waiter(rank_),
                            .transport = std::move(transport),
                            .plan_cache = plan_cache_,
                            .log = Log(LogLevel::kOff, 0)};
    communicator_ = detail::CommunicatorImpl::wrap(
        std::make_unique<detail::CommunicatorImpl>(detail::Membership{.rank = rank_,
                                                                      .ranks = scenario_.sim.ranks,
                                                                      .job_context = std::move(job_context),
                                                                      .members = std::move(members),
                                                                      .id = kCommunicator},
                                                   std::move(environment), scenario_.timeout));
    if (make_calls() && scenario_.ending) end_with_survivors();
    communicator_.reset();
    end_.died = sim_.dead(rank_);
  }

 private:
  bool misuses(std::size_t call, Misuse how) const {
    return scenario_.misuse == how && scenario_.misuser == rank_ && scenario_.misused_call == call;
  }

  // Makes the calls of the scenario. Returns false if the rank has died or leaves without an ending.
  bool make_calls() {
    for (std::size_t i = 0; i < scenario_.calls.size(); ++i) {
      if (misuses(i, Misuse::kLeaves)) return false;
      if (misuses(i, Misuse::kAbsent)) sim_.stop(rank_, kForeverNs);
      if (misuses(i, Misuse::kAborts)) communicator_->abort();
      Case call = scenario_.calls[i];
      if (misuses(i, Misuse::kMismatch)) ++call.count;
      const bool asks = scenario_.ending && scenario_.ending->asks(i);
      const CallOutcome ended = make_call(call, asks);
      if (sim_.dead(rank_)) return false;
      end_.calls.push_back(ended);
      if (!ended.error) continue;
      if (ended.error->scope >= ErrorScope::kConnection) {
        end_.refused = make_call({.kind = CollectiveKind::kBarrier, .count = 0});
        return true;
      }
      if (scenario_.go_on) continue;
      end_.left_early = i + 1 < scenario_.calls.size();
      return true;
    }
    if (!scenario_.finalizes) return true;
    if (const Status status = communicator_->finalize(); !status.ok()) end_.finalize = status.error();
    return true;
  }

  void end_with_survivors() {
    if (sim_.dead(rank_)) return;
    end_.ending = true;
    ending_step_ = sim_.steps(rank_) + 1;
    if (scenario_.ending->agrees) agree(scenario_, sim_, rank_, *communicator_, end_.agreements);
    const bool agreed = end_.agreements.empty() || !end_.agreements.back().error;
    if (sim_.dead(rank_) || !scenario_.ending->shrinks || !agreed) return;
    shrink(scenario_, sim_, rank_, *communicator_, end_.shrink);
  }

  // Returns a buffer of registered memory if the call requires it and memory is available; otherwise an ordinary
  // buffer.
  std::byte* buffer(std::size_t bytes, bool registered, Memory& memory, std::vector<std::byte>& plain) {
    if (registered && bytes > 0) {
      if (auto made = communicator_->allocate(bytes)) memory = std::move(*made);
    }
    plain.assign(memory.data() == nullptr ? bytes + 1 : 0, std::byte{0x5a});
    return memory.data() != nullptr ? memory.data() : plain.data();
  }

  // `asks`: asks for a uniform call.
  CallOutcome make_call(const Case& call, bool asks = false) {
    const auto ranks = static_cast<std::int32_t>(scenario_.sim.ranks);
    const auto own = static_cast<std::int32_t>(rank_);
    const test::CaseShape shape = test::shape_of(call, own, ranks);
    const std::size_t width = size_of(call.type);
    const std::size_t block = call.count * width;
    const bool in_place = call.in_place && shape.in > 0 && shape.out > 0;
    Memory memories[2];
    std::vector<std::byte> plain[2];
    std::byte* const first =
        buffer(std::max(shape.in, in_place ? shape.out : 0) * block, call.registered, memories[0], plain[0]);
    std::byte* const second = buffer(in_place ? 0 : shape.out * block, call.registered, memories[1], plain[1]);
    std::byte* const input = first + (in_place ? shape.in_offset * block : 0);
    std::byte* const output = in_place ? first + shape.out_offset * block : second;
    for (std::size_t i = 0; i < shape.in * call.count; ++i) {
      test::put(input + i * width, call.type, test::given(own, i, call.type, call.op));
    }
    CallOutcome end{.error = {}, .right = true, .start_ns = sim_.now_ns(), .end_ns = 0};
    CallOptions options = test::with(call.algorithm);
    options.uniform = asks;
    const Status status = communicator_->run({.kind = call.kind,
                                              .input = shape.in > 0 ? input : nullptr,
                                              .output = shape.out > 0 ? output : nullptr,
                                              .count = call.count,
                                              .type = call.type,
                                              .op = call.op,
                                              .root = call.root},
                                             options);
    end.end_ns = sim_.now_ns();
    if (!status.ok()) {
      end.error = status.error();
      return end;
    }
    for (std::size_t i = 0; i < shape.out * call.count && end.right; ++i) {
      end.right =
          test::get(output + i * width, call.type) == test::expected(call, own, ranks, i / call.count, i % call.count);
    }
    return end;
  }

  const Scenario& scenario_;
  SimEnvironment& sim_;
  TcpNetwork* tcp_;
  SimOobDatagrams& datagrams_;
  std::shared_ptr<VerifiedPlanCache> plan_cache_;  // shared by all ranks
  std::uint32_t rank_;
  RankOutcome& end_;
  std::uint64_t& ending_step_;
  std::unique_ptr<Communicator> communicator_;
};

std::string in_ms(std::int64_t ns) { return fmt::format("{:.3f} ms", static_cast<double>(ns) / 1e6); }

}  // namespace

Outcome run(const Scenario& scenario, const std::shared_ptr<VerifiedPlanCache>& plan_cache) {
  SimEnvironment sim(scenario.sim);
  std::unique_ptr<TcpNetwork> tcp;
  SimOobDatagrams datagrams;
  if (scenario.network == Network::kTcp || scenario.ending) tcp = std::make_unique<TcpNetwork>(sim);
  Outcome outcome;
  outcome.ranks.resize(scenario.sim.ranks);
  outcome.extent.ending_steps.resize(scenario.sim.ranks);
  sim.run([&](std::uint32_t rank) { Actor(scenario, sim, tcp.get(), datagrams, plan_cache, rank, outcome).run(); });
  for (std::uint32_t rank = 0; rank < scenario.sim.ranks; ++rank) outcome.extent.steps.push_back(sim.steps(rank));
  for (std::size_t i = 0; i < scenario.sim.faults.size(); ++i) outcome.fired.push_back(sim.fired(i));
  outcome.extent.end_ns = sim.now_ns();
  outcome.fingerprint = sim.fingerprint();
  outcome.overran = sim.overran();
  outcome.open_windows = sim.open_windows();
  outcome.open_connections = sim.open_connections() + (tcp == nullptr ? 0 : tcp->open_descriptors());
  outcome.late_stores = sim.late_stores();
  outcome.refused_writes = sim.refused_writes();
  return outcome;
}

std::string describe(const Scenario& scenario, const Outcome& outcome) {
  std::string text = describe(scenario);
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    const RankOutcome& end = outcome.ranks[rank];
    const auto add = [&](const std::string& what, const CallOutcome& call) {
      text += fmt::format("  rank {} {}: {} to {}: {}\n", rank, what, in_ms(call.start_ns), in_ms(call.end_ns),
                          call.error   ? to_string(*call.error)
                          : call.right ? "right"
                                       : "WRONG RESULT");
    };
    for (std::size_t i = 0; i < end.calls.size(); ++i) add(fmt::format("call {}", i + 1), end.calls[i]);
    if (end.refused) add("one more call", *end.refused);
    if (end.finalize) text += fmt::format("  rank {} finalize(): {}\n", rank, to_string(*end.finalize));
    for (const AgreeOutcome& agreed : end.agreements) {
      const Agreement& all = agreed.agreement;
      text +=
          fmt::format("  rank {} agree() {} to {}: {}\n", rank, in_ms(agreed.start_ns), in_ms(agreed.end_ns),
                      agreed.error         ? to_string(*agreed.error)
                      : agreed.end_ns == 0 ? "died"
                                           : fmt::format("ranks {}, operation {}, value {}",
                                                         fmt::join(all.survivors, " "), all.last_operation, all.value));
    }
    if (end.shrink) {
      const ShrinkOutcome& made = *end.shrink;
      text += fmt::format("  rank {} shrink() {} to {}: {}; calls to {}: {}\n", rank, in_ms(made.start_ns),
                          in_ms(made.end_ns),
                          made.error ? to_string(*made.error) : fmt::format("rank {} of {}", made.rank, made.size),
                          in_ms(made.call_end_ns),
                          made.call_error ? to_string(*made.call_error)
                                          : fmt::format("ranks {}, sum {}", fmt::join(made.members, " "), made.sum));
    }
    if (end.died) text += fmt::format("  rank {} died\n", rank);
  }
  return text;
}

}  // namespace tutti::faults
