// Starting the ranks of a job: their sockets, environment, pipes, and the promise that they die with their launcher.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tutti/result.h"

namespace tutti::tool {

// A TCP socket that is bound to a free port of the loopback address, so that the port is taken from the first moment.
// Rank 0 inherits it and listens.
struct RootSocket {
  Fd fd;
  std::string host;  // 127.0.0.1, or ::1 if the loopback interface has no IPv4 address
  std::uint16_t port = 0;

  std::string text() const;  // for TUTTI_ROOT
  // Errors: kSystem; the message names the loopback interface if it is down.
  static Result<RootSocket> create();
};

// What all ranks of one job share.
struct JobIdentity {
  std::int32_t ranks = 1;
  std::string id;    // 128 random bits in hexadecimal
  std::string key;   // 256 others; in the ranks' environment, which only this user and root can read
  std::string root;  // TUTTI_ROOT
  int root_fd = -1;  // for rank 0

  static Result<JobIdentity> create(std::int32_t ranks, const RootSocket& root);
};

// A started rank. Its pipes are ours to read, without blocking.
struct RankProcess {
  std::int32_t rank = 0;
  pid_t pid = -1;
  Fd output;  // its stdout
  Fd errors;  // its stderr
};

// `elastic_fd`: the rank's socket of an elastic job, which it inherits in place of the root's; -1: none.
// Starts `command` (looked up in PATH) as one rank, in our process group. Rank 0 has our stdin, the others an empty
// one. The process is killed when the calling thread ends, however it ends. Returns after the program is running; where
// it can't be started the error's `message` says why and `exit_status` is set to what shells use: 127 not found, 126
// not executable.
Result<RankProcess> spawn_rank(const JobIdentity& job, std::int32_t rank, const std::vector<std::string>& command,
                               int& exit_status, int elastic_fd = -1);

}  // namespace tutti::tool
