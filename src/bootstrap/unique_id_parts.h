// What a UniqueId's bytes hold. Internal to the runtime; any thread.
//
//   0 magic, 8 bytes  8 version, u8  9 family, u8: 4 or 6  10 port, u16  12 address, 16 bytes  28 secret, 16 bytes
//   44 zeros          120 FNV-1a of all that, u64; integers little-endian
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
  std::string job_id;  // 32 hexadecimal digits that tell nothing of the secret
  JobKey key;          // out of the secret
};

// Errors: kInvalidArgument (no id of this version, garbled).
Result<UniqueIdParts> unpack_unique_id(const UniqueId& id);

// UniqueId::create() for a numeric address of this machine. With a `configured` key only ranks that have it, too, are
// let in. Errors: kConfig (a link-local one), kSystem.
Result<UniqueId> serve_unique_id(const std::string& address, const PortRange& ports, std::chrono::milliseconds patience,
                                 const std::optional<JobKey>& configured);

// The ports to try in a range, in an order that differs from process to process, at most 256; {0} where any will do.
std::vector<std::uint16_t> ports_to_try(const PortRange& range);

// FNV-1a: not a defence, a spread.
std::uint64_t spread(std::string_view text);

namespace detail {

// UniqueId::create() with settings of the caller's own: `defaults`, pairs of TUTTI_* variables, apply unless the
// environment of the process says something else.
Result<UniqueId> create_unique_id(const UniqueIdOptions& options, const Variables& defaults);

}  // namespace detail

}  // namespace tutti
