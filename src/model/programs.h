// Programs: a plan in the form that the simulator uses. It contains the programs of the ranks (only one program for
// several ranks if theirs are alike), as flat arrays, and the connections between them. A value; may be read by any
// thread.
//
// Ranks r and r + P' run the same program, with P' added to the peers (rotation_period() computes P'). So there are
// P' classes: rank r belongs to class r mod P', and its place in the class is r / P' (rounded down). A thread is a
// channel of a class, and stands for that channel of every rank of the class. A connection goes from a thread of
// one class to a thread of the same or another class, and stands for one connection per place: that of the sender
// at place s ends at the receiver at place s + ProgramConnection::places, modulo the number of places.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Limit on the number of steps of the programs of all classes together. That many steps need about 1 GB.
inline constexpr std::uint64_t kMostProgramSteps = 40'000'000;
// Limit on the number of classes. Trees have one class for each rank. A class of a tree needs about 3 KB, with its
// connections (measured: 277 MB for the double tree of 100,000 ranks).
inline constexpr std::uint32_t kMostPrograms = 500'000;

struct ProgramStep {
  // Index into Programs::lists. There, the connections of the receives come first, then those of the sends.
  std::uint32_t list_begin = 0;
  // number of messages that the step receives
  std::uint16_t receives = 0;
  // number of messages that the step sends
  std::uint16_t sends = 0;
  // number of values that the step adds: the received ones, and the local one if there is one
  std::uint16_t operands = 0;
  // number of entries of Programs::waits for this step
  std::uint16_t waits = 0;
  // index in Programs::waits of the first entry for this step
  std::uint32_t wait_begin = 0;
  // Number of the mark that records when this step ended, because another channel waits for it. -1: no channel
  // waits for it.
  std::int32_t mark = -1;
  // 1 if the step copies its value, which means that it stores the value. Otherwise 0. A step that only receives
  // always has 1, because every step of a valid plan stores or sends.
  std::uint8_t copies = 0;
  std::uint8_t reserved[3] = {};
  // Step::run: number of chunks that the step handles, and that each of its messages carries
  std::uint32_t run = 1;
};
static_assert(sizeof(ProgramStep) == 28);

// A step waits until the step with this mark, in another channel of the same rank, has ended in the same tile
// (tiles_before 0) or in the tile before (1).
struct Wait {
  std::uint32_t mark = 0;
  std::uint32_t tiles_before = 0;  // 0 or 1
};

struct ProgramThread {
  // the class, and also the number of its first rank
  std::uint32_t rank_class = 0;
  // number of the channel in the plan of the rank
  std::uint16_t channel = 0;
  // index into Programs::steps
  std::uint64_t first_step = 0;
  // number of steps for one tile
  std::uint32_t steps = 0;
};

struct ProgramConnection {
  // the thread that sends, an index into Programs::threads
  std::uint32_t from = 0;
  // the thread that receives, an index into Programs::threads
  std::uint32_t to = 0;
  // rank of the receiver = (rank of the sender + offset) modulo ranks
  std::uint32_t offset = 0;
  // place of the receiver = (place of the sender + places) modulo the number of places
  std::uint32_t places = 0;
  // number of messages that one sender sends for one tile
  std::uint32_t per_tile = 0;
  // number of chunks that these messages carry together
  std::uint32_t chunks_per_tile = 0;
};

struct Programs {
  // number of ranks of the plan
  std::uint32_t ranks = 1;
  // number of classes, called P' above
  std::uint32_t classes = 1;
  // true if the collective has a root
  bool rooted = false;
  // the number of slots that each connection must have, so that the plan does not deadlock
  std::uint32_t slots = 1;
  // ordered by class, then by channel; channels without steps are left out
  std::vector<ProgramThread> threads;
  // indexed by class: the index of its first thread; with one more entry at the end, the number of threads
  std::vector<std::uint32_t> first_thread;
  std::vector<ProgramStep> steps;
  // connections of all steps, see ProgramStep::list_begin
  std::vector<std::uint32_t> lists;
  std::vector<Wait> waits;
  std::vector<ProgramConnection> connections;
  // indexed by mark: the thread of the step with this mark
  std::vector<std::uint32_t> mark_threads;
  // Indexed by connection, then by message of a tile, in the order in which they are sent: the number of chunks that
  // the message carries. Empty if PlanShape::longest_run is 1, so that each message carries one chunk.
  std::vector<std::vector<std::uint32_t>> runs;

  // number of ranks of each class
  std::uint32_t places() const { return ranks / classes; }
  // number of messages that all ranks together send for one tile
  std::uint64_t messages_of_tile() const;
  // Number of chunks that a message of a connection carries. `message` counts the messages of one sender from the
  // beginning of the call, from 0.
  std::uint32_t run_of(std::uint32_t connection, std::uint64_t message) const {
    return runs.empty() ? 1 : runs[connection][message % connections[connection].per_tile];
  }
};

// make_programs() calls this with the plan of rank 0 before it builds the plans of the other ranks, because these may
// take seconds and gigabytes. If this returns an error, make_programs() returns that error.
using CheckFirstRank = std::function<Status(const RankPlan& first, std::uint32_t classes)>;
// Builds the plans of the first rank of each class, and converts them. `check_first` may be empty. Errors: kUnsupported
// if there are more than kMostPrograms classes, or if they have, or probably have, too many steps (kMostProgramSteps);
// kInvalidPlan if a connection has no receiver or no sender; that of check_first().
Result<Programs> make_programs(const Generator& generator, const CheckFirstRank& check_first = {});

}  // namespace tutti
