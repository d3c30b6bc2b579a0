// The data path over InfiniBand verbs: our own implementation on top of libibverbs, which is opened at run time. It
// works over InfiniBand and RoCE, with NICs and with software devices. The design is explained in docs/rdma.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/rdma/data_path.h"

namespace tutti {

struct VerbsSettings {
  // The user has selected verbs by name. If a peer has offered ports, but this rank reaches none of them, creating the
  // path then fails, and TCP is not used instead.
  bool required = false;
  std::int32_t rank = 0;                  // this rank; selects the interrupt vector, so that ranks use different cores
  std::string devices;                    // TUTTI_RDMA_DEVICES, see is_port_accepted(); empty: all
  std::optional<std::int32_t> gid_index;  // index of the GID, for all ports; empty: choose_gid() selects
  std::uint32_t queue_pairs = 1;          // queue pairs for each lane and port
  // A packet that is not acknowledged within 4.096 us * 2^timeout is sent again, at most `retries` times. On some
  // devices 7 retries mean without limit.
  std::uint8_t timeout = 17;
  std::uint8_t retries = 6;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  // Maximum size of each of the two registration caches of a device.
  std::uint64_t cache_bytes = std::uint64_t{1} << 30;
  bool write_outputs = true;  // peers may write messages directly into outputs
};

// A port that can be used, with the properties that peers need. A value type.
struct VerbsPort {
  std::string device;
  std::uint8_t number = 1;
  // The number that assign_rails() gives to the port. The port is connected to the peers' ports of the same rail.
  std::uint16_t rail = 0;
  bool ethernet = true;
  bool software = false;
  bool first_version = false;  // RoCE v1, which does not use IP packets
  std::uint32_t mbps = 0;      // speed in Mbit/s; 0: unknown
  std::uint8_t mtu = 3;        // active MTU of the port, as ibv_mtu: 1..5 are 256..4096 bytes
  std::uint16_t lid = 0;
  std::int32_t gid_index = 0;
  std::array<std::uint8_t, 16> gid{};
  std::string gid_reason;  // why this GID was selected
  std::string interface;   // for example "eth0"; empty: unknown
};
// A description for logs, for example "rxe0 port 1: rail 0, 1000 Mbit/s, RoCE, MTU 1024, GID 1 (::ffff:10.0.0.1):
// the first RoCE v2 address of IPv4".
std::string describe(const VerbsPort& port);

struct VerbsPorts {
  std::vector<VerbsPort> usable;  // sorted by rail
  // one reason for each refused device or port, for example "mlx5_1 port 1: not active (its state is PORT_DOWN)"
  std::vector<std::string> refused;
};
// Errors: kUnsupported if this build was made without libibverbs, or if the library is missing or too old on this
// machine. Thread-safe.
Result<VerbsPorts> find_verbs_ports(const VerbsSettings& settings);

// Errors: those of find_verbs_ports(), kConfig (no port can be used), kSystem.
Result<std::shared_ptr<DataPathMaker>> make_verbs_maker(const VerbsSettings& settings);

}  // namespace tutti
