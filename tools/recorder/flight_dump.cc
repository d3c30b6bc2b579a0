#include "tools/recorder/flight_dump.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/collective_table.h"
#include "tools/recorder/doctor.h"
#include "tools/recorder/flight_calls.h"
#include "tools/recorder/pickle.h"

namespace tutti::tool {
namespace {

using Recordings = std::span<const Recording>;

constexpr std::string_view kVersion = "2.10";  // the version of the dumps of PyTorch 2.13

// A process group of the dumps.
struct ProcessGroup {
  std::string name;
  std::string description;
  std::vector<std::uint32_t> ranks;  // ranks of the job, ascending
};

// A call of one rank in a process group.
struct Entry {
  std::size_t group = 0;  // index of the process group
  FlightCall call;
};

// A send or receive that is the first transfer of its exchange.
struct Transfer {
  const Recording* recording = nullptr;
  const RecordedCall* call = nullptr;
};

// The two ends of the transfer with one number from one rank to another one. An end without a record has null pointers.
struct TransferEnds {
  Transfer sender;
  Transfer receiver;
};

bool is_done(const RecordedCall& call) { return !call.running() && !call.failed(); }

// True if the ring of records has no space any more for the first call.
bool is_overwritten(const std::vector<RecordedCall>& calls) { return !calls.empty() && calls.front().number > 1; }

class DumpBuilder {
 public:
  explicit DumpBuilder(Recordings recordings) {
    for (const Recordings& communicator : by_communicator(recordings)) {
      if (is_remainder(communicator)) continue;
      add_matched(communicator, "", host_collectives);
      add_matched(communicator, " v", variable_collectives);
      add_device_collectives(communicator);
      add_transfers(communicator);
    }
    std::set<std::uint32_t> ranks;
    for (const Recording& one : recordings) ranks.insert(one.job_rank);
    for (const std::uint32_t rank : ranks) {
      dumps_.dumps.push_back({.rank = rank, .pickle = dump_of(rank, recordings.front().release)});
    }
  }
  FlightDumps take() { return std::move(dumps_); }

 private:
  // True if the communicator has ended without an error and some of its recordings were removed.
  static bool is_remainder(Recordings communicator) {
    return communicator.size() < communicator.front().ranks &&
           std::ranges::all_of(communicator, [](const Recording& one) { return one.ended_ns && !one.first_failure; });
  }

  // Adds a process group of all ranks of the communicator, and returns its index. If ranks of a communicator have no
  // recordings, it is unknown which ranks of the job they are, except in the job's first communicator.
  std::size_t add_group(Recordings communicator, std::string_view suffix) {
    const Recording& first = communicator.front();
    const bool is_first = first.communicator == first.job;
    std::set<std::uint32_t> ranks;
    for (const Recording& one : communicator) ranks.insert(one.job_rank);
    for (std::uint32_t rank = 0; is_first && rank < first.ranks; ++rank) ranks.insert(rank);
    groups_.push_back({.name = fmt::format("{:08x}{}", first.communicator, suffix),
                       .description = is_first && suffix.empty() ? "default_pg" : "undefined",
                       .ranks = {ranks.begin(), ranks.end()}});
    return groups_.size() - 1;
  }

  void add(std::uint32_t job_rank, std::size_t group, FlightCall call) {
    entries_[job_rank].push_back({.group = group, .call = std::move(call)});
  }

