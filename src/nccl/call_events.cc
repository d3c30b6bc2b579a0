#include "nccl/call_events.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "base/exceptions.h"
#include "cuda/driver.h"
#include "nccl/group.h"
#include "nccl/memory.h"

namespace tutti::nccl {
namespace {

// NCCL reports an event also if the plugin asks only for events inside it. Plugins rely on that: they need the parents.
constexpr std::uint32_t kWantCollective = kCollectiveEvent | kInnerEvents;
constexpr std::uint32_t kWantTransfer = kTransferEvent | kInnerEvents;
constexpr std::uint32_t kWantGroup = kGroupEvent | kWantCollective | kWantTransfer;
constexpr std::uint32_t kWantCollectiveApi = kCollectiveApiEvent | kWantCollective | kCopyEngineEvents;
constexpr std::uint32_t kWantTransferApi = kTransferApiEvent | kWantTransfer;
constexpr std::uint32_t kWantGroupApi =
    kGroupApiEvent | kWantGroup | kWantCollectiveApi | kWantTransferApi | kKernelLaunchEvent;

// NCCL's names of the types, by number. The plugin may keep the pointers, so they are constants, as are all other texts
// of an event.
constexpr std::array<const char*, ncclNumTypes> kTypeNames = {
    "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
    "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

const char* type_name(DataType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

// NCCL's name of the function.
const char* function_name(const GroupCall& call) {
  if (call.kind == GroupCall::CallType::kSend) return "Send";
  if (call.kind == GroupCall::CallType::kReceive) return "Recv";
  switch (call.call.kind) {
    case CollectiveKind::kAllReduce: return "AllReduce";
    case CollectiveKind::kBroadcast: return "Broadcast";
    case CollectiveKind::kReduce: return "Reduce";
    case CollectiveKind::kAllGather: return "AllGather";
    case CollectiveKind::kReduceScatter: return "ReduceScatter";
    case CollectiveKind::kAllToAll: return "AlltoAll";
    case CollectiveKind::kGather: return "Gather";
    case CollectiveKind::kScatter: return "Scatter";
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSendReceive: break;
  }
  return "Unknown";
}

bool is_collective(const GroupCall& call) { return call.kind == GroupCall::CallType::kCollective; }

bool is_on_host(const GroupCall& call) {
  return is_host_memory(call.call.input != nullptr ? call.call.input : call.call.output);
}

bool is_captured(void* stream) {
  const cuda::Driver* const driver = cuda::Driver::loaded();
  if (driver == nullptr) return false;
  auto status = cuda::CaptureStatus::kNone;
  return driver->api().stream_is_capturing(static_cast<cuda::CUstream>(stream), &status) == cuda::CUresult::kSuccess &&
         status != cuda::CaptureStatus::kNone;
}

EventDescription describe_event(const Comm& comm, std::uint64_t type, void* parent) {
  EventDescription event;
  event.type = type;
  event.parent = parent;
  event.rank = comm.rank;
  return event;
}

// The algorithm that the call uses, by Tutti's name. (For a pre-multiplied sum, which may differ, that of a sum.)
const char* algorithm_name(const GroupCall& call) {
  const CollectiveCall& its = call.call;
  const Algorithm algorithm =
      call.config.algorithm != Algorithm::kAuto
          ? call.config.algorithm
          : call.comm->communicator->auto_algorithm(its.kind, its.count, its.type, !is_on_host(call));
  return to_string(algorithm).data();  // the texts are literals, so a zero follows
}

EventDescription describe_run(const GroupCall& call, void* group) {
  const bool collective = is_collective(call);
  EventDescription event =
      describe_event(*call.comm, collective ? kCollectiveEvent : kTransferEvent, call.report.api_event);
  if (collective) {
    // The host does not know how many thread blocks a call uses on a GPU, and with which protocol.
    event.collective = {.sequence = call.report.sequence,
                        .function = function_name(call),
                        .input = call.call.input,
                        .output = call.call.output,
                        .count = call.call.count,
                        .root = static_cast<std::int32_t>(call.call.root),
                        .type = type_name(call.call.type),
                        .channels = 0,
                        .warps = 0,
                        .algorithm = algorithm_name(call),
                        .protocol = is_on_host(call) ? "host" : "unknown",
                        .group = group};
  } else {
    const bool sends = call.kind == GroupCall::CallType::kSend;
    event.transfer = {.function = function_name(call),
                      .buffer = sends ? const_cast<void*>(call.call.input) : call.call.output,
                      .type = type_name(call.call.type),
                      .count = call.call.count,
                      .peer = call.peer,
                      .channels = 0,
                      .group = group};
  }
  return event;
}

void* start_group_api(const Comm& comm, std::uint32_t mask, bool captured, int depth) {
  if ((mask & kWantGroupApi) == 0) return nullptr;
  EventDescription event = describe_event(comm, kGroupApiEvent, nullptr);
  event.group_api = {.is_captured = captured, .depth = depth};
  return comm.profiler->start(event);
}

}  // namespace

GroupEvents::GroupEvents(CommPtr first, std::uint32_t mask, bool is_captured, int depth)
    : comm_(std::move(first)), mask_(mask), event_(start_group_api(*comm_, mask, is_captured, depth)) {
  comm_->profiler->record(event_, GroupState::kStarted);
}

GroupEvents::~GroupEvents() { comm_->profiler->stop(event_); }

void GroupEvents::end() const { comm_->profiler->record(event_, GroupState::kEnding); }

void GroupEvents::add(GroupCall& call, bool is_captured) const {
  const bool collective = is_collective(call);
  if ((mask_ & (collective ? kWantCollectiveApi : kWantTransferApi)) == 0) return;
  EventDescription event = describe_event(*call.comm, collective ? kCollectiveApiEvent : kTransferApiEvent, event_);
  if (collective) {
    event.collective_api = {.function = function_name(call),
                            .count = call.call.count,
                            .type = type_name(call.call.type),
                            .root = static_cast<std::int32_t>(call.call.root),
                            .stream = call.stream,
                            .is_captured = is_captured};
  } else {
    event.transfer_api = {.function = function_name(call),
                          .count = call.call.count,
                          .type = type_name(call.call.type),
                          .stream = call.stream,
                          .is_captured = is_captured};
  }
  call.report.api_event = call.comm->profiler->start(event);
  call.comm->profiler->stop(call.report.api_event);
}

void report_call(std::unique_ptr<GroupEvents>& events, GroupCall& call, int open_groups) {
  Profiler* const profiler = call.comm->profiler.get();
  if (profiler == nullptr) return;
  // Counted even if the plugin wants no event now, so that the numbers stay the same on all ranks.
  if (is_collective(call)) call.report.sequence = profiler->count(call.call.kind);
  const std::uint32_t mask = events != nullptr ? events->mask() : Profiler::mask();
  if (mask == 0) return;
  const bool captured = is_captured(call.stream);
  if (events == nullptr) events = std::make_unique<GroupEvents>(call.comm, mask, captured, open_groups + 1);
  events->add(call, captured);
}

RunEvents::RunEvents(const GroupEvents* events, std::span<const GroupCall> calls) {
  // A failure, for example exhausted memory, only means that some events are missing.
  if (events != nullptr) runs_through([&] { start_calls(*events, calls); });
}

RunEvents::~RunEvents() {
  for (const auto& one : std::ranges::reverse_view(started_)) one.profiler->stop(one.event);
}

void RunEvents::start_calls(const GroupEvents& events, std::span<const GroupCall> calls) {
  // With room for all, nothing can fail between the start of an event and its entry in the list.
  started_.reserve(2 * calls.size());
  groups_.reserve(calls.size());
  for (const GroupCall& call : calls) {
    const Profiler* const profiler = call.comm->profiler.get();
    if (profiler == nullptr) continue;
    void* const group = (events.mask() & kWantGroup) != 0 ? group_of(*call.comm) : nullptr;
    if ((events.mask() & (is_collective(call) ? kWantCollective : kWantTransfer)) == 0) continue;
    started_.push_back({profiler, profiler->start(describe_run(call, group))});
  }
}

void* RunEvents::group_of(const Comm& comm) {
  const auto found = std::ranges::find(groups_, &comm, &std::pair<const Comm*, void*>::first);
  if (found != groups_.end()) return found->second;
  void* const event = comm.profiler->start(describe_event(comm, kGroupEvent, nullptr));
  groups_.emplace_back(&comm, event);
  started_.push_back({comm.profiler.get(), event});
  return event;
}

}  // namespace tutti::nccl
