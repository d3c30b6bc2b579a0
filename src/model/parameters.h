// Parameters: the costs of a machine's components, from which the simulator and the tuner predict the time of a
// plan. A value. `tutti tune` measures it, a file stores it, and the functions default_...() fill it with
// documented defaults. docs/decisions/0016-cost-model.md explains the recurrences that use it.
//
// Times are doubles in microseconds. Bandwidths are doubles in GB/s: 10^9 bytes of payload per second.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/machine_choices.h"
#include "tutti/result.h"

namespace tutti {

// The slowest component on the route of a message from one rank to another.
enum class Level : std::uint8_t {
  // memory of one machine; CPU cores move the bytes
  kMemory,
  // NVLink, xGMI or a chip-to-chip link; the kernel on the GPU moves the bytes
  kNvLink,
  // PCIe between GPUs of one machine; the kernel on the GPU moves the bytes
  kPcie,
  // the network between machines, within one leaf switch; a NIC moves the bytes
  kNic,
  // the network between machines, across a spine switch; a NIC moves the bytes
  kSpine,
};
inline constexpr std::size_t kLevels = 5;

// How a connection transports a value. The names are those of NCCL, except kWindow.
enum class Protocol : std::uint8_t {
  // through slots, with counters from which the receiver sees which slots are full; for long messages
  kSimple,
  // On a GPU: a flag next to every 4 bytes. On the host: a mailbox, in which a short payload is in the cache line of
  // the flag.
  kLl,
  // 120 bytes of payload and a flag of 8 bytes in each 128 bytes
  kLl128,
  // through registered memory: one rank reads or writes the other rank's buffer directly, without a slot
  kWindow,
};
inline constexpr std::size_t kProtocols = 4;

// The cost of one message on one level with one protocol. The first four fields are the parameters of the LogGP
// model (Alexandrov et al. 1995): the overhead o (of the sender only), the latency L, the gap g, and 1/G, the
// bandwidth of long messages.
struct MessageCost {
  // time of the sender's channel for one message, without the time for its bytes
  double post_us = 0;
  // From the end of the sender's step until the receiver sees the message. If a NIC moves the bytes, the wait for the
  // NIC and the time for the bytes come in addition.
  double latency_us = 0;
  // time of the sender's port (NIC) for one message, without the time for its bytes; only used on kNic and kSpine
  double gap_us = 0;
  // The bandwidth of one rank, all of its channels together. 0: this protocol is not available on this level.
  double gbytes_per_s = 0;
  // The bandwidth of one channel: k channels together have min(k * channel_gbytes_per_s, gbytes_per_s). 0: one
  // channel alone can use the whole bandwidth.
  double channel_gbytes_per_s = 0;

  bool operator==(const MessageCost&) const = default;
};

// One of the measured times from which `tutti tune` computed the parameters. It is stored so that people can check the
// parameters, and can see how noisy the machine was (noise_of() in model/fit.h). Predictions do not use it.
struct Measurement {
  // name of the measurement, for example "memory.one_way" or "reduce"; model/fit.h lists the names
  std::string what{};
  std::uint64_t bytes = 0;
  double median_us = 0;
  double p95_us = 0;

  bool operator==(const Measurement&) const = default;
};

struct Parameters {
  std::string name{};  // for people, for example "8 cores" or "gpu sm_90"
  // a text for people: who measured the parameters and how, or "defaults"
  std::string source{};
  // hardware_hash() of the measured machine (model/calibration.h); empty if the parameters are not of one specific
  // machine, and in the Tuning of a job, which is sent without it
  std::string hardware{};

  // indexed by level, then by protocol
  std::array<std::array<MessageCost, kProtocols>, kLevels> costs{};

