// The event engine: simulates the steps of all ranks in the order of time, for the models kEvents and kFlows of
// model/simulate.h. A port (NIC) serves the messages of all its senders: one at a time with kEvents, and possibly
// several with kFlows, if one does not use its whole bandwidth (model/port_queue.h). If there are more ranks than
// cores, ranks wait for a core. Durations may have jitter. With kFlows, messages share the bandwidth of links
// (model/flows.h). Internal to this folder: simulate() runs it. Used by one thread.
//
// A step is put into a heap of events as soon as the times of everything that it waits for are known: normally with
// its end time. If cores are shared, it is put there first with the time from which it needs a core. If links are
// shared, it is put there first with the time at which its bytes start to move. So each channel has at most one
// event in the heap that is not obsolete, and the events of all channels are processed in ascending order of time.
// Therefore ports and cores are given to messages and ranks in the order of time.
#pragma once

#include <cstdint>
#include <vector>

#include "model/costs.h"
#include "model/link_loads.h"
#include "model/programs.h"
#include "model/simulate.h"
#include "model/sweep.h"
#include "tutti/result.h"

namespace tutti {

struct EventInputs {
  const Programs& programs;
  // for all places: costs.places() is programs.places(); the engine calls set_bytes()
  Costs& costs;
  const Network& network;
  const Parameters& parameters;
  const SimulateOptions& options;
  // the numbers of tiles and the lengths of their chunks
  TileCounts tiles;
  // Not null: the model kFlows, in which messages share links. Null: the model kEvents, in which they do not.
  const LinkCounts* links = nullptr;
};

struct EventResult {
  // the time at which the last rank that is not dead has finished; Parameters::launch_us is not included
  double time_us = 0;
  // the steps of the ranks below SimulateOptions::traced_ranks, in the order of their ends; at most kMostTraced
  std::vector<TracedStep> trace{};
};

// Errors: kPeerLost if other ranks wait for a message or a credit of a dead rank for ever; kInvalidPlan if the plan
// does not run to its end for another reason; kUnsupported if the state would need more than about kMostTimes numbers,
// or if there are 2^32 channels or more.
Result<EventResult> run_events(const EventInputs& inputs);

}  // namespace tutti
