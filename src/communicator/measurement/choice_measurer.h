// ChoiceMeasurer: measures calls inside a machine, each in the ways between which MachineChoices decide. `tutti tune`
// uses it, and the ranks of a job on a machine that was not measured (first_choices.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/fit_choices.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// Times in microseconds per call.
struct CallTimes {
  double median_us = 0;
  double p95_us = 0;
};
// Measures how long a call of `body` takes, in `samples` > 0 samples of about `sample_us` microseconds (one or more
// calls each). The time of a sample is that of the slowest rank. `communicator` synchronizes the ranks; `body` may use
// another communicator of these ranks, or none. All ranks must call time_calls(), and get the same result.
Result<CallTimes> time_calls(Communicator& communicator, int samples, double sample_us,
                             const std::function<Status()>& body);

// How each way is measured (`samples` and `sample_us` are arguments of time_calls()), and when a ChoiceMeasurer ends
// early.
struct ChoiceSamples {
  int samples = 5;
  double sample_us = 500;
  // After this time, no further measurement begins. 0: no limit.
  double most_us = 0;
  // No further measurement begins either if a rank has waited for a core for longer than this part of the time, because
  // ranks or other processes share cores. 0: no limit.
  double most_waiting = 0;
};

// The ways to measure: all, or only those of short calls (one_shot and two_shot), which use no system calls.
enum class ChoiceGroups : std::uint8_t { kAll, kShortCalls };

// Used by one thread of each rank. All ranks must use the same arguments, and call run() equally often.
class ChoiceMeasurer {
 public:
  // Communicators of the same ranks, which share memory: in `by_messages` they use no system calls to access each
  // other's memory, and in `by_calls` they do so in calls of any length. If one is null, its ways are not measured. The
  // communicators must outlive this object.
  ChoiceMeasurer(Communicator* by_messages, Communicator* by_calls, ChoiceSamples samples)
      : by_messages_(by_messages), by_calls_(by_calls), samples_(samples) {}
  ~ChoiceMeasurer();
  ChoiceMeasurer(const ChoiceMeasurer&) = delete;
  ChoiceMeasurer& operator=(const ChoiceMeasurer&) = delete;

  // Measures each way of these groups once more. Errors: kSystem if there is no memory for the buffer, those of
  // Communicator::allocate(), and those of the calls.
  Status run(ChoiceGroups groups = ChoiceGroups::kAll);
  // Whether a limit was reached, so that something was not measured. The same on all ranks.
  bool has_ended() const { return ended_; }
  // What was measured, the same on all ranks.
  const std::vector<Measurement>& measured() const { return measured_; }

 private:
  using Body = std::function<Status(Communicator&)>;
  Communicator& any() const { return *(by_messages_ != nullptr ? by_messages_ : by_calls_); }
  Status begin();  // allocates the buffers, and makes the first calls
  Status warm_up();
  Result<bool> has_time();
  Status sums();
  Status copies();
  Status short_calls();
  Status measure(Communicator* communicator, MeasuredWay way, std::uint64_t bytes, const Body& body);

  Communicator* const by_messages_;
  Communicator* const by_calls_;
  const ChoiceSamples samples_;
  std::byte* data_ = nullptr;  // the buffer of ordinary memory
  Memory registered_{};
  double start_us_ = 0;  // when the first measurement began
  double start_waiting_us_ = 0;
  bool ended_ = false;
  bool failed_ = false;  // a call has failed, or a run has not ended yet
  std::vector<Measurement> measured_;
};

}  // namespace tutti::detail
