#include "nccl/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/assert.h"
#include "base/collective_table.h"
#include "base/exceptions.h"
#include "nccl/api.h"
#include "nccl/call_events.h"
#include "nccl/estimate.h"
#include "nccl/scalar.h"
#include "nccl/streams.h"
#include "tutti/group.h"

namespace tutti::nccl {
namespace {

// The value that NCCL_SIM_INFO_INITIALIZER stores in ncclSimInfo_t::magic.
constexpr unsigned kSimulationMagic = 0x74685283;

struct OpenGroup {
  int depth = 0;
  std::vector<GroupCall> calls;
  std::vector<Job> jobs;
  std::vector<OneSided> one_sided;
  ncclResult_t error = ncclSuccess;  // the first error of a call in the group
  std::string message;
  std::unique_ptr<GroupEvents> events;  // for a profiler plugin; null: none are reported
};

thread_local OpenGroup group;

OpenGroup take_group() { return std::exchange(group, {}); }

Error no_event_on_host_memory() {
  return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
          "ncclCollConfig_t: launchCompletionEvent is given, but the call is on host memory, so it launches nothing in "
          "the stream"};
}

Error only_alone() {
  return {
      ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
      "ncclCollConfig_t: tuttiNcclUniform or tuttiNcclChecksum is 1, but the communicator is nonblocking, or its group "
      "has other calls"};
}

// The options for a call. To be called at the time when the call runs, because this function waits for earlier work of
// the stream if the call is on host memory, reads the factor of a pre-multiplied sum, and records the event of the
// configuration. It makes the communicator's device current while it runs.
Result<CallOptions> options_of(const GroupCall& one) {
  const auto scope = one.comm->enter_device();
  if (!scope) return scope.error();
  CallOptions options;
  options.algorithm = one.config.algorithm;
  options.timeout = one.config.timeout;
  options.label = one.config.label;
  options.uniform = one.config.uniform;
  options.checksum = one.config.checksum;
  auto stream = order_in_stream(one.call.input != nullptr ? one.call.input : one.call.output, one.stream);
  if (!stream) return stream.error();
  options.stream = *stream;
  if (one.custom) {
    auto scale = scale_of(*one.custom, one.stream);
    if (!scale) return scale.error();
    options.scale = *scale;
  }
  if (one.config.launched != nullptr) {
    if (!options.stream) return no_event_on_host_memory();
    TUTTI_TRY(record_event(one.config.launched, *options.stream));
  }
  return options;
}

Status run_alone(const GroupCall& one, const CallOptions& options) {
  Communicator& communicator = *one.comm->communicator;
  if (one.kind == GroupCall::CallType::kCollective) return communicator.run(one.call, options);
  return one.kind == GroupCall::CallType::kSend
             ? communicator.send(one.call.input, one.call.count, one.call.type, one.peer, options)
             : communicator.receive(one.call.output, one.call.count, one.call.type, one.peer, options);
}

Status add_to(Group& all, const GroupCall& one, const CallOptions& options) {
  Communicator& communicator = *one.comm->communicator;
  if (one.kind == GroupCall::CallType::kCollective) return all.add(communicator, one.call, options);
  return one.kind == GroupCall::CallType::kSend
             ? all.send(communicator, one.call.input, one.call.count, one.call.type, one.peer, options)
             : all.receive(communicator, one.call.output, one.call.count, one.call.type, one.peer, options);
}

ncclResult_t record_failure(std::span<const GroupCall> calls, const Error& error) {
  if (error.scope != ErrorScope::kCall) {
    for (const GroupCall& one : calls) one.comm->record_error(error);
  }
  return fail(error);
}

ncclResult_t start_in_background(Group& all, std::span<const GroupCall> calls) {
  auto work = all.start();
  if (!work) return record_failure(calls, work.error());
  const auto shared = std::make_shared<Work>(*std::move(work));  // shared by all communicators of the group
  for (const GroupCall& one : calls) {
    const std::scoped_lock lock(one.comm->mutex);
    if (one.comm->pending.empty() || one.comm->pending.back() != shared) one.comm->pending.push_back(shared);
  }
  return ncclInProgress;
}

ncclResult_t run_one(const GroupCall& one) {
  const auto options = options_of(one);
  if (!options) return fail(options.error());
  const Status ran = run_alone(one, *options);
  return ran.ok() ? ncclSuccess : record_failure({&one, 1}, ran.error());
}

// Runs the calls of the group `all` together. When this function returns, calls on device memory have been enqueued in
// their streams. If `in_background` is false, calls on host memory have finished. Otherwise they continue in the
// background, and the result is ncclInProgress. `in_background`: some call is on host memory, and the communicator of
// some call is nonblocking.
ncclResult_t run_together(Group& all, std::span<const GroupCall> calls, bool in_background) {
  if (in_background) return start_in_background(all, calls);
  const Status ran = all.run();
  return ran.ok() ? ncclSuccess : record_failure(calls, ran.error());
}

// `events`: for a profiler plugin; may be null.
ncclResult_t run_calls(std::span<const GroupCall> calls, const GroupEvents* events) {
  const RunEvents run_events(events, calls);
  bool blocking = true;
  for (const GroupCall& one : calls) blocking &= one.comm->settings.blocking;
  if (calls.size() == 1 && blocking) return run_one(calls[0]);
  // Check this before options_of(), because that waits for streams and records events.
  for (const GroupCall& one : calls) {
    if (one.config.uniform || one.config.checksum) return fail(only_alone());
  }
  auto streams = JoinedStreams::fork(calls);
  if (!streams) return fail(streams.error());
  Group all;
  bool in_background = false;
  for (const GroupCall& one : calls) {
    auto options = options_of(one);
    if (!options) return fail(options.error());
    in_background |= !blocking && !options->stream;
    if (one.kind != GroupCall::CallType::kCollective && options->stream) options->stream = streams->of(one);
    const Status added = add_to(all, one, *options);
    if (!added.ok()) return fail(added.error());
  }
  const ncclResult_t result = run_together(all, calls, in_background);
  const Status joined = streams->join();
  const bool failed = result != ncclSuccess && result != ncclInProgress;
  return joined.ok() || failed ? result : fail(joined.error());
}

// Whether the open group has a call of this communicator with a launchCompletionEvent.
bool has_event(const Comm& comm) {
  return std::ranges::any_of(group.calls, [&](const GroupCall& other) {
    return other.comm.get() == &comm && other.config.launched != nullptr;
  });
}

// The algorithm of a call after the tuner plugin, if there is one, has changed the costs.
Algorithm tuned_algorithm(const GroupCall& one) {
  const Comm& comm = *one.comm;
  const CollectiveCall& call = one.call;
  const bool tunable = one.kind == GroupCall::CallType::kCollective && comm.ranks > 1 && !one.config.selects;
  if (comm.tuner == nullptr || !tunable) return one.config.algorithm;
  // A longer call is refused when it runs, and its length in bytes could not be calculated.
  constexpr std::size_t kMostElements = std::size_t{1} << 48;
  if (call.count > kMostElements) return one.config.algorithm;
  const std::size_t blocks = has_blocks(call.kind) ? static_cast<std::size_t>(comm.ranks) : 1;
  // Rounded up, so that a program with calls of many lengths does not wait for a simulation at each of them.
  const std::size_t count = std::bit_ceil(call.count);
  const auto predict = [&](Algorithm algorithm) { return estimated_us(comm, call.kind, count, call.type, algorithm); };
  return comm.tuner->choose(call.kind, call.count * blocks * size_of(call.type), predict, one.config.algorithm);
}

// Marks the communicators that the group would have created as failed, because the group is discarded without running.
void mark_failed(const OpenGroup& ended) {
  const Error error{ErrorCode::kInvalidArgument, ErrorScope::kCommunicator, -1,
                    "the group in which the communicator was to be made did not run"};
  for (const Job& job : ended.jobs) mark_failed(*job.comm, error);
}

// Runs the outermost group of this thread: first the jobs (for example the creation of communicators), then the
// collectives, sends and receives, then puts and signals, then waits for signals. After an error in one of these stages
// the later stages do not run. If a call was refused when it was added to the group, nothing runs, and that error is
// returned.
ncclResult_t end_group() {
  OpenGroup ended = take_group();
  if (ended.events != nullptr) ended.events->end();
  if (ended.error != ncclSuccess) {
    mark_failed(ended);
    return fail(ended.error, ended.message);
  }
  const ncclResult_t made = ended.jobs.empty() ? ncclSuccess : run_jobs(std::move(ended.jobs));
  if (made != ncclSuccess && made != ncclInProgress) return made;
  const ncclResult_t ran = ended.calls.empty() ? ncclSuccess : run_calls(ended.calls, ended.events.get());
  if (ran != ncclSuccess && ran != ncclInProgress) return ran;
  for (const bool waits : {false, true}) {
    for (const OneSided& one : ended.one_sided) {
      if (one.waits != waits) continue;
      if (const ncclResult_t done = one.body(); done != ncclSuccess) return done;
    }
  }
  return ran == ncclSuccess ? made : ran;
}

}  // namespace

