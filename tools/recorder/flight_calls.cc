#include "tools/recorder/flight_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/collective_table.h"
#include "base/printable.h"
#include "plan/collective.h"
#include "tutti/types.h"

namespace tutti::tool {
namespace {

constexpr auto kMostNumber = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// Multiplies numbers of a file, which may be damaged.
std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) || result > kMostNumber ? kMostNumber : result;
}

// The names of PyTorch's element types. A UserReduction has elements of any type.
std::string_view type_name(std::uint8_t type) {
  if (type == kUserTag) return "Undefined";
  switch (DataType{type}) {
    case DataType::kInt8: return "Char";
    case DataType::kUint8: return "Byte";
    case DataType::kInt32: return "Int";
    case DataType::kUint32: return "UInt32";
    case DataType::kInt64: return "Long";
    case DataType::kUint64: return "UInt64";
    case DataType::kFloat16: return "Half";
    case DataType::kFloat32: return "Float";
    case DataType::kFloat64: return "Double";
    case DataType::kBfloat16: return "BFloat16";
    case DataType::kFloat8E4M3: return "Float8_e4m3fn";
    case DataType::kFloat8E5M2: return "Float8_e5m2";
  }
  return "Undefined";
}

// True if the blocks have different lengths. The tag then has the sum of their counts.
bool is_variable(const CallTag& tag) {
  return row_of(CollectiveKind{tag.kind}).variable == VariableForm::kPlan && tag.digest != 0 && tag.type != kUserTag &&
         !uses_callers_plan(tag) && purpose_of(tag) == CallPurpose::kApplication;
}

// The names that PyTorch's group for NCCL gives to such calls. The analyser accepts only the names of backends that it
// knows, and Tutti's is not one of them. A call that PyTorch makes of one buffer instead of a list of buffers has the
// name "_all_gather_base" or "_reduce_scatter_base", and a barrier has that of the all_reduce of which it consists.
std::string_view collective_name(const CallTag& tag) {
  switch (CollectiveKind{tag.kind}) {
    case CollectiveKind::kAllReduce: return "nccl:all_reduce";
    case CollectiveKind::kBroadcast: return "nccl:broadcast";
    case CollectiveKind::kReduce: return "nccl:reduce";
    case CollectiveKind::kAllGather: return is_variable(tag) ? "nccl:all_gather_v" : "nccl:_all_gather_base";
    case CollectiveKind::kReduceScatter:
      return is_variable(tag) ? "nccl:reduce_scatter_v" : "nccl:_reduce_scatter_base";
    case CollectiveKind::kAllToAll: return "nccl:all_to_all";
    case CollectiveKind::kGather: return "nccl:gather";
    case CollectiveKind::kScatter: return "nccl:scatter";
    case CollectiveKind::kBarrier: return "nccl:all_reduce_barrier";
    case CollectiveKind::kSendReceive: break;
  }
  return "nccl:coalesced";  // not possible for a collective; the analyser accepts it
}

// Sets the numbers of elements of the input and the output. PyTorch's broadcast and reduce have both on every rank.
void set_sizes(FlightCall& entry, const CallTag& tag, const Recording& one) {
  const CollectiveKind kind{tag.kind};
  const CollectiveRow& row = row_of(kind);
  const std::uint64_t count = row.has_data ? std::min(tag.count, kMostNumber) : 0;
  entry.input = entry.output = count;
  if (is_variable(tag)) {
    // Only the length of all blocks is recorded, and not the length of this rank's block.
    (row.input == BlockSet::kAll ? entry.output : entry.input).reset();
  } else if (has_blocks(kind)) {
    const Collective collective{.kind = kind, .ranks = one.ranks, .root = tag.root};
    entry.input = product(count, input_blocks(collective, one.rank).count);
    entry.output = product(count, output_blocks(collective, one.rank).count);
  }
}

// The length in bytes of a call. A long call may be cut into segments (src/engine/segments.h), and then each
// segment has a record, which is given the length of the long call. 0: not known.
std::uint64_t whole_bytes(const RecordedCall& call, const Recording& one) {
  const CollectiveKind kind{call.tag.kind};
  if (!row_of(kind).has_data || call.tag.type == kUserTag) return 0;
  const std::uint64_t block = product(call.tag.count, size_of(DataType{call.tag.type}));
  if (is_variable(call.tag)) return block;
  const Collective collective{.kind = kind, .ranks = one.ranks, .root = call.tag.root};
  return product(block, std::max(input_blocks(collective, one.rank).count, output_blocks(collective, one.rank).count));
}

