// The data path by verbs (libibverbs), opened at run time: our own, over InfiniBand and RoCE, of cards and
// of software. docs/rdma.md says how it works.
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
  bool required = false;                  // verbs was asked for by name: no peer goes by TCP for want of a common port
  std::int32_t rank = 0;                  // of this rank: spreads interrupts over cores
  std::string devices;                    // as is_wanted() reads it; empty: all
  std::optional<std::int32_t> gid_index;  // of every port; nothing: by the rule of gid.h
  std::uint32_t queue_pairs = 1;          // per connection and port
  std::uint8_t timeout = 17;              // of an acknowledgement: 4.096 us * 2^timeout
  std::uint8_t retries = 6;               // 7 is for ever on some devices
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::uint64_t cache_bytes = std::uint64_t{1} << 30;  // of users' memory that stays registered, each way
  bool write_outputs = true;                           // peers write messages into the output where they are wanted
};

// A port that can be used, with what peers must know of it. A value.
struct VerbsPort {
  std::string device;
  std::uint8_t number = 1;
  std::uint16_t rail = 0;  // as rails_of() counts; speaks to the peers' ports of the same one
  bool ethernet = true;
  bool software = false;
  bool first_version = false;  // of RoCE, whose packets are not IP's
  std::uint32_t mbps = 0;
  std::uint8_t mtu = 3;  // of the path, as the field's enumeration: 1..5 are 256..4096 bytes
  std::uint16_t lid = 0;
  std::int32_t gid_index = 0;
  std::array<std::uint8_t, 16> gid{};
  std::string gid_reason;  // why this one
  std::string interface;   // "eth0"; empty: not known
};
// "rxe0 port 1: rail 0, 1000 Mbit/s, RoCE, MTU 1024, GID 1 (::ffff:10.0.0.1): the first RoCE v2 address of IPv4"
std::string describe(const VerbsPort& port);

struct VerbsPorts {
  std::vector<VerbsPort> usable;     // by rail
  std::vector<std::string> refused;  // "mlx5_1 port 1: down (its state is POLLING)"
};
// Errors: kUnsupported: this build or this machine has no libibverbs. Thread-safe.
Result<VerbsPorts> find_verbs_ports(const VerbsSettings& settings);

// Errors: as above, kConfig (no port is usable), kSystem.
Result<std::shared_ptr<DataPathMaker>> make_verbs_maker(const VerbsSettings& settings);

}  // namespace tutti
