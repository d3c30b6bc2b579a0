// Checks the guarantees that communicator.h gives for agree(), shrink() and uniform calls. If live ranks could
// not communicate for the timeout, or began too late, two groups may have continued separately, and some ranks may
// have failed. No other violation is accepted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "faults/run.h"

namespace tutti::faults {
namespace {

constexpr std::int64_t kGraceNs = 4'000'000'000;  // for the last messages and for latencies
constexpr std::int64_t kMs = 1'000'000;

class SurvivorsJudge {
 public:
  SurvivorsJudge(const Scenario& scenario, const Outcome& outcome, const std::set<std::uint32_t>& guilty)
      : scenario_(scenario),
        outcome_(outcome),
        guilty_(guilty),
        patience_ns_(scenario.ending->patience.count() * kMs),
        delay_ns_(delay_ns(scenario)) {
    std::int64_t apart_ns = scenario.misuse == Misuse::kAbsent ? patience_ns_ : 0;
    for (std::size_t i = 0; i < scenario.sim.faults.size(); ++i) {
      const SimFault& fault = scenario.sim.faults[i];
      if (!outcome.fired[i]) continue;
      if (fault.kind == SimFaultKind::kKill) ++deaths_;
      if (fault.kind == SimFaultKind::kReset) {  // a broken connection looks like a death to the peers
        apart_ns += patience_ns_;
        reset_ = true;
      }
      apart_ns += std::min(fault.lasts_ns, patience_ns_);
    }
    apart_ = apart_ns >= patience_ns_ / 2;
  }

  std::vector<std::string> judge() {
    if (scenario_.ending->uniform) judge_uniform();
    const bool apart = apart_ || late([](const RankOutcome& end) {
                         return end.agreements.empty() ? std::nullopt : std::optional(end.agreements.front().start_ns);
                       });
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge_agreements(rank, apart);
    const bool shrink_apart = apart_ || late([](const RankOutcome& end) {
                                return end.shrink ? std::optional(end.shrink->start_ns) : std::nullopt;
                              });
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge_shrink(rank, shrink_apart);
    return std::move(violations_);
  }

 private:
  void add_violation(const std::string& what) { violations_.push_back(what); }

  // Returns whether some rank began so much later than another one that the timeout may have expired.
  template <class Start>
  bool late(const Start& start_of) const {
    std::optional<std::int64_t> first;
    std::optional<std::int64_t> last;
    for (const RankOutcome& end : outcome_.ranks) {
      const std::optional<std::int64_t> start_ns = start_of(end);
      if (!start_ns) continue;
      first = std::min(first.value_or(*start_ns), *start_ns);
      last = std::max(last.value_or(*start_ns), *start_ns);
    }
    return first && *last - *first > patience_ns_ / 2;
  }

  void judge_uniform() {
    for (std::size_t call = 0; call < scenario_.calls.size() && !apart_; ++call) {
      if (!scenario_.ending->is_uniform(call)) continue;
      std::vector<std::uint32_t> good;
      std::vector<std::uint32_t> bad;
      for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) {
        const RankOutcome& end = outcome_.ranks[rank];
        if (end.died || call >= end.calls.size()) continue;
        (end.calls[call].error ? bad : good).push_back(rank);
      }
      if (good.empty() || bad.empty()) continue;
      add_violation(fmt::format("uniform call {} was right on ranks {} and failed on ranks {}", call + 1,
                                fmt::join(good, " "), fmt::join(bad, " ")));
    }
  }

  void judge_error(const std::string& what, const Error& error, bool apart) {
    if (error.message.empty()) add_violation(what + " failed without a message");
    if (error.rank >= 0 && !guilty_.contains(static_cast<std::uint32_t>(error.rank))) {
      add_violation(fmt::format("{} names rank {}, which is innocent: {}", what, error.rank, to_string(error)));
    }
    if (!apart) add_violation(fmt::format("{} failed although all live ranks took part: {}", what, to_string(error)));
  }