FlightState state_of(const RecordedCall& call) {
  switch (call.outcome.state) {
    case recording::State::kDone: return FlightState::kCompleted;
    case recording::State::kRunning: return FlightState::kStarted;
    case recording::State::kFailed:
      return (call.outcome.flags & recording::kNotStarted) != 0 ? FlightState::kScheduled : FlightState::kStarted;
    case recording::State::kEmpty:
    case recording::State::kEnqueued: break;
  }
  return FlightState::kScheduled;
}

// The error of a failed call. The text is recorded only for the first and the last error.
std::string error_text(const RecordedCall& call, const Recording& one) {
  const auto code = static_cast<ErrorCode>(call.outcome.code);
  std::string text = fmt::format("failed: {}", to_string(code));
  if (call.outcome.culprit >= 0) text += fmt::format(", caused by rank {} of the communicator", call.outcome.culprit);
  for (const auto& failure : {one.first_failure, one.last_failure}) {
    if (!failure || failure->code != code || failure->sequence != (call.collective() ? call.tag.sequence : 0)) continue;
    return text + ": " + failure->text;
  }
  return text;
}

FlightCall entry_of(const RecordedCall& call, const Recording& one) {
  FlightCall entry;
  entry.sequence = call.tag.sequence;
  entry.type = type_name(call.tag.type);
  entry.state = state_of(call);
  entry.failed = call.failed();
  entry.start_ns = call.start_ns;
  entry.is_measured = call.end_ns.has_value();
  if (entry.state == FlightState::kCompleted) entry.end_ns = call.end_ns.value_or(call.start_ns);
  const std::string file = printable(one.path);
  entry.frames.push_back({.name = describe(call), .file = file, .line = call.number});
  if (call.failed()) entry.frames.push_back({.name = error_text(call, one), .file = file, .line = call.number});
  return entry;
}

FlightCall collective_of(const RecordedCall& call, const Recording& one) {
  FlightCall entry = entry_of(call, one);
  entry.name = collective_name(call.tag);
  set_sizes(entry, call.tag, one);
  entry.length = call.bytes;
  entry.is_segmented = call.bytes != 0 && call.bytes < whole_bytes(call, one);
  return entry;
}

// Adds the record of a later segment to the entry of the segments before it.
void add_segment(FlightCall& entry, FlightCall segment) {
  entry.length += std::min(segment.length, kMostNumber - std::min(entry.length, kMostNumber));
  if (segment.state != entry.state) entry.state = FlightState::kStarted;
  entry.failed |= segment.failed;
  entry.is_measured &= segment.is_measured;
  entry.end_ns = entry.state == FlightState::kCompleted ? segment.end_ns : std::nullopt;
  if (segment.frames.size() > 1) entry.frames.push_back(std::move(segment.frames.back()));
}

void write_sizes(PickleWriter& dump, std::string_view key, const std::optional<std::uint64_t>& elements) {
  dump.text(key);
  dump.open_list();
  dump.open_list();
  if (elements) dump.integer(static_cast<std::int64_t>(*elements));
  dump.close_list();
  dump.close_list();
}

void write_types(PickleWriter& dump, std::string_view key, std::string_view type) {
  dump.text(key);
  dump.open_list();
  dump.text(type);
  dump.close_list();
}

void write_time(PickleWriter& dump, std::string_view key, const std::optional<std::int64_t>& ns) {
  dump.text(key);
  if (ns) dump.integer(*ns);
  if (!ns) dump.none();
}

void write_frames(PickleWriter& dump, const std::vector<FlightFrame>& frames) {
  dump.text("frames");
  dump.open_list();
  for (const FlightFrame& frame : frames) {
    dump.open_dict();
    dump.text("name");
    dump.text(frame.name);
    dump.text("filename");
    dump.text(frame.file);
    dump.text("line");
    dump.integer(static_cast<std::int64_t>(frame.line));
    dump.close_dict();
  }
  dump.close_list();
}

}  // namespace

std::map<std::uint64_t, FlightCall> host_collectives(const Recording& one) {
  std::map<std::uint64_t, FlightCall> entries;
  for (const RecordedCall& call : one.calls) {
    if (!call.collective()) continue;
    FlightCall entry = collective_of(call, one);
    const auto known = entries.find(call.tag.sequence);
    if (known == entries.end()) {
      entries.emplace(call.tag.sequence, std::move(entry));
    } else {
      add_segment(known->second, std::move(entry));
    }
  }
  // Further segments of the last call may not have begun.
  if (entries.empty()) return entries;
  FlightCall& last = entries.rbegin()->second;
  const RecordedCall* call = one.find(entries.rbegin()->first);
  if (last.is_segmented && last.state == FlightState::kCompleted && last.length < whole_bytes(*call, one)) {
    last.state = FlightState::kStarted;
    last.end_ns.reset();
  }
  return entries;
}

