// ElasticControl: the launcher's side of an elastic job (tutti/elastic.h). Only the launcher has all information about
// which ranks are alive, so it decides when the ranks set up a new communicator, with which unique id, and at which
// step they continue. Each rank is connected to the launcher by a socket that keeps packets apart (SOCK_SEQPACKET);
// src/communicator/elastic.cc describes the packets. A rank is identified by its index among the ranks with which the
// job began. A replacement gets the index of the dead rank. Used by the launcher's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tutti/result.h"

namespace tutti::tool {

struct ElasticBounds {
  std::int32_t min_ranks = 1;  // the job ends if fewer ranks than this are alive and no more replacements are allowed
  std::int32_t restarts = 10;  // the most replacements of dead ranks in the whole job
  // A rank that ends with this exit status is not replaced, because a replacement would fail in the same way. Empty:
  // there is no such status.
  std::optional<int> no_restart_status = {};
  // How long the ranks that are ready for a new communicator wait for the other live ranks. Then the launcher kills
  // those other ranks.
  std::chrono::milliseconds rejoin{60'000};
};

// Parses the value of `--elastic`, "MIN:MAX" with 1 <= MIN <= MAX <= kMaxLocalRanks (tools/run/launch.h). Stores MIN
// in bounds.min_ranks and MAX in `ranks`. The value of `ranks` before the call is the number of ranks that the user
// requested with another option, which must be equal to MAX, or 0 if the user did not. Errors: kInvalidArgument, with a
// message for the user; `ranks` and `bounds` are then unchanged.
Status parse_elastic(const std::string& text, std::int32_t& ranks, ElasticBounds& bounds);

class ElasticControl {
 public:
  explicit ElasticControl(std::size_t places) : members_(places) {}

  // Prepares for the start of the process of rank `index`. Returns the end of the rank's socket that the process must
  // inherit; this object keeps the other end. Errors: kSystem.
  Result<Fd> add(std::size_t index);
  // To be called when the process of the rank has ended. Sends "lost" to the other ranks. A replacement may be started
  // afterwards, with add().
  void ended(std::size_t index);
  // The descriptors to poll. A descriptor is readable when its rank has sent a packet or has closed the socket.
  std::vector<int> descriptors() const;
  // Reads the packets of all ranks. If all live ranks are ready, makes them set up a new communicator or, if all of
  // them have done all their steps, tells them that the job is over. `rejoin` is ElasticBounds::rejoin. Errors: those
  // of UniqueId::create().
  Status serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin);
  // Whether all live ranks have done all steps, and "over" was sent to them. Once true, it stays true: a rank that
  // fails afterwards cannot be replaced, because no rank would set up a communicator with the replacement.
  bool is_over() const { return is_over_; }
  // The time until which ranks that are ready wait for the other live ranks; nothing if no rank is ready, and between
  // restart_wait() and the next serve().
  std::optional<std::chrono::steady_clock::time_point> deadline() const { return deadline_; }
  // The indices of the ranks that are alive and not ready, for which the others wait.
  std::vector<std::size_t> missing() const;
  // Makes the next serve() start a new wait with a new deadline. To be called when a rank for which the others wait was
  // killed or is replaced.
  void restart_wait() { deadline_.reset(); }

 private:
  enum class State : std::uint8_t { kRunning, kReady, kDone, kClosed };
  struct Member {
    // This process's end of the rank's socket. Invalid if the rank's process has not been started or has ended, or if
    // the rank has closed its end and its process has not ended yet (kClosed).
    Fd channel;
    State state = State::kRunning;
    std::int64_t has_done = -1;  // number of steps that the rank has done; -1: it has no state, so it must receive one
    bool taken() const { return channel.valid() || state == State::kClosed; }
    bool is_waiting() const { return state == State::kReady || state == State::kDone; }
  };
  void receive_packets(Member& member);
  Status start_set_up();

  std::vector<Member> members_;
  std::int32_t meetings_ = 0;  // number of set-ups so far
  bool is_over_ = false;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace tutti::tool
