// The host side of NCCL's device API. Kernels that use this API are compiled with NCCL's private memory layouts, so
// Tutti cannot create the objects that such kernels read: functions that would create them are refused. Functions that
// only report properties of the communicator work. All functions may be called from any thread.
#include "nccl/device_api.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "nccl/api.h"
#include "nccl/comm.h"

namespace tutti::nccl {
namespace {

constexpr int kUnknownDevice = -1;
// Bytes of a slot of the low-latency all-to-all, for ncclLLA2ACalcSlots().
constexpr int kSlotBytes = 8;

// The one-sided calls on the host (ncclPutSignal(), ncclSignal(), ncclWaitSignal()) are supported, because they need no
// kernel of the program.
constexpr bool kHasHostRma = true;

ncclResult_t refuse(const char* call, const char* instead) {
  return fail(ncclInvalidUsage, std::string(call) +
                                    ": Tutti does not have NCCL's device API, whose private layouts are compiled into "
                                    "the kernels that use it. " +
                                    instead);
}

ncclResult_t refuse_requirement(const char* call) {
  return refuse(call, "It prepares ncclDevCommCreate(), which is refused too; use the collectives of nccl.h.");
}

ncclResult_t refuse_pointer(const char* call) {
  return refuse(call,
                "Use ncclPutSignal() to write to a peer's window, and ncclWinGetUserPtr() for this rank's own memory.");
}

// The Lsa team: the ranks whose memory a kernel can reach through the device API. Tutti has no device API, so the team
// is the calling rank alone.
constexpr ncclTeam_t kAlone{.nRanks = 1, .rank = 0, .stride = 1};

ncclResult_t fill_in(const CommFacts& facts, ncclCommProperties_t* props) {
  if (props == nullptr || props->magic != NCCL_API_MAGIC || props->size < offsetof(ncclCommProperties_t, rank)) {
    return fail(ncclInvalidArgument,
                "ncclCommQueryProperties: the properties were not initialised with NCCL_COMM_PROPERTIES_INITIALIZER: "
                "start from it, because it sets their size");
  }
  const ncclCommProperties_t known{
      .size = props->size,
      .magic = props->magic,
      .version = props->version,
      .rank = facts.rank,
      .nRanks = facts.ranks,
      .cudaDev = facts.device,
      .nvmlDev = kUnknownDevice,
      .deviceApiSupport = false,
      .multimemSupport = false,
      .ginType = NCCL_GIN_TYPE_NONE,
      .nLsaTeams = facts.ranks / kAlone.nRanks,
      .hostRmaSupport = kHasHostRma,
      .railedGinType = NCCL_GIN_TYPE_NONE,
      .commHash = facts.id,
      .ginMinStride = 0,
      .ginConnectionType = NCCL_GIN_CONNECTION_NONE,
      .ginSupport = {},
      .devCommRuntimeVersionSize = 0,
      .cftSupport = false,
      .cftMulticastSupport = false,
      .cftCountedSupport = false,
  };
  // A program that was compiled with an older NCCL has a shorter struct, of which only the first `size` bytes exist.
  // In a longer struct, of a newer NCCL, the fields at the end keep the values that the program gave them.
  std::memcpy(props, &known, std::min(props->size, sizeof(known)));
  return ncclSuccess;
}

// Returns answer(facts), for the facts of the communicator `comm`. If the handle is not a communicator, or the
// communicator is being set up, returns `otherwise` and stores the error message for ncclGetLastError(). `function`
// begins this message.
template <class Answer, class Value>
Value answer_for(const char* function, ncclComm_t comm, Value otherwise, Answer&& answer) {
  Value value = otherwise;
  (void)guarded([&] {
    CommFacts facts{};
    const ncclResult_t result = facts_of(comm, function, &facts);
    if (result == ncclSuccess) value = answer(facts);
    return result;
  });
  return value;
}

// The number of member `rank` of the team in another numbering of ranks: the one in which the calling rank has the
// number `own`. For example, `own` is the caller's rank in the communicator.
int member(int own, const ncclTeam_t& team, int rank) { return own + (rank - team.rank) * team.stride; }

}  // namespace
}  // namespace tutti::nccl

using tutti::nccl::CommFacts;

TUTTI_NCCL(ncclResult_t, CommQueryProperties, ncclComm_t comm, ncclCommProperties_t* props) {
  return tutti::nccl::guarded([&] {
    CommFacts facts{};
    const ncclResult_t result = tutti::nccl::facts_of(comm, "ncclCommQueryProperties", &facts);
    return result == ncclSuccess ? tutti::nccl::fill_in(facts, props) : result;
  });
}

TUTTI_NCCL(ncclResult_t, DevCommCreate, ncclComm_t, const ncclDevCommRequirements*, ncclDevComm*) {
  return tutti::nccl::guarded([] {
    return tutti::nccl::refuse("ncclDevCommCreate", "Use the collectives of nccl.h, which choose Tutti's own kernels.");
  });
}

TUTTI_NCCL(ncclResult_t, DevCommDestroy, ncclComm_t, const ncclDevComm*) {
  return tutti::nccl::guarded([] {
    return tutti::nccl::refuse("ncclDevCommDestroy", "This one was not made by Tutti, and there is nothing to free.");
  });
}

TUTTI_NCCL(ncclResult_t, GetLsaDevicePointer, ncclWindow_t, std::size_t, int, void**) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetLsaDevicePointer"); });
}

TUTTI_NCCL(ncclResult_t, GetLsaMultimemDevicePointer, ncclWindow_t, std::size_t, void**) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetLsaMultimemDevicePointer"); });
}

