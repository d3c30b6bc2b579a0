// The launcher's side of an elastic job (tutti/elastic.h): it is the one place that knows who lives, and so it says
// when ranks meet, where, and at which step they go on. Ranks speak with it by a socket of packets each; the words
// stand in src/runtime/elastic.cc. A rank's place is its index among those that the job began with; a replacement takes
// the place of the dead. For the launcher's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/fd.h"
#include "tutti/result.h"

namespace tutti::tool {

struct ElasticBounds {
  std::int32_t least = 1;                    // ranks that must live; with fewer the job ends
  std::int32_t restarts = 10;                // dead ranks that are replaced
  std::chrono::milliseconds rejoin{60'000};  // what a rank that lives gets to come when the others wait for it
};

class ElasticControl {
 public:
  explicit ElasticControl(std::size_t places) : seats_(places) {}

  // A rank is about to be started there: the end of its socket that it inherits. Errors: kSystem.
  Result<Fd> seat(std::size_t place);
  void ended(std::size_t place);
  std::vector<int> descriptors() const;  // that are readable when a rank has spoken
  // Hears all ranks. When all that live have come: sends them on. Errors: kSystem (nowhere to meet).
  Status serve(std::chrono::steady_clock::time_point now, std::chrono::milliseconds rejoin);
  // Since when somebody waits, and until when the others may come.
  std::optional<std::chrono::steady_clock::time_point> deadline() const { return deadline_; }
  std::vector<std::size_t> missing() const;  // places of ranks that live and have not come
  void begin_anew() { deadline_.reset(); }   // to wait: somebody who was awaited was ended, or replaced

 private:
  enum class State : std::uint8_t { kRunning, kReady, kAtTheEnd };
  struct Seat {
    Fd channel;  // invalid: nobody is there
    State state = State::kRunning;
    std::int64_t has_done = -1;
  };
  void hear(Seat& seat);
  Status send_on();

  std::vector<Seat> seats_;
  std::int32_t meetings_ = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace tutti::tool
