// Environment: the objects outside of a communicator on which the communicator depends, for example the clock, the
// waiter, the transport to its peers, and the log. They are passed to the communicator, so the same code runs in the
// real environment (make_environment()), between processes or threads, and in a simulation that a seed determines
// (tests/communicator).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/wait.h"
#include "job/recorder.h"
#include "job/verified_plan_cache.h"
#include "plan/machine_choices.h"
#include "transports/transport.h"

namespace tutti {

struct Environment {
  std::shared_ptr<Clock> clock;  // shared by a rank's communicators, and by the ranks of one create_all()
  // Decides how a rank waits when it cannot continue.
  std::unique_ptr<Waiter> waiter;
  std::unique_ptr<Transport> transport;  // the connections to the other ranks, over a network or shared memory
  // Shared by a rank's communicators, and by the ranks of one create_all(), so that they do not verify a plan again.
  std::shared_ptr<VerifiedPlanCache> plan_cache;
  std::vector<std::uint32_t> nodes{};  // the machine of each rank; empty if all ranks are on one machine
  // Number of CPUs on which at least one of the communicator's ranks on rank 0's machine may run. A limit of the cgroup
  // is not applied. 0 if unknown.
  std::uint32_t cores = 0;
  // How calls inside a machine are carried out (choices_of() in selection/tuning.h). The same on all ranks.
  MachineChoices choices = default_choices(2, 0);
  Log log{LogLevel::kWarn, 0};
  std::unique_ptr<Recorder> recorder{};  // null if nothing is recorded
};

}  // namespace tutti
