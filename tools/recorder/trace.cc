#include "tools/recorder/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {
namespace {

// Largest length of the bar for a call that was so short that its end was not measured.
constexpr std::int64_t kQuickNs = 1'000;

class Trace {
 public:
  explicit Trace(std::span<const Recording> recordings, std::int64_t now_ns) : now_ns_(now_ns) {
    begin_ns_ = std::numeric_limits<std::int64_t>::max();
    for (const Recording& one : recordings) {
      begin_ns_ = std::min(begin_ns_, one.made_ns);
      for (const RecordedCall& call : one.calls) begin_ns_ = std::min(begin_ns_, call.start_ns);
    }
    for (const Recording& one : recordings) add(one);
  }
  std::string text() const {
    const nlohmann::json trace = {{"traceEvents", events_}, {"displayTimeUnit", "ns"}};
    return trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

 private:
  double us(std::int64_t ns) const { return static_cast<double>(ns - begin_ns_) / 1e3; }

  void name(std::string_view what, const Recording& one, std::int64_t track, const std::string& text) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", one.job_rank}, {"tid", track}, {"args", {{"name", text}}}});
  }

  void add(const Recording& one) {
    std::int64_t& next = next_track_[one.job_rank];
    if (next == 0) {
      name("process_name", one, 0, fmt::format("rank {} (pid {}, {})", one.job_rank, one.pid, one.host));
      next = 1;
    }
    const std::string which =
        one.communicator == one.job ? "calls" : fmt::format("communicator {:08x}, rank {}", one.communicator, one.rank);
    const std::int64_t collectives = next++;
    name("thread_name", one, collectives, which);
    // The tracks for sends and receives, each with the time up to which it is in use.
    std::vector<std::pair<std::int64_t, std::int64_t>> exchanges;
    for (std::size_t i = 0; i < one.calls.size(); ++i) {
      const RecordedCall& call = one.calls[i];
      const std::int64_t end_ns = end_of(one, i);
      std::int64_t track = collectives;
      if (!call.collective()) {
        auto free = std::find_if(exchanges.begin(), exchanges.end(),
                                 [&](const auto& taken) { return taken.second <= call.start_ns; });
        if (free == exchanges.end()) {
          name("thread_name", one, next, which + ", sends and receives");
          exchanges.emplace_back(next++, 0);
          free = exchanges.end() - 1;
        }
        free->second = end_ns;
        track = free->first;
      }
      add(one, call, end_ns, track);
    }
    if (one.device_calls.empty()) return;
    const std::int64_t devices = next++;
    name("thread_name", one, devices, which + ", handed to the GPU");
    for (const RecordedCall& call : one.device_calls) {
      nlohmann::json arguments = {{"call", describe(call)}};
      if (call.label != 0) arguments["label"] = call.label;
      events_.push_back({{"ph", "i"},
                         {"s", "t"},
                         {"name", to_string(CollectiveKind{call.tag.kind})},
                         {"cat", "device"},
                         {"pid", one.job_rank},
                         {"tid", devices},
                         {"ts", us(call.start_ns)},
                         {"args", std::move(arguments)}});
    }
  }

  // The time at which the bar for one.calls[i] ends. For a running call, it is last_known_ns(), or the start if that is
  // later. For any other call without a measured end, it is kQuickNs after the start, or the start of the next call if
  // that is earlier.
  std::int64_t end_of(const Recording& one, std::size_t i) const {
    const RecordedCall& call = one.calls[i];
    if (call.end_ns) return *call.end_ns;
    if (call.running()) return std::max(call.start_ns, last_known_ns(one));
    std::int64_t end_ns = call.start_ns + kQuickNs;
    if (i + 1 < one.calls.size()) end_ns = std::clamp(one.calls[i + 1].start_ns, call.start_ns, end_ns);
    return end_ns;
  }
  // The time up to which a running call is drawn: the end of the communicator, or the present time if the process is
  // not known to be dead. For a dead process it is the last update of the recorded wait, or 0 if there is no wait.
  std::int64_t last_known_ns(const Recording& one) const {
    if (one.ended_ns) return *one.ended_ns;
    if (one.process != ProcessState::kDead) return now_ns_;
    return one.wait ? one.wait->updated_ns : 0;
  }

  void add(const Recording& one, const RecordedCall& call, std::int64_t end_ns, std::int64_t track) {
    static constexpr const char* kPathNames[] = {"mailboxes", "direct", "messages", "device", "transfers"};
    nlohmann::json arguments = {{"call", describe(call)},
                                {"bytes", bytes_of(call, one)},
                                {"way", kPathNames[static_cast<std::size_t>(call.outcome.way)]},
                                {"quick", !call.end_ns && !call.running()},
                                {"state", call.failed()    ? to_string(static_cast<ErrorCode>(call.outcome.code))
                                          : call.running() ? "running"
                                                           : "done"}};
    if (call.failed() && call.outcome.culprit >= 0) arguments["culprit"] = call.outcome.culprit;
    if (call.label != 0) arguments["label"] = call.label;
    const bool sends = (call.outcome.flags & recording::kSends) != 0;
    const std::string_view what = call.collective() ? to_string(CollectiveKind{call.tag.kind})
                                  : sends           ? "send"
                                                    : "receive";
    events_.push_back({{"ph", "X"},
                       {"name", what},
                       {"cat", call.collective() ? "collective" : "transfer"},
                       {"pid", one.job_rank},
                       {"tid", track},
                       {"ts", us(call.start_ns)},
                       {"dur", static_cast<double>(end_ns - call.start_ns) / 1e3},
                       {"args", std::move(arguments)}});
  }

  const std::int64_t now_ns_;
  std::int64_t begin_ns_ = 0;
  std::map<std::uint32_t, std::int64_t> next_track_;  // the next free track number of each rank of the job
  nlohmann::json events_ = nlohmann::json::array();
};

}  // namespace

std::string chrome_trace(std::span<const Recording> recordings, std::int64_t now_ns) {
  return Trace(recordings, now_ns).text();
}

}  // namespace tutti::tool
