// PmiClient: a client of the PMI-1 text protocol. Hydra (MPICH, Intel MPI, MVAPICH) uses this protocol with its
// ranks over an inherited descriptor, PMI_FD. Each command and each answer is one line. The protocol provides a
// key-value store and a barrier. Rank 0 puts a unique id into the store, and all ranks get it after the barrier.
//
// Other code of the program, for example an MPI library, may use the descriptor too. Therefore the client does not
// send "init": Hydra answers without it, and the MPI library may want to send it. The command "finalize" is sent
// only when the process exits, so that the launcher does not treat the exit as a crash. The MPI library may use the
// descriptor before and after a set-up of Tutti, but not during it. Only one thread at a time may use a PmiClient.
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

  // Queries the name and the limits of the store, and registers finalize() to be called when the process exits. All
  // commands of the client must end by `deadline`. Errors: those of the commands below, and kConfig if `fd` is not a
  // connected stream socket.
  static Result<PmiClient> open(int fd, TimePoint deadline);

  // Errors of put(), get() and barrier(): kTimeout, kSystem (for example, the launcher has exited), kRefused (the other
  // end does not use PMI-1, an answer has kMaxLineBytes bytes or more, the key or value is too long, or the store
  // refuses the key).
  Status put(std::string_view key, std::string_view value);
  Result<std::optional<std::string>> get(std::string_view key);  // empty if the key does not exist
  // Waits until all ranks of the launcher's job have called it.
  Status barrier();
  // Sends "finalize" and waits for the answer until `deadline`. No other command may follow. Errors are ignored,
  // because the process is exiting.
  static void finalize(int fd, TimePoint deadline);

  static constexpr std::size_t kMaxLineBytes = 4096;

 private:
  PmiClient(int fd, TimePoint deadline) : fd_(fd), deadline_(deadline) {}
  static Status check(int fd);
  // Sends one command and returns the line of the answer. Fails with kRefused if the answer's field "cmd" is not
  // `answer`.
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

// Every rank of the job calls this function. Rank 0 makes a unique id for options.host and a port of
// options.port_range, and puts it into the launcher's store. All ranks return that id. If rank 0 cannot make it, rank 0
// returns the reason, and the others no_unique_id(). If a job creates several communicators one after the other, the id
// of each gets another name in the store, so that the ids are not confused. At most kMaxCommunicators (pmi.cc)
// communicators are possible for one job id; for the next one, the error is kRefused.
Result<UniqueId> share_unique_id(const RendezvousOptions& options, PmiClient::TimePoint deadline);

}  // namespace tutti
