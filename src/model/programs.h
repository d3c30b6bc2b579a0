// Programs: a plan in the form that the simulator uses. It contains the programs of the ranks that differ, as flat
// arrays, and the connections between them. A value that is built once for each plan, and may be read by any
// thread.
//
// Ranks r and r + P' run the same program with shifted peers (model/rotation.h). Rank r belongs to class c = r mod
// P' and has the place s = r / P' in it. A connection here goes from a thread (a channel) of one class to a thread
// of another. It stands for one connection per place: the connection of the sender at place s ends at the receiver
// at place s + `places`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Limit on the steps of one plan, all classes together. They need about 1 GB.
inline constexpr std::uint64_t kMostProgramSteps = 40'000'000;
// Limit on the number of ranks with different programs, as trees have. Each of them needs about 3 KB, with its
// connections (measured: 277 MB for the double tree of 100,000 ranks).
inline constexpr std::uint32_t kMostPrograms = 500'000;

struct ProgramStep {
  // Index into lists: first the connections of the receives, then those of the sends.
  std::uint32_t list_begin = 0;
  std::uint16_t receives = 0;
  std::uint16_t sends = 0;
  std::uint16_t operands = 0;  // operands of the sum, including the local one
  std::uint16_t waits = 0;     // number of entries of Programs::waits, starting with wait_begin
  std::uint32_t wait_begin = 0;
  std::int32_t mark = -1;   // index of the mark that records the end of this step; -1: other steps do not wait for it
  std::uint8_t copies = 0;  // 1: the value is stored, or received without being sent on
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(ProgramStep) == 24);

struct Wait {
  std::uint32_t mark = 0;
  std::uint32_t tiles_before = 0;  // 0 or 1
};

struct ProgramThread {
  std::uint32_t rank_class = 0;
  std::uint16_t channel = 0;
  std::uint64_t first_step = 0;
  std::uint32_t steps = 0;
};

struct ProgramConnection {
  std::uint32_t from = 0;      // thread
  std::uint32_t to = 0;        // thread
  std::uint32_t offset = 0;    // to_rank = from_rank + offset modulo ranks
  std::uint32_t places = 0;    // to_place = from_place + places modulo the number of places
  std::uint32_t per_tile = 0;  // number of messages per tile
};

struct Programs {
  std::uint32_t ranks = 1;
  std::uint32_t classes = 1;
  bool rooted = false;                      // the collective has a root
  std::uint32_t slots = 1;                  // slots per connection that the plan requires
  std::vector<ProgramThread> threads;       // ordered by class, then channel; channels without steps are left out
  std::vector<std::uint32_t> first_thread;  // indexed by class, with one more entry at the end
  std::vector<ProgramStep> steps;
  std::vector<std::uint32_t> lists;
  std::vector<Wait> waits;
  std::vector<ProgramConnection> connections;
  std::vector<std::uint32_t> mark_threads;  // indexed by mark: the thread of its step

  std::uint32_t places() const { return ranks / classes; }
  std::uint64_t messages_of_tile() const;  // of all ranks
};

// Errors: kUnsupported if there are more than kMostPrograms, or if they have more than kMostProgramSteps;
// kInvalidPlan if a message has no receiver or no sender. `check_first` is called with the plan of rank 0 before the
// plans of the other ranks are built, which may take seconds and gigabytes. If it returns an error,
// make_programs() returns that error.
using CheckFirstRank = std::function<Status(const RankPlan& first, std::uint32_t classes)>;
Result<Programs> make_programs(const Generator& generator, const CheckFirstRank& check_first = {});

}  // namespace tutti
