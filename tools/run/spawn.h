// Starts the ranks of a job: creates their socket, environment and pipes, and ensures that they are killed when the
// launcher ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tutti/result.h"

namespace tutti::tool {

// A TCP socket that is bound to a free port of the loopback address, so that no other process can take the port. Rank
// 0 inherits it and listens on it.
struct RootSocket {
  Fd fd;
  std::string host;  // 127.0.0.1, or ::1 if the loopback interface has no IPv4 address
  std::uint16_t port = 0;

  std::string text() const;  // the value of TUTTI_ROOT
  // Errors: kSystem. If the loopback interface is down, the message says so.
  static Result<RootSocket> create();
};

// The values that all ranks of one job share.
struct JobIdentity {
  std::int32_t ranks = 1;
  std::string id;  // 128 random bits in hexadecimal
  // 256 other random bits, in hexadecimal. They are passed in the environment of the ranks, which only this user and
  // root can read.
  std::string key;
  std::string root;  // value of TUTTI_ROOT
  int root_fd = -1;  // descriptor that rank 0 inherits

  static Result<JobIdentity> create(std::int32_t ranks, const RootSocket& root);
};

// A started rank. Its pipes are read by this process, without blocking.
struct RankProcess {
  std::int32_t rank = 0;
  pid_t pid = -1;
  Fd output;  // its stdout
  Fd errors;  // its stderr
};

// Starts `command`, which is searched in PATH, as one rank, in the process group of this process. Rank 0 inherits
// stdin; the other ranks have an empty stdin. The process is killed when the calling thread ends, for whatever reason.
// `elastic_fd` is the rank's socket in an elastic job, which it inherits instead of the root's socket; -1: not
// elastic. Returns after the program has started. If it cannot be started, the error's message contains the reason,
// and `exit_status` is the value that shells use: 127 not found, 126 not executable.
Result<RankProcess> spawn_rank(const JobIdentity& job, std::int32_t rank, const std::vector<std::string>& command,
                               int& exit_status, int elastic_fd = -1);

}  // namespace tutti::tool
