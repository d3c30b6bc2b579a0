// The event engine: the steps of all ranks in the order of their ends. Ports serve one message at a time, whoever sends
// it; ranks that outnumber cores wait for one; times may jitter; links may be shared (model/flows.h). Internal to this
// folder: simulate() runs it. One thread.
//
// A step is put into the heap once all that it waits for has a time, keyed by its end; so there is at most one entry
// for each channel, and what is taken out never lies before what was taken out earlier: ports and cores are handed out
// in the order of time.
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

struct EventWorld {
  const Programs& programs;
  Costs& costs;  // of all places
  const Network& network;
  const Parameters& parameters;
  const SimulateOptions& options;
  TileCounts tiles;
  const LinkCounts* links = nullptr;  // for flows; null: links are not shared
};

struct EventResult {
  double time_us = 0;  // the launch left out
  std::vector<TracedStep> trace{};
};

// Errors: kPeerLost where a dead rank keeps others from ending; kInvalidPlan where the plan does not end; kUnsupported
// where its state takes more than kMostTimes.
Result<EventResult> run_events(const EventWorld& world);

}  // namespace tutti
