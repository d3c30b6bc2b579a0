// PmiClient: a client of the PMI-1 text protocol. Hydra (MPICH, Intel MPI, MVAPICH) uses this protocol with its
// ranks over an inherited descriptor, PMI_FD. Each command and each answer is one line. The protocol provides a
// store and a barrier, which is all that a rendezvous needs.
//
// The descriptor belongs to the launcher and to the program. The client does not send "init": Hydra answers without
// it, and the program's own MPI may want to send it. The client sends "finalize" when the process exits, so that
// the launcher does not treat the exit as a crash. The program's MPI may use the descriptor before and after a
// set-up, but not during one. Only one thread at a time may use a client.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/bootstrap.h"
#include "tutti/result.h"
#include "tutti/unique_id.h"

namespace tutti {

class PmiClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Queries the name and limits of the store. Errors: those below, and kRefused if the other end uses another
  // protocol.
  static Result<PmiClient> open(int fd, TimePoint deadline);

  // Errors: kTimeout, kSystem (the launcher has exited), kRefused (a malformed answer, or a value that is too
  // long).
  Status put(std::string_view key, std::string_view value);
  Result<std::optional<std::string>> get(std::string_view key);  // nothing if the key does not exist
  Status barrier();
  // Sends "finalize". No other command may follow. Errors are ignored, because the process is exiting.
  static void finalize(int fd, TimePoint deadline);

  static constexpr std::size_t kMaxLineBytes = 4096;

 private:
  PmiClient(int fd, TimePoint deadline) : fd_(fd), deadline_(deadline) {}
  static Status check(int fd);
  // Sends one command and returns the answer, which must begin with "cmd=<answer>".
  Result<std::string> ask(const std::string& command, std::string_view answer);
  Status write_all(std::string_view bytes);
  Result<std::string> read_line();
  Status wait_for(short events);

  int fd_;
  TimePoint deadline_;
  std::string store_;
  std::size_t longest_key_ = 0;
  std::size_t longest_value_ = 0;
};

// Rank 0 makes a unique id for options.host and a port of options.port_range, and passes it to all ranks through
// the launcher's store. All ranks return it. If a job creates several communicators one after the other, each uses
// the next name in the store, at most 1,000 for one job id.
Result<UniqueId> share_unique_id(const RendezvousOptions& options, PmiClient::TimePoint deadline);

}  // namespace tutti