  // Adds a process group of all ranks of the communicator, with those of the calls that all ranks still have.
  // `calls_of` returns the calls of one rank by their numbers, which are the same on all ranks.
  template <class CallsOf>
  void add_matched(Recordings communicator, std::string_view suffix, const CallsOf& calls_of) {
    std::vector<std::map<std::uint64_t, FlightCall>> by_rank;
    std::uint64_t first = 1;  // the first call that all ranks still have
    std::uint64_t first_undone = std::numeric_limits<std::uint64_t>::max();
    bool some_rank_has_none = false;
    bool has_calls = false;
    for (const Recording& one : communicator) {
      by_rank.push_back(calls_of(one));
      const auto& calls = by_rank.back();
      has_calls |= !calls.empty();
      for (const auto& [number, call] : calls) {
        if (call.state != FlightState::kCompleted) first_undone = std::min(first_undone, number);
      }
      if (!is_overwritten(one.calls)) continue;
      if (calls.empty()) some_rank_has_none = true;
      // If the oldest record is a segment of a long call, earlier segments may have been overwritten.
      if (!calls.empty()) first = std::max(first, calls.begin()->first + (calls.begin()->second.is_segmented ? 1 : 0));
    }
    // A rank whose whole ring is full of other calls does not show which of these calls it has made. Those that are
    // done on all ranks are then left out.
    if (some_rank_has_none) first = std::max(first, first_undone);
    if (!has_calls && !suffix.empty()) return;
    const std::size_t group = add_group(communicator, suffix);
    for (std::size_t i = 0; i < communicator.size(); ++i) {
      for (auto& [number, call] : by_rank[i]) {
        if (number >= first) add(communicator[i].job_rank, group, std::move(call));
      }
    }
  }

  // Adds the collectives that were enqueued on GPUs, in a process group of their own, because they have no number among
  // the communicator's collectives.
  void add_device_collectives(Recordings communicator) {
    if (std::ranges::all_of(communicator, [](const Recording& one) { return one.device_calls.empty(); })) return;
    std::vector<std::vector<FlightCall>> by_rank;
    std::uint64_t first = 1;
    bool unknown_numbers = false;
    std::size_t all = 0;
    std::size_t shown = 0;
    for (const Recording& one : communicator) {
      by_rank.push_back(device_collectives(one));
      all += one.device_calls.size();
      shown += by_rank.back().size();
      if (!by_rank.back().empty()) first = std::max(first, by_rank.back().front().sequence);
      unknown_numbers |= by_rank.back().empty() && is_overwritten(one.device_calls);
    }
    // If one rank does not show which of these calls it has made, it would seem to be missing in those of the others.
    if (unknown_numbers) shown = 0;
    dumps_.unmatched_calls += all - shown;
    if (shown == 0) return;
    const std::size_t group = add_group(communicator, " gpu");
    for (std::size_t i = 0; i < communicator.size(); ++i) {
      for (FlightCall& call : by_rank[i]) {
        if (call.sequence >= first) add(communicator[i].job_rank, group, std::move(call));
      }
    }
  }

  // Adds sends and receives. Both ends have the same number, so they can be matched. A transfer that is done and has no
  // record at the other end was overwritten there, or is not the first one of its group, so it is left out.
  void add_transfers(Recordings communicator) {
    std::map<std::uint32_t, const Recording*> by_rank;
    for (const Recording& one : communicator) by_rank[one.rank] = &one;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::map<std::uint64_t, TransferEnds>> directions;
    for (const Recording& one : communicator) {
      for (const RecordedCall& call : one.calls) {
        if (call.collective() || call.variable_call > 0) continue;
        if (call.tag.kind != static_cast<std::uint8_t>(CollectiveKind::kSendReceive) || !by_rank.contains(call.peer)) {
          ++dumps_.unmatched_calls;
          continue;
        }
        const bool sends = (call.outcome.flags & recording::kSends) != 0;
        auto& direction = directions[sends ? std::pair(one.rank, call.peer) : std::pair(call.peer, one.rank)];
        TransferEnds& ends = direction[call.tag.sequence];
        (sends ? ends.sender : ends.receiver) = {.recording = &one, .call = &call};
      }
    }
    for (const auto& [ranks, by_sequence] : directions) {
      std::optional<std::size_t> group;
      const Recording& sender = *by_rank[ranks.first];
      const Recording& receiver = *by_rank[ranks.second];
      for (const auto& [sequence, ends] : by_sequence) {
        if (!is_shown(ends, sender, receiver)) {
          ++dumps_.unmatched_calls;
          continue;
        }
        if (!group) group = add_direction(sender, receiver);
        const bool reversed = receiver.job_rank < sender.job_rank;
        if (ends.sender.call != nullptr) {
          add(sender.job_rank, *group, flight_transfer(*ends.sender.call, sender, true, reversed));
        }
        if (ends.receiver.call != nullptr) {
          add(receiver.job_rank, *group, flight_transfer(*ends.receiver.call, receiver, false, reversed));
        }
      }
    }
  }