bool group_is_open() { return group.depth > 0; }

ncclResult_t run_call(const char* function, GroupCall call) {
  call.config.algorithm = tuned_algorithm(call);
  if (!group_is_open()) {
    std::unique_ptr<GroupEvents> events;
    runs_through([&] { report_call(events, call, 0); });
    if (events != nullptr) events->end();
    return run_calls({&call, 1}, events.get());
  }
  if (call.config.launched != nullptr && has_event(*call.comm)) {
    return fail(ncclInvalidUsage,
                fmt::format("{}: another call of this group on this communicator has a launchCompletionEvent: one call "
                            "for each communicator may have one",
                            function));
  }
  constexpr std::size_t kMostCalls = 65536;
  if (group.calls.size() >= kMostCalls) {
    return fail(ncclInvalidUsage, fmt::format("{}: a group holds at most {} calls", function, kMostCalls));
  }
  runs_through([&] { report_call(group.events, call, group.depth); });
  group.calls.push_back(std::move(call));
  return ncclSuccess;
}

ncclResult_t run_job(Job job) {
  if (!group_is_open()) return run_jobs({std::move(job)});
  group.jobs.push_back(std::move(job));
  return ncclSuccess;
}

ncclResult_t run_one_sided(OneSided one) {
  if (!group_is_open()) return one.body();
  group.one_sided.push_back(std::move(one));
  return ncclSuccess;
}

