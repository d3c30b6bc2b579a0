#include "tools/recorder/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {
namespace {

enum class MetricType : std::uint8_t { kCounter, kGauge, kInfo };

struct MetricFamily {
  std::string_view name;
  MetricType type;
  std::string_view unit;  // empty: none. Otherwise the name ends with it, as OpenMetrics requires
  std::string_view help;
};

constexpr MetricFamily kRank{"tutti_rank", MetricType::kInfo, "",
                             "A rank of a communicator: its rank in the job, program, process and host."};
constexpr MetricFamily kState{"tutti_rank_state", MetricType::kGauge, "",
                              "1 for the present state of the rank, 0 for the other states."};
constexpr MetricFamily kCalls{"tutti_calls", MetricType::kCounter, "",
                              "Calls that have begun on the host or failed before, or were enqueued on a GPU."};
constexpr MetricFamily kBytes{"tutti_call_bytes", MetricType::kCounter, "bytes",
                              "Bytes of calls on the host, of the longer one of the rank's input and output."};
constexpr MetricFamily kErrors{"tutti_errors", MetricType::kCounter, "", "Errors of calls."};
constexpr MetricFamily kWaits{"tutti_wait_seconds", MetricType::kCounter, "seconds",
                              "Time in which a call made no progress and waited for the peer."};
constexpr MetricFamily kAbsence{"tutti_absent_seconds", MetricType::kCounter, "seconds",
                                "Time in which a call made no progress and the peer had not entered it."};
constexpr MetricFamily kRetransmissions{"tutti_tcp_retransmitted_segments", MetricType::kCounter, "",
                                        "TCP segments that the kernel has sent again to the peer."};
constexpr MetricFamily kAge{"tutti_call_age_seconds", MetricType::kGauge, "seconds",
                            "Time since the oldest running call has begun. 0 if no call runs."};
constexpr MetricFamily kLastCall{"tutti_last_call_timestamp_seconds", MetricType::kGauge, "seconds",
                                 "Time at which the latest call has begun, in seconds since 1970."};
constexpr MetricFamily kRecordings{"tutti_recordings", MetricType::kGauge, "",
                                   "Recordings from which these metrics were made."};

constexpr MetricFamily kUnreadable{
    "tutti_unreadable_recordings", MetricType::kGauge, "",
    "Files that look like recordings, and were written by another version of Tutti or are damaged."};

constexpr std::string_view kStateNames[] = {"alive", "stopped", "dead", "ended", "unknown"};

std::string_view state_name(const Recording& one) {
  if (one.ended_ns) return "ended";
  switch (one.process) {
    case ProcessState::kRunning:
    case ProcessState::kSleeping:
    case ProcessState::kBlocked: return "alive";
    case ProcessState::kStopped: return "stopped";
    case ProcessState::kDead: return "dead";
    case ProcessState::kUnknown: break;
  }
  return "unknown";
}

// Both formats have the same escape sequences in the values of labels.
std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

class MetricsText {
 public:
  explicit MetricsText(MetricsFormat format) : open_metrics_(format == MetricsFormat::kOpenMetrics) {}

  // Begins the samples of a family. OpenMetrics requires that the samples of a family follow each other.
  void begin(const MetricFamily& family) {
    static constexpr std::string_view kTypes[] = {"counter", "gauge", "info"};
    static constexpr std::string_view kSuffixes[] = {"_total", "", "_info"};
    const auto type = static_cast<std::size_t>(family.type);
    sample_name_ = fmt::format("{}{}", family.name, kSuffixes[type]);
    const std::string name = open_metrics_ ? std::string(family.name) : sample_name_;
    // The other format has no type for information.
    const bool is_gauge = !open_metrics_ && family.type == MetricType::kInfo;
    text_ += fmt::format("# TYPE {} {}\n", name, is_gauge ? "gauge" : kTypes[type]);
    if (open_metrics_ && !family.unit.empty()) text_ += fmt::format("# UNIT {} {}\n", name, family.unit);
    text_ += fmt::format("# HELP {} {}\n", name, family.help);
  }

  using Labels = std::vector<std::pair<std::string_view, std::string>>;
  template <class Number>
  void sample(const Recording& one, const Labels& more, Number value) {
    text_ += fmt::format("{}{{job=\"{:08x}\",communicator=\"{:08x}\",rank=\"{}\"", sample_name_, one.job,
                         one.communicator, one.rank);
    for (const auto& [name, label] : more) text_ += fmt::format(",{}=\"{}\"", name, escaped(label));
    text_ += fmt::format("}} {}\n", value);
  }
  void sample(std::size_t value) { text_ += fmt::format("{} {}\n", sample_name_, value); }

