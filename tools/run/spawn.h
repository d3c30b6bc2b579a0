// Starts the processes of the ranks of a job: creates the job's socket, and the environment and pipes of each rank, and
// ensures that the ranks are killed when the launcher ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tutti/result.h"

namespace tutti::tool {

// A TCP socket that is bound to a free port of the loopback address, so that the kernel gives this port to no process
// that asks for a free one. Rank 0 inherits the socket and listens on it as the rendezvous server, unless the job is
// elastic.
struct RootSocket {
  Fd fd;
  std::string host;  // 127.0.0.1, or ::1 if the loopback interface has no IPv4 address
  std::uint16_t port = 0;

  std::string text() const;  // the value of TUTTI_ROOT
  // Errors: kSystem. If the loopback interface is down, the message says so.
  static Result<RootSocket> create();
};

// The values of one job, from which spawn_rank() starts each of its ranks. All ranks get them, except `root_fd`.
struct JobIdentity {
  std::int32_t ranks = 1;
  std::string id;  // 128 random bits in hexadecimal
  // The job key: 256 other random bits, in hexadecimal. It is passed in the environment of the ranks, which only this
  // user and root can read.
  std::string key;
  std::string root;       // value of TUTTI_ROOT: the address of the RootSocket
  int root_fd = -1;       // descriptor of the RootSocket, which rank 0 inherits, unless the job is elastic
  std::string preload{};  // path of a library that the ranks load before all others; empty: none

  static Result<JobIdentity> create(std::int32_t ranks, const RootSocket& root);
};

// The process of a rank. The launcher reads its stdout and stderr through two pipes. The reading ends do not block.
struct RankProcess {
  std::int32_t rank = 0;
  pid_t pid = -1;
  Fd output;  // reading end of the pipe to which the rank's stdout is connected
  Fd errors;  // reading end of the pipe to which the rank's stderr is connected
};

// Starts `command`, which is searched in PATH, as rank `rank`, in the process group of this process. Rank 0 inherits
// stdin; the other ranks have an empty stdin. The kernel kills the process with SIGKILL when the calling thread ends,
// for whatever reason, unless the program has set-user-id bits. `elastic_fd` is the rank's socket in an elastic job,
// which the rank inherits instead of the RootSocket; -1: the job is not elastic. Returns after the program has started.
// If the program cannot be started, the error's message contains the reason, and `exit_status` is the value that shells
// use: 127 not found, 126 not executable (or another problem).
Result<RankProcess> spawn_rank(const JobIdentity& job, std::int32_t rank, const std::vector<std::string>& command,
                               int& exit_status, int elastic_fd = -1);

}  // namespace tutti::tool
