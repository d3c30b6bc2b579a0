// Config: the settings from the environment variables in one typed struct. They are read for each unique id, and for
// each communicator that is not made from another one (for example by split()). The table in config.cc has the names of
// all TUTTI_* variables; the comments below repeat them. docs/config.md lists the same names for users, and a test
// compares the two lists. (TUTTI_TEST_* variables are ignored.)
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
#include "tutti/options.h"
#include "tutti/result.h"

namespace tutti {

// Ports that Tutti may listen on, first and last included. first == 0: any free port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  bool any() const { return first == 0; }
  std::uint32_t count() const { return std::uint32_t{last} - first + 1; }
  bool operator==(const PortRange&) const = default;
};

// How ranks may reach each other: the best transport for each pair (kAuto), only shared memory, or only TCP, verbs or
// UCX, also between ranks of one machine.
enum class TransportPolicy : std::uint8_t { kAuto, kShm, kTcp, kVerbs, kUcx };

// The table of transports, by the numbers of TransportPolicy. Code that depends on the properties of a transport reads
// it.
struct TransportRow {
  std::string_view name;  // the value of TUTTI_TRANSPORT and of --transport that selects this transport
  // Ranks of one machine use this transport among themselves as well. False for shm, and for auto, which normally uses
  // a network only between machines.
  bool network;
  bool encrypts;    // TUTTI_ENCRYPT=1 is possible with this transport
  bool everywhere;  // needs no device or library that a machine may lack, so every test run includes it
};
inline constexpr auto kTransportTable = std::to_array<TransportRow>({
    // shared memory within a machine, verbs or tcp between machines
    {.name = "auto", .network = false, .encrypts = true, .everywhere = true},
    // no data leaves the machine, so nothing needs encryption
    {.name = "shm", .network = false, .encrypts = true, .everywhere = true},
    {.name = "tcp", .network = true, .encrypts = true, .everywhere = true},
    {.name = "verbs", .network = true, .encrypts = false, .everywhere = false},
    {.name = "ucx", .network = true, .encrypts = false, .everywhere = false},
});
inline constexpr auto kTransportNames = [] {
  std::array<std::string_view, kTransportTable.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kTransportTable[i].name;
  return names;
}();
constexpr const TransportRow& row_of(TransportPolicy policy) {
  return kTransportTable[static_cast<std::size_t>(policy)];
}

// Bytes of a slot if TUTTI_SLOT_BYTES is not set: kRdmaSlotBytes for small communicators whose ranks all reach each
// other through RDMA NICs, and kSlotBytes for most others. default_slot_bytes() in job/job_context.cc has the whole
// rule, with a third length for UCX.
inline constexpr std::uint32_t kSlotBytes = 128 * 1024;
inline constexpr std::uint32_t kRdmaSlotBytes = 512 * 1024;
// The values of TUTTI_SLOT_BYTES and TUTTI_DEVICE_SLOT_BYTES are multiples of kSlotUnit up to kMostSlotBytes.
inline constexpr std::uint32_t kSlotUnit = 4096;
inline constexpr std::uint32_t kMostSlotBytes = 16 << 20;

// True if ranks of one machine reach each other by the transport that reaches other machines.
inline bool network_only(TransportPolicy policy) { return row_of(policy).network; }

// How ranks of one machine access each other's memory that is not registered, if the system permits it: never (kOff),
// always by system calls (kCalls), or by pointers if all ranks are threads of one process and otherwise by system calls
// for some long calls (kAuto).
enum class AttachPolicy : std::uint8_t { kOff, kCalls, kAuto };
std::optional<AttachPolicy> parse_attach(std::string_view name);
std::optional<TransportPolicy> parse_transport(std::string_view name);

// The value of TUTTI_UNIFORM for each value of UniformCalls, in its order.
inline constexpr std::array<std::string_view, 3> kUniformNames = {"0", "calls", "1"};
inline std::string_view uniform_name(UniformCalls calls) { return kUniformNames[static_cast<std::size_t>(calls)]; }

