// The contents of a UniqueId. Internal to the library. Any thread may call these functions. Integers are
// little-endian.
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

#include "base/config.h"
#include "bootstrap/job_key.h"
#include "tutti/unique_id.h"

namespace tutti {

struct UniqueIdParts {
  std::string address;  // numeric
  std::uint16_t port = 0;
  std::string job_id;  // 32 hexadecimal digits, from which the secret cannot be derived
  JobKey key;          // derived from the secret
};

// Errors: kInvalidArgument if `id` is damaged or has another version.
Result<UniqueIdParts> unpack_unique_id(const UniqueId& id);

// Implements UniqueId::create() for a numeric address of this machine. If `configured` is set, only ranks that have
// that key as well are admitted. Errors: kConfig (a link-local address), kSystem.
Result<UniqueId> serve_unique_id(const std::string& address, const PortRange& ports, std::chrono::milliseconds timeout,
                                 const std::optional<JobKey>& configured);

// Returns at most 256 ports of the range, in an order that differs between processes. Returns {0} if any port may
// be used.
std::vector<std::uint16_t> ports_to_try(const PortRange& range);

// The FNV-1a hash of a text. It distributes values evenly but gives no protection against attacks.
std::uint64_t spread(std::string_view text);

namespace detail {

// UniqueId::create() with additional defaults: `defaults` holds pairs of TUTTI_* variables. They apply unless the
// environment of the process sets the same variable.
Result<UniqueId> create_unique_id(const UniqueIdOptions& options, const Variables& defaults);

}  // namespace detail

}  // namespace tutti
