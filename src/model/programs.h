// A plan as the simulator holds it: the programs of the ranks that differ, flat, and the connections between them. A
// value; built once for each plan, read by any thread.
//
// Ranks r and r + P' run the same program, moved along (model/rotation.h): class c = r mod P' at place s = r / P'. A
// connection of the quotient joins a thread (channel) of one class to one of another, and stands for as many
// connections as there are places: that of place s of the sender ends at place s + `places` of the receiver.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Written-out steps of one plan, all classes together: about 1 GB.
inline constexpr std::uint64_t kMostProgramSteps = 40'000'000;
// Ranks with a program of their own, as trees have: some 3 KB each, with its connections (measured: 277 MB for the
// double tree of 100,000 ranks).
inline constexpr std::uint32_t kMostPrograms = 500'000;

struct ProgramStep {
  std::uint32_t list_begin = 0;  // into lists: first the connections received from, then those sent on
  std::uint16_t receives = 0;
  std::uint16_t sends = 0;
  std::uint16_t operands = 0;  // of the sum, the local one with them
  std::uint16_t waits = 0;     // into Programs::waits from the step's number in wait_begin on
  std::uint32_t wait_begin = 0;
  std::int32_t mark = -1;   // its end is waited for: index of the mark
  std::uint8_t copies = 0;  // 1: the value is stored, or only received
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
  std::uint32_t per_tile = 0;  // messages
};

struct Programs {
  std::uint32_t ranks = 1;
  std::uint32_t classes = 1;
  bool rooted = false;                      // the collective has a root
  std::uint32_t slots = 1;                  // that the plan needs
  std::vector<ProgramThread> threads;       // by class, then channel; those without steps are left out
  std::vector<std::uint32_t> first_thread;  // of each class, and the end
  std::vector<ProgramStep> steps;
  std::vector<std::uint32_t> lists;
  std::vector<Wait> waits;
  std::vector<ProgramConnection> connections;
  std::vector<std::uint32_t> mark_threads;  // of each mark: whose step it is

  std::uint32_t places() const { return ranks / classes; }
  std::uint64_t messages_of_tile() const;  // of all ranks
};

// Errors: kUnsupported where there are more than kMostPrograms, or they have more than kMostProgramSteps; kInvalidPlan
// where a message is sent that nobody receives, or the other way round. `look`: asked about rank 0's program before the
// others' are built, which may take seconds and gigabytes; what it refuses is refused.
using LookAtFirst = std::function<Status(const RankPlan& first, std::uint32_t classes)>;
Result<Programs> make_programs(const Generator& generator, const LookAtFirst& look = {});

}  // namespace tutti
