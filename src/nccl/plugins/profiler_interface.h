// The binary interface of NCCL's profiler plugins, versions 4, 5 and 6, in declarations of our own. The layouts,
// numbers and symbols are facts of NCCL 2.30 (plugins/profiler and src/include/plugin/profiler in its sources). The
// plugin exports ncclProfiler_v4 (_v5, _v6) of the type ProfilerTableV4 (V5 for both 5 and 6).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "nccl.h"
#include "nccl/plugins/plugin_log.h"

namespace tutti::nccl {

// The types of events, as bits of a mask. Tutti has the events that a comment describes; the other bits are listed
// because an event is also reported if the plugin asks only for events that NCCL reports inside it.
enum ProfiledEvent : std::uint32_t {
  kGroupEvent = 1u << 0,       // the calls of one communicator that run together
  kCollectiveEvent = 1u << 1,  // one collective, while it runs
  kTransferEvent = 1u << 2,    // one send or receive, while it runs
  kProxyOpEvent = 1u << 3,
  kProxyStepEvent = 1u << 4,
  kProxyControlEvent = 1u << 5,
  kKernelChannelEvent = 1u << 6,
  kNetPluginEvent = 1u << 7,
  kGroupApiEvent = 1u << 8,       // from the first call of a group to the end of ncclGroupEnd()
  kCollectiveApiEvent = 1u << 9,  // the function of a collective, for example ncclAllReduce()
  kTransferApiEvent = 1u << 10,   // ncclSend() or ncclRecv()
  kKernelLaunchEvent = 1u << 11,
  kCopyEngineEvent = 1u << 12,
  kCopyEngineSyncEvent = 1u << 13,
  kCopyEngineBatchEvent = 1u << 14,
};
// The events that NCCL reports inside a collective or a transfer, which Tutti does not have.
inline constexpr std::uint32_t kInnerEvents = kProxyOpEvent | kProxyStepEvent | kKernelChannelEvent | kNetPluginEvent;
inline constexpr std::uint32_t kCopyEngineEvents = kCopyEngineEvent | kCopyEngineSyncEvent | kCopyEngineBatchEvent;

// The states of a group of calls that are reported (numbers of NCCL).
enum class GroupState : std::int32_t { kStarted = 23, kEnding = 24 };

// The description of an event. It has the layout of version 6. Version 5 has the same size and the same members, except
// those for copy engines. Version 4 has a type of one byte, which is the first byte of `type` on little-endian
// machines, and no `group` members, which are the last ones; the other members have the same offsets.
struct EventDescription {
  struct GroupApi {
    bool is_captured;    // in a CUDA graph
    std::int32_t depth;  // 1: a call outside of groups; n + 1: n groups are open
  };
  struct CollectiveApi {
    const char* function;
    std::size_t count;
    const char* type;
    std::int32_t root;
    void* stream;
    bool is_captured;
  };
  struct TransferApi {
    const char* function;
    std::size_t count;
    const char* type;
    void* stream;
    bool is_captured;
  };
  struct Collective {
    std::uint64_t sequence;  // among the communicator's calls of this function, from 0
    const char* function;
    const void* input;
    void* output;
    std::size_t count;
    std::int32_t root;
    const char* type;
    std::uint8_t channels;
    std::uint8_t warps;
    const char* algorithm;
    const char* protocol;
    void* group;  // handle of the kGroupEvent
  };
  struct Transfer {
    const char* function;
    void* buffer;
    const char* type;
    std::size_t count;
    std::int32_t peer;
    std::uint8_t channels;
    void* group;
  };

  std::uint64_t type = 0;  // one ProfiledEvent
  void* parent = nullptr;  // handle of the event around this one; null: it has none, or is not recorded
  std::int32_t rank = 0;
  union {
    GroupApi group_api;
    CollectiveApi collective_api;
    TransferApi transfer_api;
    Collective collective;
    Transfer transfer;
  };

  EventDescription() : collective{} {}
};
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(EventDescription) == 112 && offsetof(EventDescription, rank) == 16);
static_assert(offsetof(EventDescription, collective) == 24 && offsetof(EventDescription, collective.protocol) == 96);
static_assert(offsetof(EventDescription, transfer.peer) == 56 && offsetof(EventDescription, transfer.group) == 64);
static_assert(offsetof(EventDescription, collective_api.is_captured) == 64);
static_assert(offsetof(EventDescription, transfer_api.is_captured) == 56);

// The arguments of a change of state; unused by the states of groups.
struct StateArguments {
  std::uint64_t value = 0;
};

using EventStart = ncclResult_t (*)(void* context, void** handle, EventDescription* event);
using EventStop = ncclResult_t (*)(void* handle);
using EventState = ncclResult_t (*)(void* handle, std::int32_t state, StateArguments* arguments);
using ProfilerEnd = ncclResult_t (*)(void* context);

struct ProfilerTableV4 {
  const char* name;
  ncclResult_t (*init)(void** context, int* mask, const char* comm_name, std::uint64_t comm_id, int nodes, int ranks,
                       int rank, PluginLogger log);
  EventStart start_event;
  EventStop stop_event;
  EventState record_event_state;
  ProfilerEnd finalize;
};
struct ProfilerTableV5 {  // also version 6
  const char* name;
  ncclResult_t (*init)(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int nodes, int ranks,
                       int rank, PluginLogger log);
  EventStart start_event;
  EventStop stop_event;
  EventState record_event_state;
  ProfilerEnd finalize;
};
static_assert(sizeof(ProfilerTableV4) == 6 * sizeof(void*) && sizeof(ProfilerTableV5) == sizeof(ProfilerTableV4));

}  // namespace tutti::nccl