// Whether exchanges on GPUs may be among the overwritten records: sends and receives, or the v-variants that consist of
// them. The totals count such a v-variant like the collective of the same kind, so these kinds are certain only if all
// of their calls are still recorded.
bool may_have_lost_exchanges(const Recording& one) {
  constexpr std::array kMayBeExchanges = {CollectiveKind::kSendReceive, CollectiveKind::kAllToAll,
                                          CollectiveKind::kGather, CollectiveKind::kScatter};
  return std::ranges::any_of(kMayBeExchanges, [&](CollectiveKind kind) {
    const auto recorded = std::ranges::count_if(one.device_calls, [&](const RecordedCall& call) {
      return call.tag.kind == static_cast<std::uint8_t>(kind) && call.tag.algorithm != 0;
    });
    const RecordedTotals::Kind& total = one.totals.kinds[static_cast<std::size_t>(kind)];
    return total.device_calls > static_cast<std::uint64_t>(recorded);
  });
}

std::vector<FlightCall> device_collectives(const Recording& one) {
  // Sends and receives have no algorithm. Neither have the v-variants that consist of them.
  const auto is_exchange = [](const RecordedCall& call) { return call.tag.algorithm == 0; };
  std::vector<FlightCall> entries;
  if (one.device_calls.empty()) return entries;
  const std::uint64_t overwritten = one.device_calls.front().number - 1;
  if (overwritten > 0 && (std::ranges::any_of(one.device_calls, is_exchange) || may_have_lost_exchanges(one))) {
    return entries;
  }
  for (const RecordedCall& call : one.device_calls) {
    if (is_exchange(call)) continue;
    entries.push_back(collective_of(call, one));
    entries.back().sequence = overwritten + entries.size();
  }
  return entries;
}

// Each rank knows only the lengths of its own blocks, so the numbers of elements cannot be compared, and are left out.
std::map<std::uint64_t, FlightCall> variable_collectives(const Recording& one) {
  std::map<std::uint64_t, FlightCall> entries;
  for (const RecordedCall& call : one.calls) {
    if (call.variable_call == 0) continue;
    FlightCall entry = entry_of(call, one);
    entry.name = collective_name(call.tag);
    entry.sequence = call.variable_call;
    entries.emplace(call.variable_call, std::move(entry));
  }
  return entries;
}

FlightCall flight_transfer(const RecordedCall& call, const Recording& one, bool sends, bool reversed) {
  FlightCall entry = entry_of(call, one);
  const int sender = reversed ? 1 : 0;
  entry.name =
      sends ? fmt::format("nccl:send {}->{}", sender, 1 - sender) : fmt::format("nccl:recv {}<-{}", 1 - sender, sender);
  entry.is_transfer = true;
  entry.input = entry.output = std::min(call.tag.count, kMostNumber);
  return entry;
}

void write_flight_call(PickleWriter& dump, const FlightCall& call, const FlightPlace& place) {
  const auto sequence = static_cast<std::int64_t>(std::min(call.sequence, kMostNumber));
  dump.open_dict();
  dump.text("record_id");
  dump.integer(static_cast<std::int64_t>(place.record));
  dump.text("pg_id");
  dump.integer(static_cast<std::int64_t>(place.group));
  dump.text("process_group");
  dump.pair(place.name, place.description);
  dump.text("collective_seq_id");
  dump.integer(sequence);
  dump.text("p2p_seq_id");
  dump.integer(call.is_transfer ? sequence : 0);
  dump.text("op_id");
  dump.integer(sequence);
  dump.text("profiling_name");
  dump.text(call.name);
  dump.text("is_p2p");
  dump.boolean(call.is_transfer);
  write_sizes(dump, "input_sizes", call.input);
  write_types(dump, "input_dtypes", call.type);
  write_sizes(dump, "output_sizes", call.output);
  write_types(dump, "output_dtypes", call.type);
  static constexpr std::string_view kStates[] = {"scheduled", "started", "completed"};
  dump.text("state");
  dump.text(kStates[static_cast<std::size_t>(call.state)]);
  dump.text("time_created_ns");
  dump.integer(call.start_ns);
  const bool started = call.state != FlightState::kScheduled;
  write_time(dump, "time_discovered_started_ns", started ? std::optional(call.start_ns) : std::nullopt);
  write_time(dump, "time_discovered_completed_ns", call.end_ns);
  if (call.end_ns && call.is_measured) {
    dump.text("duration_ms");
    dump.real(static_cast<double>(*call.end_ns - call.start_ns) / 1e6);
  }
  dump.text("retired");
  dump.boolean(call.failed || call.state == FlightState::kCompleted);
  write_frames(dump, call.frames);
  dump.close_dict();
}

}  // namespace tutti::tool
