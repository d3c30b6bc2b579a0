// The host functions of NCCL's device API. libnccl exports these functions, but nccl.h does not declare them: programs
// get the declarations from NCCL's nccl_device.h. The layouts and constants are those of NCCL 2.32.3.
//
// Types that are only passed by pointer, and that Tutti never reads or writes, stay incomplete. Only
// src/nccl/device_api.cc and the tests use this file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl.h"

extern "C" {

// A team: `nRanks` ranks of a communicator, with a constant stride between them. `rank` is the caller's number in the
// team. Member i of the team has rank `R + (i - rank) * stride` in the communicator, if R is the caller's rank there.
struct ncclTeam {
  int nRanks, rank, stride;
};
using ncclTeam_t = ncclTeam;
static_assert(sizeof(ncclTeam) == 12);

struct ncclMultimemHandle {
  void* mcBasePtr;
};
using ncclMultimemHandle_t = ncclMultimemHandle;

enum ncclGinType_t : std::uint32_t {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4,
  NCCL_GIN_TYPE_EFA_GDA = 5,
};

enum ncclGinConnectionType_t : std::uint32_t {
  NCCL_GIN_CONNECTION_NONE,
  NCCL_GIN_CONNECTION_FULL,
  NCCL_GIN_CONNECTION_RAIL,
  NCCL_GIN_CONNECTION_CUSTOM_STRIDE,
};

// A number of an endpoint of the compute fabric transport (CFT), which Tutti does not have.
using ncclCftLeId = std::uint32_t;

enum ncclCftTeamMode_t : std::uint32_t {
  NCCL_CFT_TEAM_FLAT,
  NCCL_CFT_TEAM_HIER_MULTIMEM,
  NCCL_CFT_TEAM_HIER_LSA,
};

struct ncclCommProperties {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
  std::uint64_t commHash;
  int ginMinStride;
  ncclGinConnectionType_t ginConnectionType;
  bool ginSupport[64];
  std::size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
};
using ncclCommProperties_t = ncclCommProperties;
static_assert(sizeof(ncclCommProperties) == 152);
static_assert(offsetof(ncclCommProperties, commHash) == 56 && offsetof(ncclCommProperties, ginSupport) == 72);
static_assert(offsetof(ncclCommProperties, devCommRuntimeVersionSize) == 136);
static_assert(offsetof(ncclCommProperties, rank) == 16 && offsetof(ncclCommProperties, deviceApiSupport) == 32);
static_assert(offsetof(ncclCommProperties, ginType) == 36 && offsetof(ncclCommProperties, nLsaTeams) == 40);
static_assert(offsetof(ncclCommProperties, hostRmaSupport) == 44 && offsetof(ncclCommProperties, railedGinType) == 48);

struct ncclDevComm;
struct ncclDevCommRequirements;
struct ncclDevResourceRequirements;
struct ncclLsaBarrierHandle;
struct ncclGinBarrierHandle;
struct ncclLLA2AHandle;
struct ncclGinOutboxHandle;
struct ncclGinInboxA2AHandle;

// Sets *props to the properties of the communicator. Before the call, the program must set the first fields (the size
// of the structure, a magic number and the version) with NCCL_COMM_PROPERTIES_INITIALIZER. At most `props->size` bytes
// are written, because a program that was built for an older NCCL has a shorter structure. cudaDev is -1 if the
// communicator has no GPU. nvmlDev is always -1, because the number that NVML gives to the GPU is not looked up.
// commHash is the number of the communicator, the same on all ranks.
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);

// Not supported: both functions always return ncclInvalidUsage.
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* reqs, ncclDevComm* outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* devComm);

// Not supported: these four functions always return ncclInvalidUsage.
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, std::size_t offset, int lsaRank, void** outPtr);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, std::size_t offset, void** outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, std::size_t offset, ncclMultimemHandle_t multimem,
                                          void** outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, std::size_t offset, int peer, void** outPtr);

// Not supported: these three functions always return ncclInvalidUsage.
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, std::size_t offset, ncclCftLeId* leId,
                                         std::size_t* leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, std::size_t offset, int peerCft, ncclTeam_t cftTeam,
                                    ncclCftLeId* leId, std::size_t* leOffset);
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, std::size_t offset, int peerWorld, ncclCftLeId* leId,
                                     std::size_t* leOffset);

// The teams that contain the calling rank. World: all ranks of the communicator. Lsa: the ranks whose memory a
// kernel of this rank can reach through the device API; because Tutti has no device API, this is the rank alone. Rail:
// one rank of each Lsa team, which is therefore all ranks. Cft and CftMultimem: the ranks that a kernel reaches through
// the compute fabric transport, which is this rank alone in any mode. If `comm` is not a communicator, or is being set
// up, the team has 0 ranks.
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);

// Convert `rank`, the number of a member of `team`, to the member's rank in the communicator, or to its number in the
// team of ncclTeamLsa(). The functions only calculate; they do not check that such a rank exists. They return -1 if
// `comm` is not a communicator, or is being set up.
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

// Not supported: these functions always return ncclInvalidUsage, because they only prepare ncclDevCommCreate(), which
// is not supported either.
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers, ncclLsaBarrierHandle* outHandle,
                                             ncclDevResourceRequirements* outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle* outHandle, ncclDevResourceRequirements* outReq);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle* outHandle,
                                        ncclDevResourceRequirements* outReq);
ncclResult_t ncclGinOutboxCreateRequirement(int nBlocks, int size_log2, ncclGinOutboxHandle* outHandle,
                                            ncclDevResourceRequirements* outReq);
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t peers, int nBlocks, int size_log2,
                                              ncclGinInboxA2AHandle* outHandle, ncclDevResourceRequirements* outReq);

// The number of 8-byte slots for `maxElts` elements of `maxEltSize` bytes each, if each element begins in a new slot;
// at most INT_MAX. 0 if one of the arguments is not positive.
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);

}  // extern "C"