  std::string finish() && {
    if (open_metrics_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  const bool open_metrics_;
  std::string sample_name_;
  std::string text_;
};

void add_ranks(MetricsText& text, std::span<const Recording> recordings) {
  text.begin(kRank);
  for (const Recording& one : recordings) {
    text.sample(one,
                {{"job_rank", std::to_string(one.job_rank)},
                 {"ranks", std::to_string(one.ranks)},
                 {"program", one.program},
                 {"pid", std::to_string(one.pid)},
                 {"host", one.host},
                 {"transport", one.transport},
                 {"version", one.release}},
                1);
  }
  text.begin(kState);
  for (const Recording& one : recordings) {
    for (const std::string_view state : kStateNames) {
      text.sample(one, {{"state", std::string(state)}}, state == state_name(one) ? 1 : 0);
    }
  }
}

void add_calls(MetricsText& text, std::span<const Recording> recordings) {
  // Calls visit(recording, name of the collective, totals) for each recording and kind, also without calls.
  const auto for_each_kind = [&](const auto& visit) {
    for (const Recording& one : recordings) {
      for (std::size_t kind = 0; kind < kCollectiveTable.size(); ++kind) {
        visit(one, std::string(kCollectiveTable[kind].name), one.totals.kinds[kind]);
      }
    }
  };
  using Kind = RecordedTotals::Kind;
  text.begin(kCalls);
  for_each_kind([&](const Recording& one, const std::string& name, const Kind& kind) {
    if (kind.calls > 0) text.sample(one, {{"collective", name}, {"on", "host"}}, kind.calls);
    if (kind.device_calls > 0) text.sample(one, {{"collective", name}, {"on", "gpu"}}, kind.device_calls);
  });
  text.begin(kBytes);
  for_each_kind([&](const Recording& one, const std::string& name, const Kind& kind) {
    if (kind.calls > 0) text.sample(one, {{"collective", name}}, kind.bytes);
  });
}

void add_errors(MetricsText& text, std::span<const Recording> recordings) {
  text.begin(kErrors);
  for (const Recording& one : recordings) {
    // Also 0, because a counter that appears with the value 1 does not look like an increase.
    for (std::size_t code = 0; code <= static_cast<std::size_t>(kLastErrorCode); ++code) {
      text.sample(one, {{"code", std::string(to_string(static_cast<ErrorCode>(code)))}}, one.totals.errors[code]);
    }
  }
}

void add_waits(MetricsText& text, std::span<const Recording> recordings, const MetricFamily& family,
               std::uint64_t RecordedPeerTotals::*ns) {
  text.begin(family);
  for (const Recording& one : recordings) {
    for (std::size_t peer = 0; peer < one.peer_totals.size(); ++peer) {
      const std::uint64_t waited_ns = one.peer_totals[peer].*ns;
      if (waited_ns > 0) text.sample(one, {{"peer", std::to_string(peer)}}, seconds(waited_ns));
    }
  }
}

void add_retransmissions(MetricsText& text, std::span<const Recording> recordings) {
  text.begin(kRetransmissions);
  for (const Recording& one : recordings) {
    for (std::size_t peer = 0; peer < one.peer_totals.size(); ++peer) {
      // Also 0, as in add_errors().
      const std::optional<std::uint64_t> segments = one.peer_totals[peer].retransmissions;
      if (segments) text.sample(one, {{"peer", std::to_string(peer)}}, *segments);
    }
  }
}

// The time at which the latest call has begun or was enqueued. 0: there was none.
std::int64_t last_call_ns(const Recording& one) {
  const std::int64_t host_ns = one.calls.empty() ? 0 : one.calls.back().start_ns;
  return one.device_calls.empty() ? host_ns : std::max(host_ns, one.device_calls.back().start_ns);
}

void add_times(MetricsText& text, std::span<const Recording> recordings, std::int64_t now_ns) {
  text.begin(kAge);
  for (const Recording& one : recordings) {
    if (one.ended_ns || one.process == ProcessState::kDead) continue;
    const RecordedCall* call = one.running();
    const std::int64_t age_ns = call == nullptr ? 0 : std::max<std::int64_t>(now_ns - call->start_ns, 0);
    text.sample(one, {}, seconds(static_cast<std::uint64_t>(age_ns)));
  }
  text.begin(kLastCall);
  for (const Recording& one : recordings) {
    const std::int64_t ns = last_call_ns(one);
    if (ns > 0) text.sample(one, {}, fmt::format("{:.6f}", seconds(static_cast<std::uint64_t>(ns))));
  }
}

}  // namespace

std::string metrics_text(std::span<const Recording> recordings, std::size_t unreadable, MetricsFormat format,
                         std::int64_t now_ns) {
  MetricsText text(format);
  add_ranks(text, recordings);
  add_calls(text, recordings);
  add_errors(text, recordings);
  add_waits(text, recordings, kWaits, &RecordedPeerTotals::waited_ns);
  add_waits(text, recordings, kAbsence, &RecordedPeerTotals::absent_ns);
  add_retransmissions(text, recordings);
  add_times(text, recordings, now_ns);
  text.begin(kRecordings);
  text.sample(recordings.size());
  text.begin(kUnreadable);
  text.sample(unreadable);
  return std::move(text).finish();
}

void keep_recent_of_this_machine(std::vector<Recording>& recordings, std::int64_t keep_ns, std::int64_t now_ns) {
  std::erase_if(recordings, [&](const Recording& one) {
    if (!one.of_this_machine) return true;
    // Of a process in another container, only its traces can tell whether it is alive.
    const bool may_be_dead = one.process == ProcessState::kDead || one.process == ProcessState::kUnknown;
    if (!one.ended_ns && !may_be_dead) return false;
    std::int64_t last_ns = std::max(one.ended_ns.value_or(one.made_ns), last_call_ns(one));
    if (one.last_failure) last_ns = std::max(last_ns, one.last_failure->at_ns);
    if (one.wait) last_ns = std::max(last_ns, one.wait->updated_ns);
    return now_ns - last_ns > keep_ns;
  });
}

}  // namespace tutti::tool
