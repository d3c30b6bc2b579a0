// The host functions of NCCL's device API, which libnccl exports and nccl.h does not declare: programs have them from
// NCCL's nccl_device.h. Layouts and numbers are those of 2.30.7.
//
// What passes by pointer and is never filled in here stays incomplete. Only src/nccl/device_api.cc and the tests use
// this file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl.h"

extern "C" {

// Member i of a team is the world's rank `world rank of the caller + (i - rank) * stride`.
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
};
using ncclCommProperties_t = ncclCommProperties;
static_assert(sizeof(ncclCommProperties) == 56);
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

// Sets *props to the properties of the communicator. NCCL's initializer has set its first fields: the size of the
// structure, a magic number and the version. At most `size` bytes are written, because a program that was built for an
// older NCCL has a shorter structure. cudaDev is -1 if the communicator has no GPU. nvmlDev is always -1, because the
// number that NVML gives to the GPU is not looked up.
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);

// Refused.
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements* reqs, ncclDevComm* outDevComm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm* devComm);

// Refused.
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, std::size_t offset, int lsaRank, void** outPtr);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, std::size_t offset, void** outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, std::size_t offset, ncclMultimemHandle_t multimem,
                                          void** outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, std::size_t offset, int peer, void** outPtr);

// All ranks; those whose memory kernels of this rank reach by the device API: this one alone; one rank of each of
// those. A communicator that is not one gives a team of no ranks.
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);

// The rank in the world, or in the team of ncclTeamLsa(), of a team's member. Plain arithmetic: that there is such a
// rank is the caller's affair. -1: not a communicator.
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

// Refused, as they serve ncclDevCommCreate() only.
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

// Slots of 8 bytes for so many elements of maxEltSize bytes.
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);

}  // extern "C"
