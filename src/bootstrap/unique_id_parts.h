// The contents of a UniqueId, which users see only as 128 bytes. Any thread may call these functions. Integers are
// little-endian. The address is in network byte order, and an IPv4 address uses the first 4 of the 16 bytes.
//
//   offset  size  field
//        0     8  magic
//        8     1  version, u8
//        9     1  address family, u8: 4 or 6
//       10     2  port, u16
//       12    16  address
//       28    16  secret
//       44    76  zeros
//      120     8  FNV-1a hash of the 120 bytes above, u64
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/config.h"
#include "bootstrap/job_key.h"
#include "tutti/result.h"
#include "tutti/unique_id.h"

namespace tutti {

struct UniqueIdParts {
  std::string address;  // numeric address of the rendezvous server
  std::uint16_t port = 0;
  std::string job_id;  // 32 hexadecimal digits, from which the secret cannot be derived
  // Derived from the secret of the id alone, without a configured key.
  JobKey key;
};

// The text that rank 0 passes through a launcher's store instead of an id that it could not make, so that the other
// ranks fail at once, with no_unique_id().
inline constexpr std::string_view kNoUniqueId = "!";
Error no_unique_id();

// Returns the contents of `id`. Errors: kInvalidArgument if `id` is not an id of Tutti, is damaged, or has another
// version.
Result<UniqueIdParts> unpack_unique_id(const UniqueId& id);

// Makes a unique id, and starts its rendezvous server on a numeric address of this machine. The server runs in a
// detached thread until the set-up is over, or until no rank has joined within `timeout`. If `configured` is set,
// only ranks that have that key as well are admitted. Errors: kConfig (a link-local or wildcard address, or not a
// numeric address), kSystem.
Result<UniqueId> serve_unique_id(const std::string& address, const PortRange& ports, std::chrono::milliseconds timeout,
                                 const std::optional<JobKey>& configured);

// Returns at most kMaxPortsToTry (unique_id.cc) consecutive ports of the range (the first port of the range follows
// after its last one). The port with which the result begins depends on the process. Returns {0}, which stands for any
// free port, if no range is configured.
std::vector<std::uint16_t> ports_to_try(const PortRange& range);

// The FNV-1a hash of a text. Different texts usually have different hashes, but an attacker can find texts with the
// same hash.
std::uint64_t spread(std::string_view text);

namespace detail {

// UniqueId::create() with additional defaults: `defaults` holds names and values of TUTTI_* variables. A value is
// used unless the environment of the process sets the same variable.
Result<UniqueId> create_unique_id(const UniqueIdOptions& options, const Variables& defaults);

}  // namespace detail

}  // namespace tutti
