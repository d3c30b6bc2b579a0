// The launcher's side of an elastic job (tutti/elastic.h): it is the one place that knows who lives, and so it says
// when ranks meet, where, and at which step they go on. Ranks speak with it by a socket of packets each; the words
// stand in src/communicator/elastic.cc. A rank's place is its index among those that the job began with; a replacement
// takes the place of the dead. For the launcher's thread.
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
  std::int32_t least = 1;                    // ranks that must live; with fewer the job ends
  std::int32_t restarts = 10;                // dead ranks that are replaced
  std::optional<int> hopeless_status = {};   // of a rank that is not replaced: another one would fail as it did
  std::chrono::milliseconds rejoin{60'000};  // what a rank that lives gets to come when the others wait for it
};

// Reads what `--elastic` is given, "MIN:MAX" with 1 <= MIN <= MAX <= kMaxLocalRanks (tools/run/launch.h): MIN goes to
// bounds.least, MAX to `ranks`. `ranks` is what another option has asked for, which must be MAX, or 0: nothing has.
// Errors: kInvalidArgument, with a message for the user; `ranks` and `bounds` are as they were then.
Status parse_elastic(const std::string& text, std::int32_t& ranks, ElasticBounds& bounds);

class ElasticControl {
 public:
  explicit ElasticControl(std::size_t places) : seats_(places) {}

  // A rank is about to be started there: the end of its socket that it inherits. Errors: kSystem.
  Result<Fd> seat(std::size_t place);
  void ended(std::size_t place);         // its process: somebody else may be seated there
  std::vector<int> descriptors() const;  // that are readable when a rank has spoken
  // Hears all ranks. When all that live have come: sends them on. Errors: kSystem (nowhere to meet).
  Status serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin);
  // All ranks were through, and have been told so. Stays true: a rank that fails now cannot be replaced, since nobody
  // would meet it.
  bool is_over() const { return is_over_; }
  // Since when somebody waits, and until when the others may come.
  std::optional<std::chrono::steady_clock::time_point> deadline() const { return deadline_; }
  std::vector<std::size_t> missing() const;  // places of ranks that live and have not come
  void begin_anew() { deadline_.reset(); }   // to wait: somebody who was awaited was ended, or replaced

 private:
  enum class State : std::uint8_t { kRunning, kReady, kAtTheEnd, kClosed };
  struct Seat {
    Fd channel;  // invalid: nobody is there, or (kClosed) somebody who will not speak any more and has not ended yet
    State state = State::kRunning;
    std::int64_t has_done = -1;
    bool taken() const { return channel.valid() || state == State::kClosed; }
    bool has_come() const { return state == State::kReady || state == State::kAtTheEnd; }
  };
  void hear(Seat& seat);
  Status send_on();

  std::vector<Seat> seats_;
  std::int32_t meetings_ = 0;
  bool is_over_ = false;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace tutti::tool
