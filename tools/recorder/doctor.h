// What recordings of one communicator's ranks say together: what every rank was in, what happened, who is to blame and
// what to do, in plain words. Values in, values out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/recorder/recording.h"

namespace tutti::tool {

enum class Cause : std::uint8_t {
  kNone,        // nothing is wrong as far as can be seen
  kDied,        // a process ended without destroying its communicator
  kStopped,     // a process is stopped
  kMismatch,    // the ranks passed different arguments
  kAbsent,      // a rank has not entered a call that others are in
  kLeft,        // a rank destroyed its communicator while others needed it
  kAborted,     // a rank called abort()
  kUnrecorded,  // ranks of which there is no recording here are waited for
  kStuck,       // all ranks are inside, and some have waited long
  kOther,       // a call failed for another reason
};

struct Verdict {
  Cause cause = Cause::kNone;
  std::vector<std::uint32_t> blamed;  // ranks of the communicator, ascending
  std::string what;                   // one or several sentences
  std::string advice;                 // empty: nothing needs doing
};

// `recordings`: of one communicator, one for each rank that has one, by rank. `now_ns`: since 1970.
Verdict diagnose(std::span<const Recording> recordings, std::int64_t now_ns);

// "running", "stopped", "dead", "ended" ...
std::string state_of(const Recording& recording);
// "in all_reduce #6 (...) for 3.2 s", "after all_reduce #5 (...)", "failed in ...", "no call yet"
std::string place_of(const Recording& recording, std::int64_t now_ns);

// Of all jobs that the recordings come from, by communicator; sorted as read_recordings() does.
std::string doctor_report(std::span<const Recording> recordings, std::int64_t now_ns);

// "3.2 s", "14 min"
std::string duration_text(std::int64_t ns);
// "rank 2", "ranks 0, 1, 3"
std::string rank_list(std::span<const std::uint32_t> ranks);

// Runs of recordings of the same job and communicator.
std::vector<std::span<const Recording>> by_communicator(std::span<const Recording> recordings);

}  // namespace tutti::tool
