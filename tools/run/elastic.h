// ElasticControl: the launcher's side of an elastic job (tutti/elastic.h). Only the launcher has all information about
// which ranks are alive, so it decides when and where ranks set up a new communicator, and at which step they
// continue. Each rank is connected with it by a socket of packets; src/communicator/elastic.cc describes the packets.
// A rank is identified by its index among the ranks with which the job began. A replacement gets the index of the dead
// rank. Used by the launcher's thread.
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
  std::int32_t min_ranks = 1;  // ranks that must be alive; with fewer the job ends
  std::int32_t restarts = 10;  // how many dead ranks are replaced
  // A rank that ends with this exit status is not replaced, because a replacement would fail in the same way.
  std::optional<int> no_restart_status = {};
  // How long the ranks that are ready wait for another live rank.
  std::chrono::milliseconds rejoin{60'000};
};

// Parses the value of `--elastic`, "MIN:MAX" with 1 <= MIN <= MAX <= kMaxLocalRanks (tools/run/launch.h). Stores MIN
// in bounds.min_ranks and MAX in `ranks`. The value of `ranks` before the call is the number of ranks that another
// option requests; it must be MAX, or 0 for none. Errors: kInvalidArgument, with a message for the user; `ranks` and
// `bounds` are then unchanged.
Status parse_elastic(const std::string& text, std::int32_t& ranks, ElasticBounds& bounds);

class ElasticControl {
 public:
  explicit ElasticControl(std::size_t places) : members_(places) {}

  // Prepares for the start of rank `index`. Returns the end of its socket that it must inherit. Errors: kSystem.
  Result<Fd> add(std::size_t index);
  // To be called when the process of the rank has ended. The other ranks are informed, and a replacement may be
  // started.
  void ended(std::size_t index);
  // The descriptors to poll; they are readable when a rank has sent a packet.
  std::vector<int> descriptors() const;
  // Reads the packets of all ranks. If all live ranks are ready, starts a set-up of a new communicator. Errors:
  // kSystem (the unique id cannot be created).
  Status serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin);
  // Whether all ranks have done all steps and were informed of that. It stays true: a rank that fails afterwards
  // cannot be replaced, because no rank would set up a communicator with the replacement.
  bool is_over() const { return is_over_; }
  // The time until which ranks that are ready wait for the others; nothing if no rank is ready.
  std::optional<std::chrono::steady_clock::time_point> deadline() const { return deadline_; }
  // The indices of ranks that are alive and not ready.
  std::vector<std::size_t> missing() const;
  // Restarts the wait, because a rank for which the others waited was killed or replaced.
  void restart_wait() { deadline_.reset(); }

 private:
  enum class State : std::uint8_t { kRunning, kReady, kDone, kClosed };
  struct Member {
    // Invalid if the rank has ended, or if it has closed its end of the socket and has not ended yet (kClosed).
    Fd channel;
    State state = State::kRunning;
    std::int64_t has_done = -1;
    bool taken() const { return channel.valid() || state == State::kClosed; }
    bool is_waiting() const { return state == State::kReady || state == State::kDone; }
  };
  void receive_packets(Member& member);
  Status start_set_up();

  std::vector<Member> members_;
  std::int32_t meetings_ = 0;
  bool is_over_ = false;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace tutti::tool
