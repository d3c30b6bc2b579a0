#include "tools/recorder/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace tutti::tool {
namespace {

using Recordings = std::span<const Recording>;

constexpr std::int64_t kLongWaitNs = 1'000'000'000;  // a call that has run for less than this is not a problem
constexpr std::size_t kMaxListedRanks = 16;

// Returns the recording of the rank with this number, or null if there is none.
const Recording* of_rank(Recordings recordings, std::int64_t rank) {
  const auto found =
      std::find_if(recordings.begin(), recordings.end(), [&](const auto& one) { return one.rank == rank; });
  return found == recordings.end() ? nullptr : &*found;
}

// Returns the sequence number of the last collective that the rank has entered; 0 if its recording contains none.
std::uint64_t entered(const Recording& recording) {
  for (std::size_t i = recording.calls.size(); i-- > 0;) {  // from the last call to the first
    const RecordedCall& call = recording.calls[i];
    if (call.collective() && (call.outcome.flags & recording::kNotStarted) == 0) return call.tag.sequence;
  }
  return 0;
}

// For example "rank 2 (pid 4711)".
std::string name_of(const Recording& recording) {
  return fmt::format("rank {} (pid {})", recording.rank, recording.pid);
}

template <class Wanted>
std::vector<std::uint32_t> ranks_that(Recordings recordings, const Wanted& wanted) {
  std::vector<std::uint32_t> ranks;
  for (const Recording& one : recordings) {
    if (wanted(one)) ranks.push_back(one.rank);
  }
  return ranks;
}

// Returns the ranks of the communicator that have no recording in `recordings`.
std::vector<std::uint32_t> ranks_without_recording(Recordings recordings) {
  std::set<std::uint32_t> here;
  for (const Recording& one : recordings) here.insert(one.rank);
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < recordings.front().ranks; ++rank) {
    if (!here.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// Describes the calls in which ranks are, for example "ranks 0, 1 are in all_reduce #6 (...) for 3.2 s". Ranks whose
// processes are dead or stopped are left out.
std::string waiting_text(Recordings recordings, std::int64_t now_ns) {
  std::map<std::string, std::pair<std::vector<std::uint32_t>, std::int64_t>> waiting;
  for (const Recording& one : recordings) {
    const RecordedCall* call = one.running();
    if (call == nullptr || one.process == ProcessState::kDead || one.process == ProcessState::kStopped) continue;
    auto& [ranks, since_ns] = waiting[describe(*call)];
    since_ns = ranks.empty() ? call->start_ns : std::min(since_ns, call->start_ns);
    ranks.push_back(one.rank);
  }
  std::string text;
  for (const auto& [call, waiters] : waiting) {
    text += fmt::format("{}{} {} in {} for {}", text.empty() ? "" : "; ", rank_list(waiters.first),
                        waiters.first.size() == 1 ? "is" : "are", call, duration_text(now_ns - waiters.second));
  }
  return text;
}

std::string sentence(const std::string& text) { return text.empty() ? "" : " " + text + "."; }

// Returns the earliest failure that any rank has recorded, or null if there is none. Sets `reporter` to the recording
// that contains the failure.
const RecordedFailure* first_failure(Recordings recordings, const Recording*& reporter) {
  const RecordedFailure* first = nullptr;
  for (const Recording& one : recordings) {
    if (!one.first_failure || (first != nullptr && one.first_failure->at_ns >= first->at_ns)) continue;
    first = &*one.first_failure;
    reporter = &one;
  }
  return first;
}

// The verdict if the processes of the ranks `ranks` ended without destroying their communicators.
Verdict died(Recordings recordings, std::vector<std::uint32_t> ranks, std::int64_t now_ns) {
  Verdict verdict{.cause = Cause::kDied, .culprits = std::move(ranks), .what = {}, .advice = {}};
  verdict.advice =
      "find out what ended it: the launcher's last lines (which signal), `dmesg` (out of memory), its own log; a "
      "program that calls exit() without destroying its communicator looks the same";
  if (verdict.culprits.size() == recordings.size() && recordings.size() > 1) {
    verdict.culprits.clear();
    verdict.what = fmt::format(
        "all {} processes are gone, their communicators were never destroyed, and none recorded an error before: they "
        "were killed from outside, or exited; the order is unknown.",
        recordings.size());
    return verdict;
  }
  for (const std::uint32_t rank : verdict.culprits) {
    const Recording& one = *of_rank(recordings, rank);
    verdict.what += fmt::format("{}{} died {}: its process is gone, and its communicator was never destroyed.",
                                verdict.what.empty() ? "" : " ", name_of(one), call_state_of(one, now_ns));
  }
  verdict.what += sentence(waiting_text(recordings, now_ns));
  return verdict;
}

// The verdict if the processes of the ranks `ranks` are stopped, for example by SIGSTOP or a debugger.
Verdict stopped(Recordings recordings, std::vector<std::uint32_t> ranks, std::int64_t now_ns) {
  Verdict verdict{.cause = Cause::kStopped, .culprits = std::move(ranks), .what = {}, .advice = {}};
  std::vector<std::int32_t> pids;
  for (const std::uint32_t rank : verdict.culprits) {
    const Recording& one = *of_rank(recordings, rank);
    pids.push_back(one.pid);
    verdict.what += fmt::format("{}{} is stopped (SIGSTOP, or a debugger holds it), {}.",
                                verdict.what.empty() ? "" : " ", name_of(one), call_state_of(one, now_ns));
  }
  verdict.what += sentence(waiting_text(recordings, now_ns));
  verdict.advice = fmt::format("let it go on: kill -CONT {}", fmt::join(pids, " "));
  return verdict;
}

// The verdict if ranks passed different arguments to the same call, or nothing if they did not. Examines the
// collectives that are running or have failed on some rank, the latest one first. A rank is taken as a culprit if at
// most half of the ranks whose recordings contain the call passed the same value of the argument that differs.
std::optional<Verdict> mismatch(Recordings recordings) {
  std::set<std::uint64_t, std::greater<>> sequences;
  for (const Recording& one : recordings) {
    for (const RecordedCall& call : one.calls) {
      if (call.collective() && (call.running() || call.failed())) sequences.insert(call.tag.sequence);
    }
  }
  for (const std::uint64_t sequence : sequences) {
    std::vector<std::pair<std::uint32_t, CallTag>> tags;
    for (const Recording& one : recordings) {
      if (const RecordedCall* call = one.find(sequence)) tags.emplace_back(one.rank, call->tag);
    }
    CallArgument argument = CallArgument::kNone;
    for (const auto& [rank, tag] : tags) {
      const CallArgument difference = first_difference(tags.front().second, tag);
      if (difference != CallArgument::kNone && (argument == CallArgument::kNone || difference < argument)) {
        argument = difference;
      }
    }
    if (argument == CallArgument::kNone) continue;
    std::map<std::string, std::vector<std::uint32_t>> by_value;
    for (const auto& [rank, tag] : tags) by_value[tutti::describe(tag, argument)].push_back(rank);
    Verdict verdict{.cause = Cause::kMismatch,
                    .culprits = {},
                    .what = fmt::format("the ranks disagree in their call #{}:", sequence),
                    .advice = "give all ranks the same arguments, in the same order of calls"};
    const char* separator = "";
    for (const auto& [value, ranks] : by_value) {
      verdict.what += fmt::format("{} {} passed {}", std::exchange(separator, ","), rank_list(ranks), value);
      if (2 * ranks.size() <= tags.size()) verdict.culprits.insert(verdict.culprits.end(), ranks.begin(), ranks.end());
    }
    verdict.what += ".";
    std::sort(verdict.culprits.begin(), verdict.culprits.end());
    return verdict;
  }
  return std::nullopt;
}

// The verdict if some ranks are late: their communicators still exist, and they have not entered the collective with
// this sequence number. If the process of such a rank is stopped, the verdict is that of stopped(). Returns nothing if
// no rank is late, or if all are.
std::optional<Verdict> absent(Recordings recordings, std::uint64_t sequence, std::int64_t now_ns) {
  const auto late =
      ranks_that(recordings, [&](const Recording& one) { return !one.ended_ns && entered(one) < sequence; });
  if (late.empty() || late.size() == recordings.size()) return std::nullopt;
  const auto held = ranks_that(recordings, [&](const Recording& one) {
    return one.process == ProcessState::kStopped && !one.ended_ns && entered(one) < sequence;
  });
  if (!held.empty()) return stopped(recordings, held, now_ns);
  Verdict verdict{.cause = Cause::kAbsent, .culprits = late, .what = {}, .advice = {}};
  const auto inside = ranks_that(recordings, [&](const Recording& one) { return one.find(sequence) != nullptr; });
  std::string call = fmt::format("call #{}", sequence);
  if (!inside.empty()) call = describe(*of_rank(recordings, inside.front())->find(sequence));
  for (const std::uint32_t rank : late) {
    const Recording& one = *of_rank(recordings, rank);
    verdict.what += fmt::format("{}{} has not entered {}: it is {}, {}.", verdict.what.empty() ? "" : " ", name_of(one),
                                call, state_of(one), call_state_of(one, now_ns));
  }
  verdict.what += sentence(waiting_text(recordings, now_ns));
  const Recording& first = *of_rank(recordings, late.front());
  verdict.advice =
      first.process == ProcessState::kDead
          ? "its process has ended since; see in its own log what it did instead of this call"
          : fmt::format("see what it does instead: gdb -p {} -batch -ex 'thread apply all backtrace'", first.pid);
  return verdict;
}

// The verdict if a rank has recorded an error. `failure` is the earliest one, and `reporter` the recording that
// contains it.
Verdict from_failure(Recordings recordings, const RecordedFailure& failure, const Recording& reporter,
                     std::int64_t now_ns) {
  const std::string first_error = fmt::format(" Rank {} reported the first error, {} ago: \"{}\"", reporter.rank,
                                              duration_text(now_ns - failure.at_ns), failure.text);
  std::vector<std::uint32_t> culprit;
  if (failure.culprit >= 0) culprit.push_back(static_cast<std::uint32_t>(failure.culprit));
  const Recording* named = of_rank(recordings, failure.culprit);
  Verdict verdict{.cause = Cause::kOther, .culprits = culprit, .what = "a call failed.", .advice = {}};
  if (failure.code == ErrorCode::kMismatch) {
    auto seen = mismatch(recordings);
    verdict = seen ? *seen : Verdict{Cause::kMismatch, culprit, "the ranks disagree.", "give all ranks the same"};
  } else if (failure.code == ErrorCode::kPeerLost && named != nullptr && named->ended_ns) {
    verdict = {Cause::kDestroyed, culprit,
               fmt::format("{} destroyed its communicator, {}, while others needed it.", name_of(*named),
                           call_state_of(*named, now_ns)),
               "let every rank make the same calls before it destroys its communicator"};
  } else if (failure.code == ErrorCode::kPeerLost && named != nullptr && named->died()) {
    verdict = died(recordings, culprit, now_ns);
  } else if (failure.code == ErrorCode::kTimeout) {
    if (auto late = absent(recordings, failure.sequence, now_ns)) verdict = *late;
    if (verdict.cause == Cause::kOther) verdict.what = "a call made no progress until its deadline.";
    if (named != nullptr && named->process == ProcessState::kStopped) verdict = stopped(recordings, culprit, now_ns);
  } else if (failure.code == ErrorCode::kAborted) {
    const auto aborting = ranks_that(recordings, [](const Recording& one) { return one.aborted_ns.has_value(); });
    verdict = {Cause::kAborted, aborting.empty() ? culprit : aborting, "abort() was called.",
               "find out why the program called it; it ended all calls in progress"};
  }
  verdict.what += first_error;
  return verdict;
}

// The verdict if no rank has recorded an error. It follows from the states of the processes and of their calls.
Verdict from_states(Recordings recordings, std::int64_t now_ns) {
  const auto gone = ranks_that(recordings, [](const Recording& one) { return one.died(); });
  if (!gone.empty()) return died(recordings, gone, now_ns);
  const auto held = ranks_that(
      recordings, [](const Recording& one) { return one.process == ProcessState::kStopped && !one.ended_ns; });
  if (!held.empty()) return stopped(recordings, held, now_ns);
  std::uint64_t furthest = 0;
  std::int64_t longest_ns = 0;
  for (const Recording& one : recordings) {
    const RecordedCall* call = one.running();
    if (call == nullptr) continue;
    longest_ns = std::max(longest_ns, now_ns - call->start_ns);
    if (call->collective()) furthest = std::max(furthest, call->tag.sequence);
  }
  if (longest_ns < kLongWaitNs) return {Cause::kNone, {}, "no problem is visible.", ""};
  if (auto differ = mismatch(recordings)) return *differ;
  if (auto late = absent(recordings, furthest, now_ns)) return *late;
  std::set<std::uint32_t> waited;
  for (const Recording& one : recordings) {
    if (const RecordedWait* wait = one.current_wait()) waited.insert(wait->absent.begin(), wait->absent.end());
  }
  std::vector<std::uint32_t> unseen;
  for (const std::uint32_t rank : ranks_without_recording(recordings)) {
    if (waited.contains(rank)) unseen.push_back(rank);
  }
  if (!unseen.empty()) {
    return {Cause::kUnrecorded, unseen,
            fmt::format("{} waited for, and no recording of {} is here.{}",
                        rank_list(unseen) + (unseen.size() == 1 ? " is" : " are"), unseen.size() == 1 ? "it" : "them",
                        sentence(waiting_text(recordings, now_ns))),
            "run tutti doctor on their machine, or copy their files here and name all files"};
  }
  return {Cause::kStuck,
          {},
          fmt::format("all ranks with recordings here are in the call.{}", sentence(waiting_text(recordings, now_ns))),
          "see the waits above; a rank without a wait is computing, or waits for its GPU or its stream"};
}

// The lines of the report for one rank.
std::string rank_text(const Recording& one, std::int64_t now_ns) {
  std::string text =
      fmt::format("  rank {:<4} pid {:<8} {:<9} {}", one.rank, one.pid, state_of(one), call_state_of(one, now_ns));
  if (const RecordedWait* wait = one.current_wait()) {
    text += "\n" + std::string(35, ' ') + "waits: " + wait->text;
    if (wait->absent_count > 0) text += fmt::format("; not entered by {}", rank_list(wait->absent));
    if (wait->absent_count > wait->absent.size())
      text += fmt::format(" and {} more", wait->absent_count - wait->absent.size());
  }
  if (one.last_failure) text += "\n" + std::string(35, ' ') + "error: " + one.last_failure->text;
  if (one.torn > 0) text += fmt::format("\n{}{} records are torn or damaged", std::string(35, ' '), one.torn);
  return text + "\n";
}

}  // namespace

std::string duration_text(std::int64_t ns) {
  const double s = static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9;
  if (s < 0.001) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.0f} ms", s * 1e3);
  if (s < 600) return fmt::format("{:.1f} s", s);
  return s < 36'000 ? fmt::format("{:.0f} min", s / 60) : fmt::format("{:.0f} h", s / 3600);
}

std::string rank_list(std::span<const std::uint32_t> ranks) {
  const std::span<const std::uint32_t> listed = ranks.first(std::min(ranks.size(), kMaxListedRanks));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(listed, ", "),
                     listed.size() < ranks.size() ? fmt::format(" and {} more", ranks.size() - listed.size()) : "");
}

