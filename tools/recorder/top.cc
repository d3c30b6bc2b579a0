#include "tools/recorder/top.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/recorder/doctor.h"

namespace tutti::tool {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// A recorded wait that was not updated for longer than this is taken as over, because a waiting rank updates it often.
// A wait of a stopped or dead process is an exception.
constexpr std::int64_t kFreshNs = 500'000'000;

struct Rates {
  double calls_per_s = 0;
  double bytes_per_s = 0;
};

Rates rates_of(const Recording& one, std::int64_t now_ns) {
  std::int64_t from_ns = now_ns - kSecondNs;
  // If the ring buffer has dropped calls and its oldest call is younger than a second, the period begins with this
  // call.
  if (!one.calls.empty() && one.begun > one.calls.size()) from_ns = std::max(from_ns, one.calls.front().start_ns);
  Rates rates;
  for (const RecordedCall& call : one.calls) {
    if (call.start_ns < from_ns || call.running()) continue;
    rates.calls_per_s += 1;
    rates.bytes_per_s += static_cast<double>(bytes_of(call, one));
  }
  const double s = std::max(static_cast<double>(now_ns - from_ns) / 1e9, 1e-6);
  return {rates.calls_per_s / s, rates.bytes_per_s / s};
}

// Describes the ranks for which this rank waits, for example "rank 2: not entered yet". If the recorded wait names no
// ranks, returns its text. Empty if the rank does not wait.
std::string wait_text(const Recording& one, std::int64_t now_ns) {
  const RecordedWait* wait = one.current_wait();
  const bool held = one.process == ProcessState::kStopped || one.process == ProcessState::kDead;
  if (wait == nullptr || (!held && now_ns - wait->updated_ns > kFreshNs)) return "";
  if (wait->absent_count > 0) return fmt::format("{}: not entered yet", rank_list(wait->absent));
  if (wait->waited.empty()) return wait->text;
  return fmt::format("{} ({})", rank_list(wait->waited), wait->text);
}

bool is_live(std::span<const Recording> ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const Recording& one) {
    return !one.ended_ns && one.process != ProcessState::kDead && one.process != ProcessState::kUnknown;
  });
}

}  // namespace

std::string top_table(std::span<const Recording> recordings, std::int64_t now_ns) {
  std::string text;
  for (const auto& ranks : by_communicator(recordings)) {
    if (!is_live(ranks)) continue;
    const Recording& first = ranks.front();
    const bool own = first.communicator != first.job;
    text += fmt::format("{}job {:08x}{}, \"{}\", {} of {} ranks on {}, {}, up {}\n", text.empty() ? "" : "\n",
                        first.job, own ? fmt::format(", communicator {:08x}", first.communicator) : "", first.program,
                        ranks.size(), first.ranks, first.host, first.transport, duration_text(now_ns - first.made_ns));
    text += fmt::format("{:>5} {:>8} {:<9} {:>10} {:>9} {:>9}  {}\n", "rank", "pid", "state", "calls", "calls/s",
                        "MB/s", "where it is; for whom it waits");
    for (const Recording& one : ranks) {
      const Rates rates = rates_of(one, now_ns);
      text += fmt::format("{:>5} {:>8} {:<9} {:>10} {:>9.0f} {:>9.1f}  {}", one.rank, one.pid, state_of(one),
                          one.begun + one.device_begun, rates.calls_per_s, rates.bytes_per_s / 1e6,
                          call_state_of(one, now_ns));
      const std::string waits = wait_text(one, now_ns);
      text += waits.empty() ? "\n" : fmt::format("; waits for {}\n", waits);
    }
    const Verdict verdict = diagnose(ranks, now_ns);
    if (verdict.cause != Cause::kNone) text += fmt::format("  {}\n", verdict.what);
  }
  return text;
}

}  // namespace tutti::tool
