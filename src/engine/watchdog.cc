#include "engine/watchdog.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tutti {
namespace {

// How long a send or receive must look hopeless, without a break, before its exchange fails.
constexpr std::int64_t kSuspicionNs = 100'000'000;
// How long the data of a collective may take to arrive from a peer that has finished the call and sends nothing more,
// because it has left or aborted, was lost or became unreachable, or because a later call broke its communicator. After
// that time without progress the call fails.
constexpr std::int64_t kLostNs = 2'000'000'000;
// If the clock was not read for at least this time, and for at least a quarter of an operation's timeout, this process
// is assumed to have been stopped.
constexpr std::int64_t kMaxClockGapNs = 100'000'000;
// Maximum number of deadline extensions without progress. There is a limit because a caller that calls test() only
// rarely looks like a process that was stopped, each time, and would otherwise never time out.
constexpr std::uint32_t kMaxExtensions = 3;
// Shortest time between two looks at the peers' status boards, unless a deadline has passed.
constexpr std::int64_t kLookEveryNs = 5'000'000;

// Returns the suspicion if every check of the last `lasting_ns` has found one and the operation made no progress
// meanwhile; otherwise returns nothing. A check without a suspicion restarts the time.
std::optional<Diagnosis> confirmed(Operation& operation, std::optional<Diagnosis> suspicion, std::int64_t now_ns,
                                   std::int64_t lasting_ns) {
  if (!suspicion) operation.suspected_ns = 0;
  if (suspicion && operation.suspected_ns == 0) operation.suspected_ns = now_ns;
  if (suspicion && now_ns - operation.suspected_ns < lasting_ns) suspicion.reset();
  return suspicion;
}

}  // namespace

EndedOperation Watchdog::check(std::span<const std::shared_ptr<Operation>> active) {
  const std::int64_t now_ns = context_.environment.clock->now_ns();
  const std::int64_t gap_ns = now_ns - std::exchange(last_clock_ns_, now_ns);
  bool late = false;
  for (const std::shared_ptr<Operation>& operation : active) {
    if (!operation->started) continue;
    const bool queue_moved = operation->exchange != nullptr && operation->exchange->queue_has_moved();
    if (std::exchange(operation->progressed, false) || queue_moved) {
      operation->deadline_ns = now_ns + operation->timeout_ns;
      operation->extensions = 0;
      operation->suspected_ns = 0;
      operation->waiting_since_ns = now_ns;
      if (operation == active.front()) recorder_.moved();  // recordings show only for whom the first one waits
    }
    extend_deadline(*operation, now_ns, gap_ns);
    // As in extend_deadline(): after a long gap, this rank has not processed yet the data that its peers sent
    // meanwhile.
    if (gap_ns >= kWarnAfterNs / 4) operation->waiting_since_ns = now_ns;
    late |= now_ns >= operation->deadline_ns;
  }
  if (!late && now_ns - last_look_ns_ < kLookEveryNs) return {};
  last_look_ns_ = now_ns;
  recorder_.sample_retransmissions(now_ns);  // before pump(), which may close connections
  context_.transport.pump();
  for (const std::shared_ptr<Operation>& operation : active) {
    auto error = operation->started ? staged_.ask_guard(*operation) : staged_.find_lost_stream(*operation);
    if (!error && operation->started) error = look_at(*operation, now_ns);
    if (error) return {.operation = operation, .error = std::move(error)};
    if (operation->started) warn_if_late(*operation, now_ns);
  }
  recorder_.wait(active, now_ns);
  return {};
}

// If this rank was stopped, or its clock has jumped, it has not processed yet the data that its peers sent
// meanwhile. Therefore the timeout starts again from now, at most kMaxExtensions times without progress. `gap_ns`:
// the time since the clock was read last.
void Watchdog::extend_deadline(Operation& operation, std::int64_t now_ns, std::int64_t gap_ns) {
  if (gap_ns < std::max(kMaxClockGapNs, operation.timeout_ns / 4) || operation.extensions == kMaxExtensions) return;
  ++operation.extensions;
  operation.deadline_ns = now_ns + operation.timeout_ns;
  if (operation.suspected_ns != 0) operation.suspected_ns = now_ns;
}

// Logs one warning for an operation that has waited for kWarnAfterNs. The operation goes on, because this rank cannot
// know whether a late rank hangs, or is busy with something that takes long, for example a checkpoint. There is no
// warning for next_sender(), which waits for any rank, so no rank is late.
void Watchdog::warn_if_late(Operation& operation, std::int64_t now_ns) const {
  const std::int64_t waited_ns = now_ns - operation.waiting_since_ns;
  if (operation.warned || operation.probes || waited_ns < kWarnAfterNs) return;
  operation.warned = true;
  const Log& log = context_.environment.log;
  if (!log.enabled(LogLevel::kWarn)) return;
  const FailureAnalyzer analyzer = context_.analyzer();
  const std::int64_t waited_s = waited_ns / 1'000'000'000;
  const std::string late = operation.plan == nullptr
                               ? analyzer.late(*operation.exchange, waited_s)
                               : analyzer.late(operation.call, waited_s, *tasks_.running(), hint_for(operation));
  log.write(LogLevel::kWarn, "{}; the call goes on, and fails after {} s without progress", late,
            operation.timeout_ns / 1'000'000'000);
}

std::optional<Error> Watchdog::look_at(Operation& operation, std::int64_t now_ns) {
  const bool late = now_ns >= operation.deadline_ns;
  const std::int64_t timeout_ms = operation.timeout_ns / 1'000'000;
  const FailureAnalyzer analyzer = context_.analyzer();
  if (operation.plan == nullptr) {
    // A reason must last for a while before it counts, because a connection that the peer opened before it left may
    // arrive after the peer's close frame.
    auto diagnosis = confirmed(operation, analyzer.look(*operation.exchange), now_ns, kSuspicionNs);
    if (!diagnosis && late) diagnosis = analyzer.timed_out(*operation.exchange, timeout_ms);
    return diagnosis ? std::optional(std::move(diagnosis->error)) : std::nullopt;
  }
  context_.connections.drop_stale(operation.call.tag);
  std::optional<Diagnosis> diagnosis = analyzer.look(operation.call);
  if (!diagnosis)
    diagnosis = confirmed(operation, analyzer.find_lost_sender(operation.call, tasks_.running()->waits_for_ranks()),
                          now_ns, kLostNs);
  if (!diagnosis && late)
    diagnosis = analyzer.timed_out(operation.call, timeout_ms, *tasks_.running(), hint_for(operation));
  if (!diagnosis) return std::nullopt;
  if (auto error = failed_.find_own_abort(operation)) return error;
  return failed_.give_up(operation, std::move(*diagnosis));
}

// A hint for the timeout message of a call on host memory, and for the warning about its long wait: the missing ranks
// may have made the same call on device memory, which their GPUs carry out without the engine. Empty if that is not
// possible, or if the call has no data.
std::string_view Watchdog::hint_for(const Operation& operation) const {
  const bool on_host = operation.start_condition == nullptr && operation.call.tag.count > 0;
  if (!on_host || !beside_devices_.load(std::memory_order_relaxed)) return {};
  return "this call is on host memory, and GPUs carry out those on their own: pass memory of one kind on all ranks";
}

}  // namespace tutti
