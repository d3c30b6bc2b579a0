// Environment: everything outside that a communicator is handed: time, waiting, the way to its peers, the log. The same
// production code runs in the real environment (make_environment), among threads of one process, and in a simulation
// from one seed (tests/communicator).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/wait.h"
#include "job/recorder.h"
#include "job/verified_plan_cache.h"
#include "transports/transport.h"

namespace tutti {

struct Environment {
  std::shared_ptr<Clock> clock;                   // shared by the ranks of one process
  std::unique_ptr<Waiter> waiter;                 // scheduling: what a rank does when it cannot go on
  std::unique_ptr<Transport> transport;           // network and memory
  std::shared_ptr<VerifiedPlanCache> plan_cache;  // shared by the ranks of one process: a plan is proved once
  std::vector<std::uint32_t> nodes{};             // the machine of each rank; empty: all on one
  std::uint32_t cores = 0;                        // that the ranks of rank 0's machine may use together; 0: not known
  Log log{LogLevel::kWarn, 0};
  std::unique_ptr<Recorder> recorder{};  // null: nothing is recorded
};

}  // namespace tutti