std::string state_of(const Recording& recording) {
  if (recording.ended_ns) return "ended";
  switch (recording.process) {
    case ProcessState::kRunning: return "running";
    case ProcessState::kSleeping: return "sleeping";
    case ProcessState::kBlocked: return "blocked";
    case ProcessState::kStopped: return "stopped";
    case ProcessState::kDead: return "dead";
    case ProcessState::kUnknown: break;
  }
  return "elsewhere";
}

std::string call_state_of(const Recording& recording, std::int64_t now_ns) {
  const bool over = recording.process == ProcessState::kDead || recording.ended_ns;
  if (const RecordedCall* call = recording.running()) {
    return over ? fmt::format("in {}, begun {} ago", describe(*call), duration_text(now_ns - call->start_ns))
                : fmt::format("in {} for {}", describe(*call), duration_text(now_ns - call->start_ns));
  }
  const RecordedCall* call = recording.last();
  if (call == nullptr && !recording.device_calls.empty()) {
    return fmt::format("after handing {} to its GPU", describe(recording.device_calls.back()));
  }
  if (call == nullptr) return "before its first call";
  return fmt::format("{} {}, {} ago", call->failed() ? "after a failed" : "after", describe(*call),
                     duration_text(now_ns - call->end_ns.value_or(call->start_ns)));
}