  // time per call: checking the arguments, launching a kernel (on GPUs), and waiting for the end
  double launch_us = 0;
  // time per step of a plan, without its messages and its additions
  double step_us = 0;
  // Speed at which one rank adds: the time of an addition of n operands is the bytes of n - 1 operands divided by
  // this. 0: adding takes no time.
  double reduce_gbytes_per_s = 0;
  // Speed at which one rank copies between its own buffers. 0: copying takes no time.
  double copy_gbytes_per_s = 0;
  // Cross-memory attach: a rank copies to or from another process's memory by a system call such as
  // process_vm_readv. This is the time per system call without the bytes.
  double attach_us = 0;
  // The bandwidth of cross-memory attach. 0: the ranks cannot do this.
  double attach_gbytes_per_s = 0;
  // All-reduce by the switch of a machine (NVLink SHARP, called NVLS in NCCL), see model/in_switch.h: the bytes of the
  // call divided by this are the time inside the machine, without the latency. 0: the machine has no such switch.
  double switch_gbytes_per_s = 0;
  // the latency of such an all-reduce
  double switch_latency_us = 0;

  // how many ranks of one machine can run at the same time; 0: all of them
  std::uint32_t cores = 0;
  // time to switch a core from one rank to another; only used if a machine has more ranks than cores
  double handover_us = 0;
  // longest message of a connection, in bytes; a call with longer chunks is divided into tiles
  std::uint64_t slot_bytes = 512 * 1024;
  // number of messages that a connection can hold
  std::uint32_t slots = 4;
  // number of copies of a plan among which a call is divided; they run in parallel
  std::uint32_t channels = 1;
  // The sizes at which calls inside this machine change from one way to another, measured with some numbers of ranks
  // (at most kMostRankChoices). Empty: not measured. Predictions do not use them.
  std::vector<RankChoices> choices{};
  // at most kMostMeasurements; may be empty
  std::vector<Measurement> measured{};

  const MessageCost& cost(Level level, Protocol protocol) const {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  MessageCost& cost(Level level, Protocol protocol) {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  bool operator==(const Parameters&) const = default;
};

// Whether the parameters have any cost of messages. Those of a file that contains only choices have none.
bool has_costs(const Parameters& parameters);

// True if the sender's channel moves the bytes of messages on this level itself, and is busy meanwhile. False if a
// NIC moves them.
constexpr bool moved_by_channel(Level level) { return level < Level::kNic; }

// version of the JSON format: the value of "tutti_parameters"
inline constexpr double kParametersFormat = 1;
// limit on the length of a file of parameters, in bytes
inline constexpr std::size_t kMostParameterBytes = 256 * 1024;
// limits on the number of elements of Parameters::measured and Parameters::choices
inline constexpr std::size_t kMostMeasurements = 1024;
inline constexpr std::size_t kMostRankChoices = 4;
// Read Parameters from JSON: from a text, or from a file. The names of the fields contain the units
// (docs/parameters-json.md). Optional fields that are absent keep the values of a default-constructed Parameters.
// Errors: kInvalidArgument, usually with the line and column, or with the field; load_parameters() also kSystem if the
// file cannot be read or is not a regular file.
Result<Parameters> parse_parameters(std::string_view json);
Result<Parameters> load_parameters(const std::string& path);
// Writes Parameters as JSON. The text ends with a newline. parse_parameters() of the text returns an equal value, if
// all values are in the ranges that it accepts.
std::string to_json(const Parameters& parameters);

// Documented defaults for a machine without GPUs, with this number of cores (0: not limited). Its network is TCP at
// about 25 Gbit/s. parameters.cc gives the source of most numbers.
Parameters default_host_parameters(std::uint32_t cores);
// Documented defaults for a machine with GPUs of this compute capability (90 is sm_90), which must be greater than 0:
// below 90 the values are those of an A100, from 90 on those of an H100, from 100 on those of a B200. Its network is
// RDMA with 8 NICs of 400 Gbit/s.
Parameters default_gpu_parameters(std::int32_t capability);

std::string_view to_string(Level level);        // "memory", "nvlink", "pcie", "nic", "spine"
std::string_view to_string(Protocol protocol);  // "simple", "ll", "ll128", "window"

}  // namespace tutti