  void judge_agreements(std::uint32_t rank, bool apart) {
    const RankOutcome& end = outcome_.ranks[rank];
    const std::string what = fmt::format("rank {} agree()", rank);
    for (const AgreeOutcome& each : end.agreements) {
      if (each.end_ns == 0) return;
      const std::int64_t took_ns = each.end_ns - each.start_ns;
      if (took_ns > patience_ns_ * 5 + delay_ns_ + kGraceNs)
        add_violation(fmt::format("{} took {} ms", what, took_ns / kMs));
      if (each.error) {
        judge_error(what, *each.error, apart);
      } else {
        judge_agreement(rank, what, each.agreement, apart);
      }
    }
  }

  void judge_agreement(std::uint32_t rank, const std::string& what, const Agreement& all, bool apart) {
    std::int64_t value = INT64_MAX;
    std::uint64_t operation = UINT64_MAX;
    for (const std::int32_t member : all.survivors) {
      const auto about = static_cast<std::uint32_t>(member);
      const RankOutcome& end = outcome_.ranks[about];
      if (end.agreements.empty())
        add_violation(fmt::format("{} has rank {} among the survivors, which did not take part", what, about));
      value = std::min(value, value_of(scenario_, about));
      operation = std::min(operation, last_good(end));
    }
    if (!has(all.survivors, rank)) add_violation(what + " does not have its own rank among the survivors");
    if (all.value != value) add_violation(fmt::format("{} gives {}, the least value is {}", what, all.value, value));
    // With uniform calls, votes have sequence numbers, too, so the numbers are not compared.
    if (!scenario_.ending->uniform && all.last_operation != operation) {
      add_violation(fmt::format("{} gives operation {}, but the minimum of the survivors' last successful calls is {}",
                                what, all.last_operation, operation));
    }
    for (std::uint32_t other = 0; other < outcome_.ranks.size(); ++other) {
      const RankOutcome& end = outcome_.ranks[other];
      if (end.agreements.empty()) continue;
      const AgreeOutcome& theirs = end.agreements.back();
      const bool has_answer = theirs.end_ns != 0 && !theirs.error;
      if (!end.died && !apart && !has(all.survivors, other)) {
        add_violation(fmt::format("{} excludes rank {}, which took part", what, other));
      }
      if (!has_answer || theirs.agreement == all) continue;
      const bool common = std::any_of(all.survivors.begin(), all.survivors.end(), [&](std::int32_t member) {
        return has(theirs.agreement.survivors, static_cast<std::uint32_t>(member));
      });
      if ((common && !reset_) || !apart) add_violation(fmt::format("{} has another result than rank {}", what, other));
    }
  }

  // Returns the number of the last successful call; 0 if there was none.
  static std::uint64_t last_good(const RankOutcome& end) {
    for (std::size_t call = end.calls.size(); call > 0; --call) {
      if (!end.calls[call - 1].error) return call;
    }
    return 0;
  }

  static bool has(const std::vector<std::int32_t>& ranks, std::uint32_t rank) {
    return std::find(ranks.begin(), ranks.end(), static_cast<std::int32_t>(rank)) != ranks.end();
  }

  void judge_shrink(std::uint32_t rank, bool apart) {
    const RankOutcome& end = outcome_.ranks[rank];
    if (!end.shrink || end.shrink->end_ns == 0) return;
    const ShrinkOutcome& own = *end.shrink;
    const std::string what = fmt::format("rank {} shrink()", rank);
    const std::int64_t rounds = 1 + deaths_;
    const std::int64_t most_ns = (1 + 2 * rounds) * 5 * patience_ns_ + delay_ns_ + kGraceNs;
    const std::int64_t took_ns = own.end_ns - own.start_ns;
    if (took_ns > most_ns) add_violation(fmt::format("{} took {} ms", what, took_ns / kMs));
    if (own.error) return judge_error(what, *own.error, apart);
    if (own.call_end_ns != 0) judge_calls(rank, what, own);
    for (std::uint32_t other = 0; other < outcome_.ranks.size(); ++other) {
      const RankOutcome& theirs = outcome_.ranks[other];
      const bool there = theirs.shrink && theirs.shrink->end_ns != 0 && !theirs.shrink->error;
      if (!theirs.died && !apart && !there && theirs.shrink) {
        add_violation(fmt::format("{} succeeded, but failed on rank {}", what, other));
      }
      if (there && !apart && theirs.shrink->size != own.size)
        add_violation(fmt::format("{} differs from that of rank {}", what, other));
    }
  }

