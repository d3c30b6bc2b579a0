// Parameters: the costs of a machine's components, which the simulator and the tuner use to predict the time of a
// plan. A value. It is measured by `tutti tune`, read from a file, or filled with documented defaults.
// docs/decisions/0016-cost-model.md explains the recurrences that use it.
//
// Times are in microseconds, and bandwidths in 10^9 bytes of payload per second, both as doubles.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// The slowest component on the route of a message.
enum class Level : std::uint8_t {
  kMemory,  // memory of one machine, bytes moved by CPU cores
  kNvLink,  // NVLink, xGMI, chip to chip: bytes moved by the GPU's kernel
  kPcie,    // PCIe between GPUs of a machine
  kNic,     // the network, within one leaf switch
  kSpine,   // the network, across spine switches
};
inline constexpr std::size_t kLevels = 5;

// How a connection transports a value.
enum class Protocol : std::uint8_t {
  kSimple,  // slots and counters, for long messages
  kLl,      // a flag next to every 4 bytes; on the host, the payload is in the cache line of the flag
  kLl128,   // 120 bytes and a flag
  kWindow,  // directly in the peer's memory; data that does not change is not copied
};
inline constexpr std::size_t kProtocols = 4;

// The cost of one message on one level with one protocol. These are the four parameters of LogGP, with o and g of
// the sender (Alexandrov et al. 1995).
struct MessageCost {
  double post_us = 0;     // time of the sender's channel per message, without its bytes
  double latency_us = 0;  // from the end of the sender's work until the receiver sees it
  double gap_us = 0;      // time of the sender's port per message, without its bytes
  // Of one rank, all of its channels together. 0: this level does not support this protocol.
  double gbytes_per_s = 0;
  // Of one channel. k channels have min(k * this, gbytes_per_s). 0: no such limit.
  double channel_gbytes_per_s = 0;

  bool operator==(const MessageCost&) const = default;
};

// One of the measured times from which the parameters were computed. It is kept for people, and to see how noisy
// the machine was.
struct Measurement {
  std::string what{};  // for example "memory.one_way" or "reduce", see model/fit.h
  std::uint64_t bytes = 0;
  double median_us = 0;
  double p95_us = 0;

  bool operator==(const Measurement&) const = default;
};

struct Parameters {
  std::string name{};      // name of the machine or of the system
  std::string source{};    // for people: who measured it and how, or "defaults"
  std::string hardware{};  // hash of the hardware, hexadecimal; empty: not of a specific machine

  std::array<std::array<MessageCost, kProtocols>, kLevels> costs{};  // [level][protocol]

  double launch_us = 0;  // time per call: arguments, a kernel's launch, the last wait
  double step_us = 0;    // time per step
  // Speed at which one rank adds: bytes of each operand after the first. 0: adding takes no time.
  double reduce_gbytes_per_s = 0;
  // Speed at which one rank copies between its own buffers. 0: copying takes no time.
  double copy_gbytes_per_s = 0;
  // Another process's memory that is not mapped, copied by a system call such as process_vm_readv. 0: not
  // possible.
  double attach_us = 0;
  double attach_gbytes_per_s = 0;
  // Reductions in the switch (NVLS): inside a machine, an all-reduce, a reduce-scatter or an all-gather takes the
  // latency, and one pass over the bytes at this bandwidth. 0: the machine has no such switch.
  double switch_gbytes_per_s = 0;
  double switch_latency_us = 0;

  std::uint32_t cores = 0;  // ranks of one machine that can run at the same time; 0: all
  // time to switch a core from one rank to another, if there are more ranks than cores
  double handover_us = 0;
  std::uint64_t slot_bytes = 512 * 1024;  // longest message of a connection; it determines the tiles of a call
  std::uint32_t slots = 4;                // messages that a connection holds
  std::uint32_t channels = 1;             // number of copies of a plan that divide a long call
  std::vector<Measurement> measured{};    // at most kMostMeasurements

  const MessageCost& cost(Level level, Protocol protocol) const {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  MessageCost& cost(Level level, Protocol protocol) {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  bool operator==(const Parameters&) const = default;
};

// True if the sender's channel moves the bytes itself and is busy meanwhile. False if an engine (a NIC) moves
// them.
constexpr bool moved_by_channel(Level level) { return level < Level::kNic; }

// Parameters as a file: JSON with units in its field names (docs/parameters-json.md). Errors: kInvalidArgument
// with the line or the field, and the allowed values; kSystem if the file cannot be read or written.
inline constexpr std::size_t kMostParameterBytes = 256 * 1024;  // length of a file
inline constexpr std::size_t kMostMeasurements = 1024;
Result<Parameters> parse_parameters(std::string_view json);
Result<Parameters> load_parameters(const std::string& path);
std::string to_json(const Parameters& parameters);  // ends with a newline; parse_parameters() returns an equal value

// Documented defaults; the .cc file gives the source of each number. The first function is for a machine without
// GPUs with this number of cores, the second one for GPUs of this compute capability (80, 90, 100). The network is
// RDMA with 8 x 400 Gbit/s.
Parameters default_host_parameters(std::uint32_t cores);
Parameters default_gpu_parameters(std::int32_t capability);

std::string_view to_string(Level level);        // "memory", "nvlink", "pcie", "nic", "spine"
std::string_view to_string(Protocol protocol);  // "simple", "ll", "ll128", "window"

}  // namespace tutti
