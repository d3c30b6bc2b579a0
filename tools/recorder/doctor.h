// Diagnosis of a communicator from the recordings of its ranks: the current call of each rank, the problem, the ranks
// that caused it, and advice for the user. All functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/recorder/recording.h"

namespace tutti::tool {

enum class Cause : std::uint8_t {
  kNone,        // no problem is visible
  kDied,        // a process ended without destroying its communicator
  kStopped,     // a process is stopped, for example by SIGSTOP or a debugger
  kMismatch,    // the ranks passed different arguments to the same call
  kAbsent,      // a rank has not entered a call in which other ranks wait
  kDestroyed,   // a rank destroyed its communicator while other ranks needed it
  kAborted,     // a rank called abort()
  kUnrecorded,  // ranks wait for other ranks, and the recordings of those are not available
  kStuck,       // a call has been running for kLongWaitNs (doctor.cc), and no cause above explains it
  kOther,       // a call failed for another reason
};

struct Verdict {
  Cause cause = Cause::kNone;
  std::vector<std::uint32_t> culprits;  // ranks at fault, ascending (kUnrecorded: perhaps at fault); empty: none known
  std::string what;                     // description, one or several sentences
  std::string advice;                   // what the user can do; empty: nothing to do
};

// Diagnoses one communicator. `recordings` contains at most one recording for each rank, sorted by rank. `now_ns` is
// the present time in nanoseconds since 1970.
Verdict diagnose(std::span<const Recording> recordings, std::int64_t now_ns);

// The state of the rank's process, in one word: "running", "stopped", "dead", ... The word is "ended" if the rank has
// destroyed its communicator, and "elsewhere" if the state is unknown.
std::string state_of(const Recording& recording);
// The call in which the rank is, or its last one, for example "in all_reduce #6 (...) for 3.2 s", "after all_reduce #5
// (...), 2.0 s ago", "after a failed ...", "before its first call".
std::string call_state_of(const Recording& recording, std::int64_t now_ns);

// The report for all communicators in `recordings`, which must be sorted as by read_recordings().
std::string doctor_report(std::span<const Recording> recordings, std::int64_t now_ns);

// A duration as text: "3.2 s", "14 min".
std::string duration_text(std::int64_t ns);
// A list of ranks as text: "rank 2", "ranks 0, 1, 3". Long lists are shortened.
std::string rank_list(std::span<const std::uint32_t> ranks);

// Splits recordings, sorted as by sort_recordings(), into groups with the same job, communicator and number of ranks.
std::vector<std::span<const Recording>> by_communicator(std::span<const Recording> recordings);

}  // namespace tutti::tool