  void judge_calls(std::uint32_t rank, const std::string& what, const ShrinkOutcome& own) {
    const std::int64_t each_ms = scenario_.timeout.count() * (scenario_.ending->uniform ? 2 : 1);
    const std::int64_t uniform_ns = scenario_.ending->uniform ? 5 * patience_ns_ : 0;
    const std::int64_t most_ns = 2 * (each_ms * kMs * 5 / 4 + kGraceNs) + uniform_ns + delay_ns_;
    const std::int64_t took_ns = own.call_end_ns - own.end_ns;
    if (took_ns > most_ns)
      add_violation(fmt::format("{}: two calls on the new communicator took {} ms", what, took_ns / kMs));
    if (own.call_error) {
      if (own.call_error->message.empty())
        add_violation(what + ": a call on the new communicator failed without a message");
      if (guilty_.empty()) add_violation(fmt::format("{}: a call failed: {}", what, to_string(*own.call_error)));
      const auto named = static_cast<std::size_t>(own.call_error->rank);
      const bool known = own.call_error->rank >= 0 && named < own.members.size();
      const auto left = [&](std::int32_t member) {  // left after an error of its own call
        const RankOutcome& theirs = outcome_.ranks[static_cast<std::size_t>(member)];
        return theirs.shrink && theirs.shrink->call_error && theirs.shrink->call_end_ns < own.call_end_ns;
      };
      if (known && !left(own.members[named]) && !guilty_.contains(static_cast<std::uint32_t>(own.members[named]))) {
        add_violation(fmt::format("{}: a call names rank {}, which is innocent: {}", what, own.members[named],
                                  to_string(*own.call_error)));
      }
    }
    if (own.members.empty()) return;
    std::int64_t sum = 0;
    for (const std::int32_t member : own.members) {
      if (member < 0 || static_cast<std::size_t>(member) >= outcome_.ranks.size()) {
        return add_violation(fmt::format("{}: rank {} is a member", what, member));
      }
      const auto about = static_cast<std::uint32_t>(member);
      const RankOutcome& theirs = outcome_.ranks[about];
      sum += value_of(scenario_, about);
      if (!theirs.shrink)
        add_violation(fmt::format("{} has rank {} among its members, which did not take part", what, about));
      const bool differs = theirs.shrink && !theirs.shrink->members.empty() && theirs.shrink->members != own.members;
      if (differs) add_violation(fmt::format("{} has other members than that of rank {}", what, about));
    }
    if (!std::is_sorted(own.members.begin(), own.members.end()) ||
        own.members.at(static_cast<std::size_t>(own.rank)) != static_cast<std::int32_t>(rank)) {
      add_violation(what + ": its ranks are not in the order of the old ones");
    }
    if (!own.call_error && own.sum != sum)
      add_violation(fmt::format("{}: the sum is {} instead of {}", what, own.sum, sum));
  }

  const Scenario& scenario_;
  const Outcome& outcome_;
  const std::set<std::uint32_t>& guilty_;
  const std::int64_t patience_ns_;
  const std::int64_t delay_ns_;
  std::int64_t deaths_ = 0;
  bool apart_ = false;
  bool reset_ = false;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> judge_survivors(const Scenario& scenario, const Outcome& outcome,
                                         const std::set<std::uint32_t>& guilty) {
  return SurvivorsJudge(scenario, outcome, guilty).judge();
}

}  // namespace tutti::faults
