// Config: what the environment says, read once per communicator into one typed struct. This is the only place that
// knows the names of TUTTI_* variables; docs/config.md is their list for people, and a test compares the two.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tutti/result.h"

namespace tutti {

// Ports that Tutti may listen on, first and last included. 0: any free one.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  bool any() const { return first == 0; }
  std::uint32_t count() const { return std::uint32_t{last} - first + 1; }
  bool operator==(const PortRange&) const = default;
};

// How ranks may reach each other: what serves best, shared memory alone, or TCP, verbs or UCX even within a machine.
enum class TransportPolicy : std::uint8_t { kAuto, kShm, kTcp, kVerbs, kUcx };

// The table of transports, by the numbers of TransportPolicy. Everything that lists transports reads it.
struct TransportRow {
  std::string_view name;  // as in TUTTI_TRANSPORT and --transport
  bool network;           // reaches other machines, and is then used within a machine too
  bool encrypts;          // TUTTI_ENCRYPT=1 is possible
};
inline constexpr std::array kTransportTable = {
    TransportRow{"auto", false, true},  // shared memory within a machine, the best of the others between machines
    TransportRow{"shm", false, true},   // nothing leaves the machine
    TransportRow{"tcp", true, true},   TransportRow{"verbs", true, false}, TransportRow{"ucx", true, false},
};
inline constexpr auto kTransportNames = [] {
  std::array<std::string_view, kTransportTable.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kTransportTable[i].name;
  return names;
}();
constexpr const TransportRow& row_of(TransportPolicy policy) {
  return kTransportTable[static_cast<std::size_t>(policy)];
}

// Where TUTTI_SLOT_BYTES is not set; and where, then, ranks reach each other by RDMA cards alone.
inline constexpr std::uint32_t kSlotBytes = 128 * 1024;
inline constexpr std::uint32_t kSlotBytesOfCards = 512 * 1024;

// True if ranks of one machine reach each other by the transport that reaches other machines.
inline bool network_only(TransportPolicy policy) { return row_of(policy).network; }

// Whether ranks use each other's memory that is not registered: never; always by system calls; or, within a process,
// by pointers.
enum class AttachPolicy : std::uint8_t { kOff, kCalls, kAuto };
std::optional<AttachPolicy> parse_attach(std::string_view name);
std::optional<TransportPolicy> parse_transport(std::string_view name);

// Who carries out calls on device memory: the devices where they can, or always the host.
enum class DevicePolicy : std::uint8_t { kAuto, kStaged };
std::optional<DevicePolicy> parse_device_calls(std::string_view name);

// How messages between devices are written; kAuto: by their length.
enum class DeviceProtocol : std::uint8_t { kAuto, kSimple, kLl, kLl128 };