  // Whether the analyser would judge the transfer correctly. If one end has no record, the transfer is shown only if it
  // is not done and the other rank does not run a group of transfers, which may contain the other end.
  static bool is_shown(const TransferEnds& ends, const Recording& sender, const Recording& receiver) {
    if (ends.sender.call != nullptr && ends.receiver.call != nullptr) return true;
    const RecordedCall& known = ends.sender.call != nullptr ? *ends.sender.call : *ends.receiver.call;
    const Recording& other = ends.sender.call != nullptr ? receiver : sender;
    const bool may_be_in_group = std::ranges::any_of(other.calls, [](const RecordedCall& call) {
      return !call.collective() && !is_done(call) && call.transfers > 1 && call.variable_call == 0;
    });
    return !is_done(known) && !may_be_in_group;
  }

  std::size_t add_direction(const Recording& sender, const Recording& receiver) {
    const auto [low, high] = std::minmax(sender.job_rank, receiver.job_rank);
    groups_.push_back({.name = fmt::format("{:08x} {}->{}", sender.communicator, sender.job_rank, receiver.job_rank),
                       .description = "undefined",
                       .ranks = {low, high}});
    return groups_.size() - 1;
  }

  std::string dump_of(std::uint32_t rank, std::string_view release) {
    std::vector<Entry>& entries = entries_[rank];
    std::ranges::stable_sort(entries, {}, [](const Entry& entry) { return entry.call.start_ns; });
    PickleWriter dump;
    dump.open_dict();
    dump.text("version");
    dump.text(kVersion);
    dump.text("comm_lib_version");
    dump.text(fmt::format("Tutti {}", release));
    dump.text("pg_config");
    write_groups(dump, rank);
    dump.text("pg_status");
    write_status(dump, entries);
    dump.text("entries");
    dump.open_list();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const ProcessGroup& group = groups_[entries[i].group];
      write_flight_call(dump, entries[i].call,
                        {.record = i, .group = entries[i].group, .name = group.name, .description = group.description});
    }
    dump.close_list();
    dump.close_dict();
    return std::move(dump).finish();
  }

  void write_groups(PickleWriter& dump, std::uint32_t rank) const {
    dump.open_dict();
    for (const ProcessGroup& group : groups_) {
      if (!std::ranges::binary_search(group.ranks, rank)) continue;
      dump.text(group.name);
      dump.open_dict();
      dump.text("name");
      dump.text(group.name);
      dump.text("desc");
      dump.text(group.description);
      dump.text("ranks");
      dump.text(fmt::format("[{}]", fmt::join(group.ranks, ", ")));
      dump.close_dict();
    }
    dump.close_dict();
  }

  // The last numbers of each process group. -1: there is none.
  void write_status(PickleWriter& dump, const std::vector<Entry>& entries) const {
    std::map<std::size_t, std::map<FlightState, std::int64_t>> last;
    for (const Entry& entry : entries) {
      const auto number = static_cast<std::int64_t>(entry.call.sequence);
      for (const FlightState state : {FlightState::kScheduled, FlightState::kStarted, FlightState::kCompleted}) {
        std::int64_t& latest = last[entry.group].try_emplace(state, -1).first->second;
        if (entry.call.state >= state) latest = std::max(latest, number);
      }
    }
    dump.open_dict();
    for (const auto& [group, numbers] : last) {
      dump.text(std::to_string(group));
      dump.open_dict();
      dump.text("last_enqueued_collective");
      dump.integer(numbers.at(FlightState::kScheduled));
      dump.text("last_started_collective");
      dump.integer(numbers.at(FlightState::kStarted));
      dump.text("last_completed_collective");
      dump.integer(numbers.at(FlightState::kCompleted));
      dump.close_dict();
    }
    dump.close_dict();
  }

  std::vector<ProcessGroup> groups_;
  std::map<std::uint32_t, std::vector<Entry>> entries_;  // by rank of the job
  FlightDumps dumps_;
};

}  // namespace

FlightDumps flight_dumps(Recordings recordings) {
  if (recordings.empty()) return {};
  return DumpBuilder(recordings).take();
}

}  // namespace tutti::tool