ncclResult_t in_group(ncclResult_t result) noexcept {
  if (group_is_open() && result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess) {
    group.error = result;
    runs_through([] { group.message = last_error(); });  // there may be no memory for the message
  }
  return result;
}

TUTTI_NCCL(ncclResult_t, GroupStart) {
  ++group.depth;
  return ncclSuccess;
}

TUTTI_NCCL(ncclResult_t, GroupEnd) {
  return guarded([] {
    if (group.depth == 0)
      return fail(ncclInvalidUsage, "ncclGroupEnd: there is no group to end: call ncclGroupStart()");
    if (group.depth > 1) {
      --group.depth;
      return ncclSuccess;
    }
    return end_group();
  });
}

TUTTI_NCCL(ncclResult_t, GroupSimulateEnd, ncclSimInfo_t* info) {
  return guarded([&] {
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupSimulateEnd: there is no group to end");
    if (group.depth > 1) {
      --group.depth;
      return ncclSuccess;
    }
    const OpenGroup ended = take_group();
    mark_failed(ended);
    if (info == nullptr || info->magic != kSimulationMagic || info->size < sizeof(ncclSimInfo_t)) {
      return fail(
          ncclInvalidArgument,
          "ncclGroupSimulateEnd: the information is null or was not initialised with NCCL_SIM_INFO_INITIALIZER");
    }
    if (ended.error != ncclSuccess) return fail(ended.error, ended.message);
    info->estimatedTime = static_cast<float>(estimated_us(ended.calls));
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl
