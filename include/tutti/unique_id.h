// UniqueId: 128 bytes with which the ranks of one new communicator find and authenticate each other. It contains the
// address of a rendezvous server and a secret. The program passes it to all ranks through a private channel (a file, a
// key-value store, an environment variable, another communicator). If others can read that channel, also configure a
// job key.
//
// Any process can create an id, even one that is not a rank. create() opens a listening socket, and a background thread
// of the process serves the set-up of one communicator. Then every rank passes the same id, even a rank in the process
// that created the id, in CommunicatorOptions::unique_id (or TUTTI_UNIQUE_ID). The thread and the socket end when the
// set-up has succeeded or failed, or if no rank has connected within `timeout` (UniqueIdOptions). The process must not
// exit earlier. One process may have several ids at a time. An id can be used for one communicator only.
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
  // The network interface to listen on: a comma-separated list of names, subnets or addresses, of which the first that
  // matches is used. Empty: TUTTI_INTERFACE or, if that is not set, lo, which only ranks of this machine can reach.
  std::string interface = {};
  // The server listens on a free port from first_port to last_port, both included. If both are 0: on a port of
  // TUTTI_PORT_RANGE or, if that is not set, on any free port.
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  // How long to wait for the first rank; more than 0. More than one day counts as one day.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // Path of a file with 16 to 4096 random bytes, mode 600: a job key in addition to the id. Every rank must have the
  // same key (CommunicatorOptions::job_key_file or TUTTI_JOB_KEY_FILE), so that a process that has read only the id
  // cannot join. Empty: TUTTI_JOB_KEY_FILE, then TUTTI_JOB_KEY. If neither is set, the id is the only secret, and any
  // process that has it can join.
  std::string job_key_file = {};
  // The key itself, 16 to 4096 bytes. It takes precedence over the variables. To set job_key and job_key_file is an
  // error.
  std::string job_key = {};
};

struct TUTTI_API UniqueId {
  std::array<std::byte, 128> bytes{};

  // Creates an id and starts its server. Errors: kInvalidArgument (wrong range of ports or timeout), kConfig (the
  // interface does not exist or has only a link-local address, the job key cannot be read, or a TUTTI_* variable is
  // invalid), kSystem (for example no free port, or out of file descriptors or threads).
  static Result<UniqueId> create(const UniqueIdOptions& options = {});
  // Convert an id from and to 256 hexadecimal digits. Errors of from_text(): kInvalidArgument (wrong length, a
  // character that is not a hexadecimal digit, a wrong checksum, or an id of another version of Tutti).
  static Result<UniqueId> from_text(std::string_view text);
  std::string to_text() const;

  bool operator==(const UniqueId&) const = default;
};

}  // namespace tutti