Verdict diagnose(Recordings recordings, std::int64_t now_ns) {
  if (recordings.empty()) return {Cause::kNone, {}, "there are no recordings.", ""};
  const Recording* reporter = nullptr;
  if (const RecordedFailure* failure = first_failure(recordings, reporter)) {
    return from_failure(recordings, *failure, *reporter, now_ns);
  }
  return from_states(recordings, now_ns);
}

std::vector<Recordings> by_communicator(Recordings recordings) {
  std::vector<Recordings> groups;
  const auto same = [](const Recording& a, const Recording& b) {
    return a.job == b.job && a.communicator == b.communicator && a.ranks == b.ranks;
  };
  for (std::size_t begin = 0, end = 0; begin < recordings.size(); begin = end) {
    while (end < recordings.size() && same(recordings[begin], recordings[end])) ++end;
    groups.push_back(recordings.subspan(begin, end - begin));
  }
  return groups;
}

std::string doctor_report(Recordings recordings, std::int64_t now_ns) {
  std::string text;
  for (const Recordings& ranks : by_communicator(recordings)) {
    const Recording& first = ranks.front();
    text += fmt::format("{}job {:08x}, {} of {} ranks of \"{}\" on {}; {}; Tutti {}\n", text.empty() ? "" : "\n",
                        first.job, ranks.size(), first.ranks, first.program, first.host,
                        first.communicator == first.job ? "its first communicator"
                                                        : fmt::format("communicator {:08x}", first.communicator),
                        first.release);
    for (const Recording& one : ranks) text += rank_text(one, now_ns);
    const auto unseen = ranks_without_recording(ranks);
    if (!unseen.empty()) text += fmt::format("  no recording here: {}\n", rank_list(unseen));
    const Verdict verdict = diagnose(ranks, now_ns);
    text += fmt::format("What happened: {}\n", verdict.what);
    if (!verdict.culprits.empty()) text += fmt::format("To blame: {}\n", rank_list(verdict.culprits));
    if (!verdict.advice.empty()) text += fmt::format("What to do: {}\n", verdict.advice);
  }
  return text;
}

}  // namespace tutti::tool