TUTTI_NCCL(ncclResult_t, GetMultimemDevicePointer, ncclWindow_t, std::size_t, ncclMultimemHandle_t, void**) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetMultimemDevicePointer"); });
}

TUTTI_NCCL(ncclResult_t, GetPeerDevicePointer, ncclWindow_t, std::size_t, int, void**) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetPeerDevicePointer"); });
}

TUTTI_NCCL(ncclResult_t, GetMultimemDeviceLeInfo, ncclWindow_t, std::size_t, ncclCftLeId*, std::size_t*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetMultimemDeviceLeInfo"); });
}

TUTTI_NCCL(ncclResult_t, GetCftDeviceLeInfo, ncclWindow_t, std::size_t, int, ncclTeam_t, ncclCftLeId*, std::size_t*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetCftDeviceLeInfo"); });
}

TUTTI_NCCL(ncclResult_t, GetPeerDeviceLeInfo, ncclWindow_t, std::size_t, int, ncclCftLeId*, std::size_t*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_pointer("ncclGetPeerDeviceLeInfo"); });
}

TUTTI_NCCL(ncclTeam_t, TeamCft, ncclComm_t comm, ncclCftTeamMode_t) {
  return tutti::nccl::answer_for("ncclTeamCft", comm, ncclTeam_t{},
                                 [](const CommFacts&) { return tutti::nccl::kAlone; });
}

TUTTI_NCCL(ncclTeam_t, TeamCftMultimem, ncclComm_t comm) {
  return tutti::nccl::answer_for("ncclTeamCftMultimem", comm, ncclTeam_t{},
                                 [](const CommFacts&) { return tutti::nccl::kAlone; });
}

TUTTI_NCCL(ncclTeam_t, TeamWorld, ncclComm_t comm) {
  return tutti::nccl::answer_for("ncclTeamWorld", comm, ncclTeam_t{}, [](const CommFacts& facts) {
    return ncclTeam_t{.nRanks = facts.ranks, .rank = facts.rank, .stride = 1};
  });
}

TUTTI_NCCL(ncclTeam_t, TeamLsa, ncclComm_t comm) {
  return tutti::nccl::answer_for("ncclTeamLsa", comm, ncclTeam_t{},
                                 [](const CommFacts&) { return tutti::nccl::kAlone; });
}

TUTTI_NCCL(ncclTeam_t, TeamRail, ncclComm_t comm) {
  return tutti::nccl::answer_for("ncclTeamRail", comm, ncclTeam_t{}, [](const CommFacts& facts) {
    constexpr int kTeam = tutti::nccl::kAlone.nRanks;
    return ncclTeam_t{.nRanks = facts.ranks / kTeam, .rank = facts.rank / kTeam, .stride = kTeam};
  });
}

TUTTI_NCCL(int, TeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank) {
  return tutti::nccl::answer_for("ncclTeamRankToWorld", comm, -1,
                                 [&](const CommFacts& facts) { return tutti::nccl::member(facts.rank, team, rank); });
}

TUTTI_NCCL(int, TeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank) {
  return tutti::nccl::answer_for("ncclTeamRankToLsa", comm, -1, [&](const CommFacts&) {
    return tutti::nccl::member(tutti::nccl::kAlone.rank, team, rank);
  });
}

TUTTI_NCCL(ncclResult_t, LsaBarrierCreateRequirement, ncclTeam_t, int, ncclLsaBarrierHandle*,
           ncclDevResourceRequirements*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_requirement("ncclLsaBarrierCreateRequirement"); });
}

TUTTI_NCCL(ncclResult_t, GinBarrierCreateRequirement, ncclComm_t, ncclTeam_t, int, ncclGinBarrierHandle*,
           ncclDevResourceRequirements*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_requirement("ncclGinBarrierCreateRequirement"); });
}

TUTTI_NCCL(ncclResult_t, LLA2ACreateRequirement, int, int, ncclLLA2AHandle*, ncclDevResourceRequirements*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_requirement("ncclLLA2ACreateRequirement"); });
}

TUTTI_NCCL(ncclResult_t, GinOutboxCreateRequirement, int, int, ncclGinOutboxHandle*, ncclDevResourceRequirements*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_requirement("ncclGinOutboxCreateRequirement"); });
}

TUTTI_NCCL(ncclResult_t, GinInboxA2ACreateRequirement, ncclTeam_t, int, int, ncclGinInboxA2AHandle*,
           ncclDevResourceRequirements*) {
  return tutti::nccl::guarded([] { return tutti::nccl::refuse_requirement("ncclGinInboxA2ACreateRequirement"); });
}

TUTTI_NCCL(int, LLA2ACalcSlots, int maxElts, int maxEltSize) {
  if (maxElts <= 0 || maxEltSize <= 0) return 0;
  const std::int64_t each = (std::int64_t{maxEltSize} + tutti::nccl::kSlotBytes - 1) / tutti::nccl::kSlotBytes;
  return static_cast<int>(std::min<std::int64_t>(maxElts * each, std::numeric_limits<int>::max()));
}

// Does nothing. TUTTI_LOG is read whenever a communicator is created, so it need not be read again. NCCL_DEBUG is read
// only once in a process (process_settings()), so a later change of this variable has no effect.
TUTTI_NCCL(void, ResetDebugInit, void) {}
// The same function under a second name, which has no variant "pnccl...". NVIDIA's library exports it, but its headers
// do not declare it.
extern "C" TUTTI_API void ncclResetDebugInitInternal() {}
