// The invariant: every survivor's call ends in bounded time, with the right result or an error that names a culprit,
// and nothing is left over.
#include <fmt/format.h>

#include <set>

#include "faults/run.h"

namespace tutti::faults {
namespace {

constexpr std::int64_t kGraceNs = 4'000'000'000;  // beyond the deadline: looks, waits for peers' arguments and leaving

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
      if (link) guilty_.insert(fault.peer);  // nobody can know which end it was
    }
    if (scenario.misuse != Misuse::kNone) {
      only_kills_ = false;
      harmed_ = true;
      guilty_.insert(scenario.misuser);
    }
    // Two that disagree are both right to blame the other.
    if (scenario.misuse == Misuse::kMismatch && scenario.sim.ranks == 2) guilty_.insert({0, 1});
    for (std::uint32_t rank = 0; rank < outcome.ranks.size(); ++rank) {
      if (outcome.ranks[rank].left_early) guilty_.insert(rank);  // of its own free will
    }
  }

  std::vector<std::string> judge() {
    if (outcome_.overran) blame("some rank had not ended when the environment's time was over");
    if (outcome_.open_windows > 0) blame(fmt::format("{} windows are left", outcome_.open_windows));
    if (outcome_.open_connections > 0) blame(fmt::format("{} connections are left", outcome_.open_connections));
    // A rank that is stopped in the middle of a step may finish it when it is continued (decision 0003).
    if (outcome_.late_stores > 0 && !stopped_)
      blame(fmt::format("{} windows were written to after their end", outcome_.late_stores));
    // Each would cost a connection. Who is cut off for a while, or stopped, may not answer in time.
    if (outcome_.refused_writes > 0 && !held_up_) {
      blame(fmt::format("{} writes came after a rank had hidden its output", outcome_.refused_writes));
    }
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge(rank);
    if (!scenario_.ending) return std::move(found_);
    for (std::string& what : judge_survivors(scenario_, outcome_, guilty_)) blame(what);
    return std::move(found_);
  }

 private:
  void blame(const std::string& what) { found_.push_back(what); }

  void judge(std::uint32_t rank) {
    const RankEnd& end = outcome_.ranks[rank];
    for (std::size_t i = 0; i < end.calls.size(); ++i) {
      const std::string what = fmt::format("rank {} call {}", rank, i + 1);
      const std::int64_t took_ns = end.calls[i].end_ns - end.calls[i].start_ns;
      const bool uniform = scenario_.ending && scenario_.ending->uniform;  // then a vote, and an agreement
      const std::int64_t more_ms = uniform ? scenario_.timeout.count() + 4 * scenario_.ending->patience.count() : 0;
      const std::int64_t most_ns =
          (scenario_.timeout.count() + more_ms) * 1'000'000 * 5 / 4 + kGraceNs + delay_ns(scenario_);
      if (took_ns > most_ns) blame(fmt::format("{} took {} ms", what, took_ns / 1'000'000));
      if (!end.calls[i].right) blame(what + " gave a wrong result and no error");
      if (end.calls[i].error) judge(rank, i, what, *end.calls[i].error);
    }
    if (end.refused) {
      if (!end.refused->error || end.refused->error->scope < ErrorScope::kConnection) {
        blame(fmt::format("rank {}: a broken communicator took one more call", rank));
      } else if (end.refused->error->message.empty() || end.refused->end_ns - end.refused->start_ns > 1'000'000'000) {
        blame(fmt::format("rank {}: a broken communicator refused one more call late or without a word", rank));
      }
    }
    const bool uniform = scenario_.ending && scenario_.ending->uniform;  // a vote may have broken it
    if (end.finalize && end.calls.size() == scenario_.calls.size() && !uniform) {
      blame(fmt::format("rank {}: finalize() failed though all calls were good or cost one call only", rank));
    }
  }

  // Whether a rank's communicator had ended before that call, in the vote on the one before.
  bool refused(std::int32_t rank, std::size_t call) const {
    const RankEnd& end = outcome_.ranks[static_cast<std::size_t>(rank)];
    const std::vector<CallEnd>& calls = end.calls;
    if (!scenario_.ending || !scenario_.ending->uniform) return false;
    if (call >= calls.size()) return end.refused.has_value();
    return calls[call].error && calls[call].start_ns == calls[call].end_ns;
  }

  void judge(std::uint32_t rank, std::size_t call, const std::string& what, const Error& error) {
    if (error.message.empty()) blame(what + " failed without a word");
    if (!harmed_) return blame(fmt::format("{} failed though nothing was wrong: {}", what, to_string(error)));
    if (only_kills_ && cut_.empty() && error.code == ErrorCode::kTimeout) {
      blame(what + " waited for the deadline, though a process had ended");
    }
    if (error.rank < 0) {
      // Where several ranks are inside a call, which of them holds up the others cannot be known from outside.
      if (error.code != ErrorCode::kTimeout && error.code != ErrorCode::kAborted) blame(what + " names no culprit");
      return;
    }
    // Who passes something else than all others need not know that it is alone.
    const bool misused = error.code == ErrorCode::kMismatch && scenario_.misuse == Misuse::kMismatch;
    if (misused && rank == scenario_.misuser) return;
    // ... and others go by its vote.
    const bool voted = scenario_.ending && scenario_.ending->uniform && error.code == ErrorCode::kAborted;
    if (voted && scenario_.misuse == Misuse::kMismatch) return;
    // One end of a link that was cut for a while may have left because of another's death, and could not say so.
    if (error.code == ErrorCode::kPeerLost && cut_.contains(static_cast<std::uint32_t>(error.rank))) return;
    if (!guilty_.contains(static_cast<std::uint32_t>(error.rank)) && !refused(error.rank, call)) {
      blame(fmt::format("{} names rank {}, which is innocent: {}", what, error.rank, to_string(error)));
    }
  }

  const Scenario& scenario_;
  const Outcome& outcome_;
  bool harmed_ = false;
  bool stopped_ = false;
  bool held_up_ = false;    // some rank was, however briefly
  bool only_kills_ = true;  // of the faults that harm
  std::set<std::uint32_t> guilty_;
  std::set<std::uint32_t> cut_;  // ends of links that were cut, however shortly
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> judge(const Scenario& scenario, const Outcome& outcome) {
  return Judge(scenario, outcome).judge();
}

}  // namespace tutti::faults
