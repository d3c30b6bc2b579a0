// UniqueId: where the ranks of one communicator meet, and the secret word by which they know each other, in 128 bytes
// that any channel may carry that others cannot read (a file, a key-value store, an environment variable, another
// communicator). Where others can read it, give a job key as well.
//
// Any process makes one, a rank or not. create() opens a listening socket and serves one communicator's set-up from a
// thread in the background; every rank, that process's own included, then passes the same id in
// CommunicatorOptions::unique_id (or TUTTI_UNIQUE_ID). The thread and the socket end after the set-up, after a failed
// set-up, or when nobody has come for `patience`. The process must live until then. Several ids may be alive in one
// process. An id serves once.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/export.h"
#include "tutti/result.h"

namespace tutti {

struct UniqueIdOptions {
  // Where to listen: network interfaces by name, subnet or address, a comma between several, the first that fits is
  // taken. Empty: TUTTI_INTERFACE, and where that is not set, lo: then only ranks of this machine can come.
  std::string interface = {};
  // Ports to choose from, both included. 0: TUTTI_PORT_RANGE, and where that is not set, any free port.
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  std::chrono::milliseconds patience = std::chrono::minutes(10);  // for the first rank; at most a day
  // A file with 16 to 4096 random bytes, mode 600. Every rank must have the same key (CommunicatorOptions::job_key_file
  // or TUTTI_JOB_KEY_FILE). A process that has only read the id can then not join. Empty: TUTTI_JOB_KEY_FILE is used,
  // then TUTTI_JOB_KEY. If neither is set, the id is the only secret: whoever has it can join.
  std::string job_key_file = {};
};

struct TUTTI_API UniqueId {
  std::array<std::byte, 128> bytes{};

  // Errors: kConfig (no such interface, only a link-local address), kSystem (no free port, no descriptors).
  static Result<UniqueId> create(const UniqueIdOptions& options = {});
  // 256 hexadecimal digits, and back. Errors: kInvalidArgument (a wrong length, another character, garbled, another
  // version's).
  static Result<UniqueId> from_text(std::string_view text);
  std::string to_text() const;

  bool operator==(const UniqueId&) const = default;
};

}  // namespace tutti