// Where calls on device memory run: on the GPUs if that is possible (kAuto; for example, the GPUs must be able to
// access each other), or always on the host (kStaged).
enum class DevicePolicy : std::uint8_t { kAuto, kStaged };
std::optional<DevicePolicy> parse_device_calls(std::string_view name);

// The protocol of messages between GPUs. kAuto selects kLl or kSimple by the length of the call's blocks. Calls that
// run in rounds (device/native/device_resources.h) always use kSimple.
enum class DeviceProtocol : std::uint8_t { kAuto, kSimple, kLl, kLl128 };

// The settings of a process. Config has more than 40 members, because each member is one setting, and the tables of
// names and defaults refer to the members one by one.
struct Config {
  std::optional<std::int32_t> rank;                    // TUTTI_RANK
  std::optional<std::int32_t> size;                    // TUTTI_WORLD_SIZE
  std::optional<std::int32_t> local_rank;              // TUTTI_LOCAL_RANK
  std::optional<std::int32_t> local_size;              // TUTTI_LOCAL_SIZE
  std::string root;                                    // TUTTI_ROOT, "host:port"
  std::optional<std::int32_t> root_fd;                 // TUTTI_ROOT_FD, rank 0's inherited bound socket
  std::optional<std::int32_t> elastic_fd;              // TUTTI_ELASTIC_FD, the launcher's inherited socket
  std::string job_id;                                  // TUTTI_JOB_ID
  std::string job_key_file;                            // TUTTI_JOB_KEY_FILE, a file with the job key
  std::string job_key;                                 // TUTTI_JOB_KEY, hexadecimal; never printed
  std::string unique_id;                               // TUTTI_UNIQUE_ID, tutti::UniqueId in hexadecimal; never printed
  std::string interface;                               // TUTTI_INTERFACE, names, subnets, addresses; best first
  PortRange port_range;                                // TUTTI_PORT_RANGE, "first-last"; TUTTI_ROOT need not be in it
  TransportPolicy transport = TransportPolicy::kAuto;  // TUTTI_TRANSPORT, auto|shm|tcp|verbs|ucx
  bool encrypt = false;                                // TUTTI_ENCRYPT, 0 or 1: TLS on TCP connections between ranks
  AttachPolicy attach = AttachPolicy::kAuto;           // TUTTI_ATTACH, auto|calls|off
  std::string rdma_devices;                            // TUTTI_RDMA_DEVICES, "mlx5_0:1,ib*"; empty: all
  std::optional<std::int32_t> rdma_gid_index;          // TUTTI_RDMA_GID_INDEX, 0 .. 255; unset: chosen automatically
  std::uint32_t rdma_queue_pairs = 1;                  // TUTTI_RDMA_QUEUE_PAIRS per connection and port, 1 .. 8
  std::uint32_t rdma_timeout = 17;                     // TUTTI_RDMA_TIMEOUT, the n in 4.096 us * 2^n, 1 .. 31
  std::uint32_t rdma_retries = 6;                      // TUTTI_RDMA_RETRIES, 0 .. 7
  std::uint32_t rdma_traffic_class = 0;                // TUTTI_RDMA_TRAFFIC_CLASS, 0 .. 255
  std::uint32_t rdma_service_level = 0;                // TUTTI_RDMA_SERVICE_LEVEL, 0 .. 15
  std::uint32_t rdma_cache_mib = 1024;                 // TUTTI_RDMA_CACHE_MIB, registered memory kept, 0 .. 2^20
  bool rdma_write_outputs = true;                      // TUTTI_RDMA_WRITE_OUTPUTS, 0 or 1: peers write outputs by RDMA
  std::string node_id;                                 // TUTTI_NODE_ID: only ranks with equal ids share memory
  UniformCalls uniform = UniformCalls::kNone;          // TUTTI_UNIFORM, 0|calls|1: which calls have one outcome
  bool checksum = false;                               // TUTTI_CHECKSUM, 0 or 1: messages have a CRC-32C
  std::chrono::milliseconds setup_timeout{60'000};     // TUTTI_SETUP_TIMEOUT_MS, 1 .. 86,400,000
  std::chrono::milliseconds timeout{60'000};           // TUTTI_TIMEOUT_MS, 1 .. 86,400,000
  std::optional<std::int32_t> slot_bytes;              // TUTTI_SLOT_BYTES, 4096 .. 16 MiB, a multiple of 4096
  std::uint32_t slots = 4;                             // TUTTI_SLOTS per connection, 2 .. 64
  DevicePolicy device_calls = DevicePolicy::kAuto;     // TUTTI_DEVICE_CALLS, auto|staged
  std::uint32_t device_blocks = 16;                    // TUTTI_DEVICE_BLOCKS, maximum for a rank's call, 1 .. 64
  std::uint32_t device_threads = 512;                  // TUTTI_DEVICE_THREADS per block, 32 .. 512, a multiple of 32
  std::uint32_t device_slot_bytes = 128 * 1024;        // TUTTI_DEVICE_SLOT_BYTES, 4096 .. 16 MiB, a multiple of 4096
  DeviceProtocol device_protocol = DeviceProtocol::kAuto;  // TUTTI_DEVICE_PROTOCOL, auto|simple|ll|ll128
  // TUTTI_DEVICE_COPIES, 0 .. 1 GiB: shortest block for which calls that only move blocks may use copy engines; 0: copy
  // engines are not used
  std::uint32_t device_copies = 0;
  std::string tune;                      // TUTTI_TUNE, rules that select algorithms (syntax: src/model/overrides.h)
  std::string tune_file;                 // TUTTI_TUNE_FILE, measured costs; empty: the file that `tutti tune` writes
  bool measure = true;                   // TUTTI_MEASURE, 0 or 1: measure if no choices are stored
  bool selftest = false;                 // TUTTI_SELFTEST, 0 or 1: test all paths at set-up
  bool verify_plans = true;              // TUTTI_VERIFY_PLANS, 0 or 1: prove plans (VerifiedPlanCache)
  LogLevel log_level = LogLevel::kWarn;  // TUTTI_LOG, off|error|warn|info|debug
  std::uint32_t record = 1024;           // TUTTI_RECORD, operations kept: 0 (none), 16 .. 65536, a power of two
  std::string record_dir;                // TUTTI_RECORD_DIR, a folder; empty: recording::folders() chooses one
  // TUTTI_NCCL_VERSION, "2.28.9" or 22809: the version that ncclGetVersion() returns. Only src/nccl reads it.
  std::int32_t nccl_version = 23203;

  std::uint32_t slot_bytes_or(std::uint32_t otherwise) const {
    return slot_bytes ? static_cast<std::uint32_t>(*slot_bytes) : otherwise;
  }
};

// All environment variables of this process, and not only those with TUTTI_ names, because launchers such as torchrun
// and mpirun use variables of their own.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;
EnvironmentVariables process_environment();

using Variables = std::vector<std::pair<std::string, std::string>>;

// The TUTTI_* variables of this process.
Variables environment_variables();

// Returns `own`, extended by those variables of `defaults` that `own` does not have.
Variables with_defaults(Variables own, const Variables& defaults);

// Errors (kConfig): an unknown TUTTI_* name (the message suggests the most similar known name), or an invalid value.
Result<Config> parse_config(const Variables& variables);

// The names of all TUTTI_* variables that parse_config() accepts, sorted.
std::vector<std::string_view> config_variable_names();

// The value of one variable according to a Config, in the form that parse_config() accepts. The value of a secret is
// left out.
struct ConfigValue {
  std::string_view name;               // one of config_variable_names()
  std::string text;                    // empty: the variable has no value and no default, or is a secret
  std::optional<std::int64_t> number;  // set if the variable is a number and has a value
  bool is_hidden = false;              // the variable is a secret, and has a value
};

// The values of all variables, in the order of config_variable_names().
std::vector<ConfigValue> config_values(const Config& config);

// Returns the candidate with the smallest edit distance to `name`, or an empty name if every distance is greater than a
// third of the length of `name`.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace tutti
