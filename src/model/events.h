// The event engine: simulates the steps of all ranks in the order of their end times. A port serves one message at
// a time, from any of its senders. If there are more ranks than cores, ranks wait for a core. Durations may have
// jitter. Links may be shared (model/flows.h). Internal to this folder: simulate() runs it. Used by one thread.
//
// A step is put into the heap, with its end time, as soon as the times of all events that it waits for are known.
// So each channel has at most one event in the heap, and events are removed in ascending order of time. Therefore
// ports and cores are assigned in the order of time.
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
  Costs& costs;  // for all places
  const Network& network;
  const Parameters& parameters;
  const SimulateOptions& options;
  TileCounts tiles;
  const LinkCounts* links = nullptr;  // needed for flows; null: links are not shared
};

struct EventResult {
  double time_us = 0;  // without the launch
  std::vector<TracedStep> trace{};
};

// Errors: kPeerLost if a dead rank prevents other ranks from finishing; kInvalidPlan if the plan does not run to
// its end; kUnsupported if the state would need more than kMostTimes numbers.
Result<EventResult> run_events(const EventInputs& inputs);

}  // namespace tutti
