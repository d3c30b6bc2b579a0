// What a machine's parts cost: the parameters that the simulator and the tuner run a plan with. A value; measured by
// `tutti tune`, read from a file, or the stated defaults. docs/decisions/0016-cost-model.md tells the recurrences that
// use them.
//
// Times in microseconds, bandwidths in 10^9 bytes of payload per second, both as doubles.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti {

// The slowest thing that a message passes.
enum class Level : std::uint8_t {
  kMemory,  // memory of one machine, moved by CPU cores
  kNvLink,  // NVLink, xGMI, chip to chip: moved by the GPU's kernel
  kPcie,    // PCIe between GPUs of a machine
  kNic,     // the network, within one leaf switch
  kSpine,   // the network, across spine switches
};
inline constexpr std::size_t kLevels = 5;

// How a connection carries a value.
enum class Protocol : std::uint8_t {
  kSimple,  // slots and counters: bulk
  kLl,      // the flag beside every 4 bytes; on the host, the payload inside the flag's line
  kLl128,   // 120 bytes and a flag
  kWindow,  // the peer's memory in place: nothing is copied that is not changed
};
inline constexpr std::size_t kProtocols = 4;

// One message over one level by one protocol. LogGP's four, with o and g of the sender (Alexandrov et al. 1995).
struct MessageCost {
  double post_us = 0;               // the sender's channel is busy for each message, beside the bytes
  double latency_us = 0;            // from the end of the sender's work to the receiver's sight of it
  double gap_us = 0;                // the sender's port is busy for each message, beside the bytes
  double gbytes_per_s = 0;          // of one rank, all its channels together; 0: this level does not have this protocol
  double channel_gbytes_per_s = 0;  // of one channel: k channels have min(k * this, gbytes_per_s); 0: no such bound

  bool operator==(const MessageCost&) const = default;
};

// One of the times that the numbers were made of: for people, and to tell a steady machine from a noisy one.
struct Measurement {
  std::string what{};  // "memory.simple one way", "reduce", ...
  std::uint64_t bytes = 0;
  double median_us = 0;
  double p95_us = 0;

  bool operator==(const Measurement&) const = default;
};

struct Parameters {
  std::string name{};      // of the machine or of the system
  std::string source{};    // for people: who measured it, how; "defaults"
  std::string hardware{};  // hash of the hardware, hexadecimal; empty: of no machine

  std::array<std::array<MessageCost, kProtocols>, kLevels> costs{};  // [level][protocol]

  double launch_us = 0;            // of every call: arguments, a kernel's launch, the last wait
  double step_us = 0;              // of every step
  double reduce_gbytes_per_s = 0;  // one rank adding: bytes of each operand after the first; 0: costs nothing
  double copy_gbytes_per_s = 0;    // one rank copying between buffers of its own; 0: costs nothing
  // Another process's memory that is not mapped, copied by a system call: process_vm_readv and the like. 0: cannot be.
  double attach_us = 0;
  double attach_gbytes_per_s = 0;
  // Reductions inside the switch (NVLS): an all-reduce, a reduce-scatter or an all-gather inside a machine costs
  // latency and one pass at this bandwidth. 0: none.
  double switch_gbytes_per_s = 0;
  double switch_latency_us = 0;

  std::uint32_t cores = 0;                // ranks of one machine that run at the same time; 0: all
  double handover_us = 0;                 // of a core from one rank to another, where ranks outnumber cores
  std::uint64_t slot_bytes = 512 * 1024;  // the longest message of a connection: what cuts a call into tiles
  std::uint32_t slots = 4;                // messages that a connection holds
  std::uint32_t channels = 1;             // how many copies of a plan share out a long call
  std::vector<Measurement> measured{};    // at most kMostMeasurements

  const MessageCost& cost(Level level, Protocol protocol) const {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  MessageCost& cost(Level level, Protocol protocol) {
    return costs[static_cast<std::size_t>(level)][static_cast<std::size_t>(protocol)];
  }
  bool operator==(const Parameters&) const = default;
};

// True where the sender's channel moves the bytes itself and is busy meanwhile; false where an engine does (a NIC).
constexpr bool moved_by_channel(Level level) { return level < Level::kNic; }

// A file: JSON with units in its names (docs/parameters-json.md). Errors: kInvalidArgument with the line or the field
// and what it may hold; kSystem where the file can not be read or written.
inline constexpr std::size_t kMostParameterBytes = 256 * 1024;  // of a file
inline constexpr std::size_t kMostMeasurements = 1024;
Result<Parameters> parse_parameters(std::string_view json);
Result<Parameters> load_parameters(const std::string& path);
std::string to_json(const Parameters& parameters);  // ends with a newline; parse_parameters() gives an equal value

// Stated defaults, where each number's source stands: of a machine of this many cores without GPUs, and of the shapes
// with GPUs by the capability of these (80, 90, 100). The network's are those of RDMA at 8 x 400 Gbit/s.
Parameters default_host_parameters(std::uint32_t cores);
Parameters default_gpu_parameters(std::int32_t capability);

std::string_view to_string(Level level);        // "memory", "nvlink", "pcie", "nic", "spine"
std::string_view to_string(Protocol protocol);  // "simple", "ll", "ll128", "window"

}  // namespace tutti