struct Config {
  std::optional<std::int32_t> rank;                    // TUTTI_RANK
  std::optional<std::int32_t> size;                    // TUTTI_WORLD_SIZE
  std::optional<std::int32_t> local_rank;              // TUTTI_LOCAL_RANK
  std::optional<std::int32_t> local_size;              // TUTTI_LOCAL_SIZE
  std::string root;                                    // TUTTI_ROOT, "host:port"
  std::optional<std::int32_t> root_fd;                 // TUTTI_ROOT_FD, rank 0's inherited bound socket
  std::optional<std::int32_t> elastic_fd;              // TUTTI_ELASTIC_FD, the launcher's inherited socket
  std::string job_id;                                  // TUTTI_JOB_ID
  std::string job_key_file;                            // TUTTI_JOB_KEY_FILE, whose bytes are the job's key
  std::string job_key;                                 // TUTTI_JOB_KEY, hexadecimal; never shown
  std::string unique_id;                               // TUTTI_UNIQUE_ID, tutti::UniqueId in hexadecimal; never shown
  std::string interface;                               // TUTTI_INTERFACE, names, subnets, addresses, by preference
  PortRange port_range;                                // TUTTI_PORT_RANGE, "first-last", of every listening socket
  TransportPolicy transport = TransportPolicy::kAuto;  // TUTTI_TRANSPORT, auto|shm|tcp|verbs|ucx
  bool encrypt = false;                                // TUTTI_ENCRYPT, 0 or 1: TLS between ranks reached by TCP
  AttachPolicy attach = AttachPolicy::kAuto;           // TUTTI_ATTACH, auto|calls|off
  std::string rdma_devices;                            // TUTTI_RDMA_DEVICES, "mlx5_0:1,ib*"; empty: all
  std::optional<std::int32_t> rdma_gid_index;          // TUTTI_RDMA_GID_INDEX, 0 .. 255; none: by rule
  std::uint32_t rdma_queue_pairs = 1;                  // TUTTI_RDMA_QUEUE_PAIRS per connection and port, 1 .. 8
  std::uint32_t rdma_timeout = 17;                     // TUTTI_RDMA_TIMEOUT, 4.096 us * 2^n; 1 .. 31
  std::uint32_t rdma_retries = 6;                      // TUTTI_RDMA_RETRIES, 0 .. 7
  std::uint32_t rdma_traffic_class = 0;                // TUTTI_RDMA_TRAFFIC_CLASS, 0 .. 255
  std::uint32_t rdma_service_level = 0;                // TUTTI_RDMA_SERVICE_LEVEL, 0 .. 15
  std::uint32_t rdma_cache_mib = 1024;                 // TUTTI_RDMA_CACHE_MIB of registered memory, 0 .. 2^20
  bool rdma_write_outputs = true;                      // TUTTI_RDMA_WRITE_OUTPUTS, 0 or 1: peers' cards do
  std::string node_id;                                 // TUTTI_NODE_ID: ranks share memory only with the same
  bool uniform = false;                                // TUTTI_UNIFORM, 0 or 1: calls end alike on all ranks
  bool checksum = false;                               // TUTTI_CHECKSUM, 0 or 1: every message carries one
  std::chrono::milliseconds setup_timeout{60'000};     // TUTTI_SETUP_TIMEOUT_MS, 1 .. 86,400,000
  std::chrono::milliseconds timeout{60'000};           // TUTTI_TIMEOUT_MS, 1 .. 86,400,000
  std::optional<std::int32_t> slot_bytes;              // TUTTI_SLOT_BYTES, 4096 .. 16 MiB, a multiple of 4096
  std::uint32_t slots = 4;                             // TUTTI_SLOTS per connection, 2 .. 64
  DevicePolicy device_calls = DevicePolicy::kAuto;     // TUTTI_DEVICE_CALLS, auto|staged
  std::uint32_t device_blocks = 16;                    // TUTTI_DEVICE_BLOCKS of a rank's call at most, 1 .. 64
  std::uint32_t device_threads = 512;                  // TUTTI_DEVICE_THREADS of a block, 32 .. 512, of 32
  std::uint32_t device_slot_bytes = 128 * 1024;        // TUTTI_DEVICE_SLOT_BYTES, 4096 .. 16 MiB, of 4096
  DeviceProtocol device_protocol = DeviceProtocol::kAuto;  // TUTTI_DEVICE_PROTOCOL, auto|simple|ll|ll128
  std::uint32_t device_copies = 0;       // TUTTI_DEVICE_COPIES: blocks of so many bytes go by copies, .. 1 GiB; 0: none
  std::string tune;                      // TUTTI_TUNE, algorithms by rules of the user's: src/model/overrides.h
  std::string tune_file;                 // TUTTI_TUNE_FILE, measured costs; empty: where `tutti tune` leaves them
  bool verify_plans = true;              // TUTTI_VERIFY_PLANS, 0 or 1: prove each plan before its first use
  LogLevel log_level = LogLevel::kWarn;  // TUTTI_LOG, off|error|warn|info|debug
  std::uint32_t record = 1024;           // TUTTI_RECORD, operations remembered: 0 (none), 16 .. 65536, a power of two
  std::string record_dir;                // TUTTI_RECORD_DIR, a folder; empty: by rule, base/recording.h
  // TUTTI_NCCL_VERSION, "2.28.9" or 22809: what ncclGetVersion() says. Read by src/nccl alone.
  std::int32_t nccl_version = 23007;

  std::uint32_t slot_bytes_or(std::uint32_t otherwise) const {
    return slot_bytes ? static_cast<std::uint32_t>(*slot_bytes) : otherwise;
  }
};

// All variables of this process: what launchers other than `tutti run` say stands beside the TUTTI_* ones.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;
EnvironmentVariables process_environment();

using Variables = std::vector<std::pair<std::string, std::string>>;

// The TUTTI_* variables of this process.
Variables environment_variables();

// `own`, and of `defaults` those whose names it lacks.
Variables with_defaults(Variables own, const Variables& defaults);

// Errors (kConfig): an unknown TUTTI_* name (the nearest known one is suggested), a value out of range.
Result<Config> parse_config(const Variables& variables);

// Every known variable name, sorted.
std::vector<std::string_view> config_variable_names();

// What a Config says for one variable, as parse_config() would read it back; nothing of those that are secret.
struct ConfigValue {
  std::string_view name;               // of config_variable_names()
  std::string text;                    // empty: not set, and nothing stands for it
  std::optional<std::int64_t> number;  // of those that are numbers
};

// Of every variable, in the order of config_variable_names().
std::vector<ConfigValue> config_values(const Config& config);

// The candidate with the smallest edit distance to `name`; empty if none is near (more than a third of it would
// change).
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace tutti
