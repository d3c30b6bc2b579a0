// The entries of dumps of PyTorch's flight recorder (flight_dump.h), each of them made of one recorded call. All
// functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/recorder/pickle.h"
#include "tools/recorder/recording.h"

namespace tutti::tool {

enum class FlightState : std::uint8_t { kScheduled, kStarted, kCompleted };

// A line of an entry's stack trace. The recorder knows no stacks, so these lines have other information, which the
// analyser prints: the call as text, the recording that contains it, and the number of the call there.
struct FlightFrame {
  std::string name;
  std::string file;
  std::uint64_t line = 0;
};

struct FlightCall {
  std::string name;  // as PyTorch names the calls of NCCL, for example "nccl:all_reduce"
  std::uint64_t sequence = 0;
  bool is_transfer = false;   // a send or a receive
  bool is_segmented = false;  // made of the records of segments of a long call
  std::uint64_t length = 0;   // the sum of the recorded lengths in bytes; 0: no length was recorded
  // Numbers of elements. Empty: not recorded.
  std::optional<std::uint64_t> input{};
  std::optional<std::uint64_t> output{};
  std::string_view type;  // as PyTorch names it, for example "Float"
  FlightState state = FlightState::kScheduled;
  bool failed = false;
  std::int64_t start_ns = 0;
  std::optional<std::int64_t> end_ns{};
  bool is_measured = false;  // false: the call was so short that its end was not measured
  std::vector<FlightFrame> frames;
};

// The collectives that the host has carried out, by their numbers. The segments of a long call are one entry.
std::map<std::uint64_t, FlightCall> host_collectives(const Recording& one);

// The collectives that were enqueued on a GPU, with numbers that count only these, in their order. Empty if these
// numbers cannot be known, because records were overwritten and some of them may have been sends and receives.
std::vector<FlightCall> device_collectives(const Recording& one);

// The exchanges that contain an all_to_all_v, gather_v or scatter_v, as collectives, by RecordedCall::variable_call.
std::map<std::uint64_t, FlightCall> variable_collectives(const Recording& one);

// The transfer that the record of an exchange describes, as a call of a process group that consists of its two ranks.
// `sends`: the recording is that of the sender. `reversed`: the receiver is the first rank of this process group.
FlightCall flight_transfer(const RecordedCall& call, const Recording& one, bool sends, bool reversed);

// Where an entry stands: its index in the dump, and its process group.
struct FlightPlace {
  std::size_t record = 0;
  std::size_t group = 0;
  std::string_view name;
  std::string_view description;
};
void write_flight_call(PickleWriter& dump, const FlightCall& call, const FlightPlace& place);

}  // namespace tutti::tool
