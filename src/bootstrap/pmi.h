// A client of the PMI-1 text protocol, which Hydra (MPICH, Intel MPI, MVAPICH) speaks with its ranks over an inherited
// descriptor, PMI_FD: one line a command, one line an answer. It gives what a rendezvous needs: a store and a barrier.
//
// The descriptor is the launcher's and the program's. "init" is not said: Hydra answers without, and the program's own
// MPI may want to say it. "finalize" is said when the process ends, so that the launcher does not take that for a
// crash. The program's MPI may use the descriptor before and after a set-up, not during one. One thread.
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

  // Learns the store's name and limits. Errors as below; kRefused where another protocol is spoken.
  static Result<PmiClient> open(int fd, TimePoint deadline);

  // Errors: kTimeout, kSystem (the launcher has gone), kRefused (an answer that is none, a value that is too long).
  Status put(std::string_view key, std::string_view value);
  Result<std::optional<std::string>> get(std::string_view key);  // nothing: no such key
  Status barrier();
  // No other command may follow. Errors are nobody's any more.
  static void finalize(int fd, TimePoint deadline);

  static constexpr std::size_t kMaxLineBytes = 4096;

 private:
  PmiClient(int fd, TimePoint deadline) : fd_(fd), deadline_(deadline) {}
  static Status check(int fd);
  // One command and the answer to it, which must begin with "cmd=<answer>".
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

// Rank 0 makes a unique id on options.host and a port of options.port_range and passes it through the launcher's store;
// all ranks return it. Communicators that a job makes one after the other take the next name in the store, at most
// 1,000 of one job id.
Result<UniqueId> share_unique_id(const RendezvousOptions& options, PmiClient::TimePoint deadline);

}  // namespace tutti
