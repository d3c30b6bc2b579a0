// What communicator.h promises of agree(), shrink() and the uniform mode. Where ranks that live could not hear each
// other, or came too late, for the patience, two groups may have gone on, and some ranks none; nothing else excuses.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "faults/run.h"

namespace tutti::faults {
namespace {

constexpr std::int64_t kGraceNs = 4'000'000'000;  // last words, latencies
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
      if (fault.kind == SimFaultKind::kReset) {  // a line that breaks counts as a death, which it was not
        apart_ns += patience_ns_;
        reset_ = true;
      }
      apart_ns += std::min(fault.lasts_ns, patience_ns_);
    }
    apart_ = apart_ns >= patience_ns_ / 2;
  }

  std::vector<std::string> judge() {
    if (scenario_.ending->uniform) judge_uniform();
    const bool apart = apart_ || late([](const RankEnd& end) {
                         return end.agreements.empty() ? std::nullopt : std::optional(end.agreements.front().start_ns);
                       });
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge_agreements(rank, apart);
    const bool shrink_apart = apart_ || late([](const RankEnd& end) {
                                return end.shrink ? std::optional(end.shrink->start_ns) : std::nullopt;
                              });
    for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) judge_shrink(rank, shrink_apart);
    return std::move(found_);
  }

 private:
  void blame(const std::string& what) { found_.push_back(what); }

  // Whether some rank began something so much later than another that the patience may have been over.
  template <class Start>
  bool late(const Start& start_of) const {
    std::optional<std::int64_t> first;
    std::optional<std::int64_t> last;
    for (const RankEnd& end : outcome_.ranks) {
      const std::optional<std::int64_t> start_ns = start_of(end);
      if (!start_ns) continue;
      first = std::min(first.value_or(*start_ns), *start_ns);
      last = std::max(last.value_or(*start_ns), *start_ns);
    }
    return first && *last - *first > patience_ns_ / 2;
  }

  void judge_uniform() {
    for (std::size_t call = 0; call < scenario_.calls.size() && !apart_; ++call) {
      std::vector<std::uint32_t> good;
      std::vector<std::uint32_t> bad;
      for (std::uint32_t rank = 0; rank < outcome_.ranks.size(); ++rank) {
        const RankEnd& end = outcome_.ranks[rank];
        if (end.died || call >= end.calls.size()) continue;
        (end.calls[call].error ? bad : good).push_back(rank);
      }
      if (good.empty() || bad.empty()) continue;
      blame(fmt::format("call {} of the uniform mode was right on ranks {} and failed on ranks {}", call + 1,
                        fmt::join(good, " "), fmt::join(bad, " ")));
    }
  }

  void judge_error(const std::string& what, const Error& error, bool apart) {
    if (error.message.empty()) blame(what + " failed without a word");
    if (error.rank >= 0 && !guilty_.contains(static_cast<std::uint32_t>(error.rank))) {
      blame(fmt::format("{} names rank {}, which is innocent: {}", what, error.rank, to_string(error)));
    }
    if (!apart) blame(fmt::format("{} failed though all that live were there: {}", what, to_string(error)));
  }

  void judge_agreements(std::uint32_t rank, bool apart) {
    const RankEnd& end = outcome_.ranks[rank];
    const std::string what = fmt::format("rank {} agree()", rank);
    for (const AgreeEnd& each : end.agreements) {
      if (each.end_ns == 0) return;
      const std::int64_t took_ns = each.end_ns - each.start_ns;
      if (took_ns > patience_ns_ * 5 + delay_ns_ + kGraceNs) blame(fmt::format("{} took {} ms", what, took_ns / kMs));
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
      const RankEnd& end = outcome_.ranks[about];
      if (end.agreements.empty())
        blame(fmt::format("{} has rank {} among the survivors, which never came", what, about));
      value = std::min(value, value_of(scenario_, about));
      operation = std::min(operation, last_good(end));
    }
    if (!has(all.survivors, rank)) blame(what + " has not its own rank among the survivors");
    if (all.value != value) blame(fmt::format("{} gives {}, the least value is {}", what, all.value, value));
    // In the uniform mode votes have numbers, too.
    if (!scenario_.ending->uniform && all.last_operation != operation) {
      blame(fmt::format("{} gives operation {}, the survivors' last good ones begin at {}", what, all.last_operation,
                        operation));
    }
    for (std::uint32_t other = 0; other < outcome_.ranks.size(); ++other) {
      const RankEnd& end = outcome_.ranks[other];
      if (end.agreements.empty()) continue;
      const AgreeEnd& theirs = end.agreements.back();
      const bool has_answer = theirs.end_ns != 0 && !theirs.error;
      if (!end.died && !apart && !has(all.survivors, other)) {
        blame(fmt::format("{} leaves out rank {}, which was there", what, other));
      }
      if (!has_answer || theirs.agreement == all) continue;
      const bool common = std::any_of(all.survivors.begin(), all.survivors.end(), [&](std::int32_t member) {
        return has(theirs.agreement.survivors, static_cast<std::uint32_t>(member));
      });
      if ((common && !reset_) || !apart) blame(fmt::format("{} has another answer than rank {}'s", what, other));
    }
  }

  // By its number; 0: none was.
  static std::uint64_t last_good(const RankEnd& end) {
    for (std::size_t call = end.calls.size(); call > 0; --call) {
      if (!end.calls[call - 1].error) return call;
    }
    return 0;
  }

  static bool has(const std::vector<std::int32_t>& ranks, std::uint32_t rank) {
    return std::find(ranks.begin(), ranks.end(), static_cast<std::int32_t>(rank)) != ranks.end();
  }

  void judge_shrink(std::uint32_t rank, bool apart) {
    const RankEnd& end = outcome_.ranks[rank];
    if (!end.shrink || end.shrink->end_ns == 0) return;
    const ShrinkEnd& own = *end.shrink;
    const std::string what = fmt::format("rank {} shrink()", rank);
    const std::int64_t rounds = 1 + deaths_;
    const std::int64_t most_ns = (1 + 2 * rounds) * 5 * patience_ns_ + delay_ns_ + kGraceNs;
    const std::int64_t took_ns = own.end_ns - own.start_ns;
    if (took_ns > most_ns) blame(fmt::format("{} took {} ms", what, took_ns / kMs));
    if (own.error) return judge_error(what, *own.error, apart);
    if (own.call_end_ns != 0) judge_calls(rank, what, own);
    for (std::uint32_t other = 0; other < outcome_.ranks.size(); ++other) {
      const RankEnd& theirs = outcome_.ranks[other];
      const bool there = theirs.shrink && theirs.shrink->end_ns != 0 && !theirs.shrink->error;
      if (!theirs.died && !apart && !there && theirs.shrink) {
        blame(fmt::format("{} went well, and failed on rank {}", what, other));
      }
      if (there && !apart && theirs.shrink->size != own.size)
        blame(fmt::format("{} differs from rank {}'s", what, other));
    }
  }

  void judge_calls(std::uint32_t rank, const std::string& what, const ShrinkEnd& own) {
    const std::int64_t each_ms = scenario_.timeout.count() * (scenario_.ending->uniform ? 2 : 1);
    const std::int64_t uniform_ns = scenario_.ending->uniform ? 5 * patience_ns_ : 0;
    const std::int64_t most_ns = 2 * (each_ms * kMs * 5 / 4 + kGraceNs) + uniform_ns + delay_ns_;
    const std::int64_t took_ns = own.call_end_ns - own.end_ns;
    if (took_ns > most_ns) blame(fmt::format("{}: two calls on what it made took {} ms", what, took_ns / kMs));
    if (own.call_error) {
      if (own.call_error->message.empty()) blame(what + ": a call on what it made failed without a word");
      if (guilty_.empty()) blame(fmt::format("{}: a call failed: {}", what, to_string(*own.call_error)));
      const auto named = static_cast<std::size_t>(own.call_error->rank);
      const bool known = own.call_error->rank >= 0 && named < own.members.size();
      const auto left = [&](std::int32_t member) {  // after an error of its own
        const RankEnd& theirs = outcome_.ranks[static_cast<std::size_t>(member)];
        return theirs.shrink && theirs.shrink->call_error && theirs.shrink->call_end_ns < own.call_end_ns;
      };
      if (known && !left(own.members[named]) && !guilty_.contains(static_cast<std::uint32_t>(own.members[named]))) {
        blame(fmt::format("{}: a call names rank {}, which is innocent: {}", what, own.members[named],
                          to_string(*own.call_error)));
      }
    }
    if (own.members.empty()) return;
    std::int64_t sum = 0;
    for (const std::int32_t member : own.members) {
      if (member < 0 || static_cast<std::size_t>(member) >= outcome_.ranks.size()) {
        return blame(fmt::format("{}: rank {} is a member", what, member));
      }
      const auto about = static_cast<std::uint32_t>(member);
      const RankEnd& theirs = outcome_.ranks[about];
      sum += value_of(scenario_, about);
      if (!theirs.shrink) blame(fmt::format("{} has rank {} among its members, which never came", what, about));
      const bool differs = theirs.shrink && !theirs.shrink->members.empty() && theirs.shrink->members != own.members;
      if (differs) blame(fmt::format("{} has other members than rank {}'s", what, about));
    }
    if (!std::is_sorted(own.members.begin(), own.members.end()) ||
        own.members.at(static_cast<std::size_t>(own.rank)) != static_cast<std::int32_t>(rank)) {
      blame(what + ": its ranks are not in the order of the old ones");
    }
    if (!own.call_error && own.sum != sum) blame(fmt::format("{}: the sum is {} in place of {}", what, own.sum, sum));
  }

  const Scenario& scenario_;
  const Outcome& outcome_;
  const std::set<std::uint32_t>& guilty_;
  const std::int64_t patience_ns_;
  const std::int64_t delay_ns_;
  std::int64_t deaths_ = 0;
  bool apart_ = false;
  bool reset_ = false;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> judge_survivors(const Scenario& scenario, const Outcome& outcome,
                                         const std::set<std::uint32_t>& guilty) {
  return SurvivorsJudge(scenario, outcome, guilty).judge();
}

}  // namespace tutti::faults
