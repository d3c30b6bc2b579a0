// Checks the invariant of a scenario: every call of a survivor ends in bounded time, with the right result or with
// an error that names a culprit, and all resources are released.
#include <fmt/format.h>

#include <set>

#include "faults/run.h"

namespace tutti::faults {
namespace {

// time beyond the deadline, for checks of peers, for peers' arguments, and for leaving
constexpr std::int64_t kGraceNs = 4'000'000'000;

class Judge {
 public:
  Judge(const Scenario& scenario, const Outcome& outcome) : scenario_(scenario), outcome_(outcome) {
    for (std::size_t i = 0; i < scenario.sim.faults.size(); ++i) {
      const SimFault& fault = scenario.sim.faults[i];
      if (!outcome.fired[i]) continue;
      held_up_ |= fault.kind == SimFaultKind::kCut || fault.kind == SimFaultKind::kStop;
      if (fault.kind == SimFaultKind::kCut) cut_.insert({fault.rank, fault.peer});
      if (!harms(fault, scenario.timeout)) continue;
      only_kills_ &= fault.kind == SimFaultKind::kKill;
      harmed_ = true;
      stopped_ |= fault.kind == SimFaultKind::kStop;
      guilty_.insert(fault.rank);
      const bool link = fault.kind == SimFaultKind::kCut || fault.kind == SimFaultKind::kReset;
      if (link) guilty_.insert(fault.peer);  // the other ranks cannot detect which end is at fault
    }
    if (scenario.misuse != Misuse::kNone) {
      only_kills_ = false;
      harmed_ = true;
      guilty_.insert(scenario.misuser);
    }
    // If only two ranks disagree, each may name the other one.
    if (scenario.misuse == Misuse::kMismatch && scenario.sim.ranks == 2) guilty_.insert({0, 1});
    for (std::uint32_t rank = 0; rank < outcome.ranks.size(); ++rank) {
      if (outcome.ranks[rank].left_early) guilty_.insert(rank);  // it left by its own decision
    }
  }

  std::vector<std::string> judge() {
    if (outcome_.overran) add_violation("some rank had not ended at the time limit of the simulation");
    if (outcome_.open_windows > 0) add_violation(fmt::format("{} windows are left", outcome_.open_windows));
    if (outcome_.open_connections > 0) add_violation(fmt::format("{} connections are left", outcome_.open_connections));
    // A rank that is stopped in the middle of a step may finish the step when it is continued (decision record
    // 0003).
    if (outcome_.late_stores > 0 && !stopped_)
      add_violation(fmt::format("{} windows were written to after their end", outcome_.late_stores));
    // On a real network, each such write would break a connection. A rank that is cut off for a while or stopped may
    // answer too late, so such writes are then accepted.
    if (outcome_.refused_writes > 0 && !held_up_) {
      add_violation(
          fmt::format("{} writes arrived after a rank had withdrawn its receive buffer", outcome_.refused_writes));
    }
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge(rank);
    if (!scenario_.ending) return std::move(violations_);
    for (std::string& what : judge_survivors(scenario_, outcome_, guilty_)) add_violation(what);
    return std::move(violations_);
  }

 private:
  void add_violation(const std::string& what) { violations_.push_back(what); }

  void judge(std::uint32_t rank) {
    const RankOutcome& end = outcome_.ranks[rank];
    for (std::size_t i = 0; i < end.calls.size(); ++i) {
      const std::string what = fmt::format("rank {} call {}", rank, i + 1);
      const std::int64_t took_ns = end.calls[i].end_ns - end.calls[i].start_ns;
      // after a uniform call, a vote and an agreement follow
      const bool uniform = scenario_.ending && scenario_.ending->uniform;
      const std::int64_t more_ms = uniform ? scenario_.timeout.count() + 4 * scenario_.ending->patience.count() : 0;
      const std::int64_t most_ns =
          (scenario_.timeout.count() + more_ms) * 1'000'000 * 5 / 4 + kGraceNs + delay_ns(scenario_);
      if (took_ns > most_ns) add_violation(fmt::format("{} took {} ms", what, took_ns / 1'000'000));
      if (!end.calls[i].right) add_violation(what + " gave a wrong result and no error");
      if (end.calls[i].error) judge(rank, i, what, *end.calls[i].error);
    }
    if (end.refused) {
      if (!end.refused->error || end.refused->error->scope < ErrorScope::kConnection) {
        add_violation(fmt::format("rank {}: a broken communicator executed one more call", rank));
      } else if (end.refused->error->message.empty() || end.refused->end_ns - end.refused->start_ns > 1'000'000'000) {
        add_violation(
            fmt::format("rank {}: a broken communicator refused one more call late or without a message", rank));
      }
    }
    // a vote on a uniform call may have broken the communicator
    const bool uniform = scenario_.ending && scenario_.ending->uniform;
    if (end.finalize && end.calls.size() == scenario_.calls.size() && !uniform) {
      add_violation(fmt::format("rank {}: finalize() failed though all calls were good or cost one call only", rank));
    }
  }

  // Returns whether the rank's communicator was already broken before that call, by the vote on the previous call.
  bool refused(std::int32_t rank, std::size_t call) const {
    const RankOutcome& end = outcome_.ranks[static_cast<std::size_t>(rank)];
    const std::vector<CallOutcome>& calls = end.calls;
    if (!scenario_.ending || !scenario_.ending->uniform) return false;
    if (call >= calls.size()) return end.refused.has_value();
    return calls[call].error && calls[call].start_ns == calls[call].end_ns;
  }

  void judge(std::uint32_t rank, std::size_t call, const std::string& what, const Error& error) {
    if (error.message.empty()) add_violation(what + " failed without a message");
    if (!harmed_)
      return add_violation(fmt::format("{} failed although there was no fault: {}", what, to_string(error)));
    if (only_kills_ && cut_.empty() && error.code == ErrorCode::kTimeout) {
      add_violation(what + " waited until the deadline, although a process had ended");
    }
    if (error.rank < 0) {
      // If several ranks are inside a call, the others cannot detect which of them causes the delay.
      if (error.code != ErrorCode::kTimeout && error.code != ErrorCode::kAborted)
        add_violation(what + " names no culprit");
      return;
    }
    // The rank that passes another argument than all others cannot detect that it is alone.
    const bool misused = error.code == ErrorCode::kMismatch && scenario_.misuse == Misuse::kMismatch;
    if (misused && rank == scenario_.misuser) return;
    // With uniform calls, the votes of other ranks follow its vote.
    const bool voted = scenario_.ending && scenario_.ending->uniform && error.code == ErrorCode::kAborted;
    if (voted && scenario_.misuse == Misuse::kMismatch) return;
    // One end of a link that was cut for a while may have left because another rank died, and could not report this.
    if (error.code == ErrorCode::kPeerLost && cut_.contains(static_cast<std::uint32_t>(error.rank))) return;
    if (!guilty_.contains(static_cast<std::uint32_t>(error.rank)) && !refused(error.rank, call)) {
      add_violation(fmt::format("{} names rank {}, which is innocent: {}", what, error.rank, to_string(error)));
    }
  }

  const Scenario& scenario_;
  const Outcome& outcome_;
  bool harmed_ = false;
  bool stopped_ = false;
  bool held_up_ = false;    // true if any rank was held up, even briefly
  bool only_kills_ = true;  // true if all faults that harm are kills
  std::set<std::uint32_t> guilty_;
  std::set<std::uint32_t> cut_;  // ends of links that were cut, even briefly
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> judge(const Scenario& scenario, const Outcome& outcome) {
  return Judge(scenario, outcome).judge();
}

}  // namespace tutti::faults
