// Tests of the host functions of NCCL's device API on host memory. Tutti has no device API, so the properties say
// so, and most functions return an error with a reason.
#include "nccl/device_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

using ::testing::HasSubstr;

// Runs `body` in one thread for each rank of a communicator on host memory.
void as_ranks(int ranks, const std::function<void(ncclComm_t, int)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, ranks, id, rank), ncclSuccess) << ncclGetLastError(nullptr);
      body(comm, rank);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess) << ncclGetLastError(nullptr);
    });
  }
}

ncclCommProperties_t begun_properties() {
  ncclCommProperties_t props;
  std::memset(&props, 0x5A, sizeof(props));
  props.size = sizeof(props);
  props.magic = NCCL_API_MAGIC;
  props.version = NCCL_VERSION_CODE;
  return props;
}

TEST(DeviceApi, SaysWhatACommunicatorCannotDo) {
  std::uint64_t hashes[3] = {};
  as_ranks(3, [&](ncclComm_t comm, int rank) {
    ncclCommProperties_t props = begun_properties();
    ASSERT_EQ(ncclCommQueryProperties(comm, &props), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(props.rank, rank);
    EXPECT_EQ(props.nRanks, 3);
    EXPECT_EQ(props.nLsaTeams, 3);
    EXPECT_FALSE(props.deviceApiSupport);
    EXPECT_FALSE(props.multimemSupport);
    EXPECT_TRUE(props.hostRmaSupport);
    EXPECT_EQ(props.ginType, NCCL_GIN_TYPE_NONE);
    EXPECT_EQ(props.railedGinType, NCCL_GIN_TYPE_NONE);
    EXPECT_NE(props.commHash, 0u);
    hashes[static_cast<std::size_t>(rank)] = props.commHash;
    EXPECT_EQ(props.ginConnectionType, NCCL_GIN_CONNECTION_NONE);
    for (const bool supported : props.ginSupport) EXPECT_FALSE(supported);
    EXPECT_EQ(props.devCommRuntimeVersionSize, 0u);
    EXPECT_FALSE(props.cftSupport || props.cftMulticastSupport || props.cftCountedSupport);
    EXPECT_EQ(props.size, sizeof(props));
    int device = 0;
    const bool has_device = ncclCommCuDevice(comm, &device) == ncclSuccess;
    EXPECT_EQ(props.cudaDev, has_device ? device : -1);
  });
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

std::uint64_t hash_of(ncclComm_t comm) {
  ncclCommProperties_t props = begun_properties();
  EXPECT_EQ(ncclCommQueryProperties(comm, &props), ncclSuccess) << ncclGetLastError(comm);
  return props.commHash;
}

TEST(DeviceApi, TheHashIsThatOfAllRanksAndOfOneCommunicator) {
  std::uint64_t parents[3] = {}, split[3] = {}, shrunk[2] = {};
  as_ranks(3, [&](ncclComm_t comm, int rank) {
    parents[rank] = hash_of(comm);
    ncclComm_t child = nullptr;
    if (rank < 2) {  // rank 2 does not take part, and must have the same number for the next communicator
      int excluded = 2;
      ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT), ncclSuccess);
      shrunk[rank] = hash_of(child);
      EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
    }
    ASSERT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclSuccess);
    split[rank] = hash_of(child);
    EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  });
  EXPECT_THAT(split, testing::Each(split[0]));
  EXPECT_EQ(shrunk[1], shrunk[0]);
  EXPECT_NE(split[0], parents[0]);
  EXPECT_NE(shrunk[0], parents[0]);
  EXPECT_NE(shrunk[0], split[0]);
}

TEST(DeviceApi, WritesNoMorePropertiesThanTheProgramKnows) {
  as_ranks(1, [](ncclComm_t comm, int) {
    ncclCommProperties_t props = begun_properties();
    const ncclGinType_t before = props.railedGinType;
    props.size = offsetof(ncclCommProperties_t, railedGinType);
    ASSERT_EQ(ncclCommQueryProperties(comm, &props), ncclSuccess);
    EXPECT_EQ(props.nLsaTeams, 1);
    EXPECT_EQ(std::memcmp(&props.railedGinType, &before, sizeof(before)), 0);
  });
}

// Inside a group a communicator is not made yet, so it has no properties.
TEST(DeviceApi, HasNoPropertiesBeforeTheEndOfTheGroup) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  ncclComm_t comm = nullptr;
  ncclCommProperties_t props = begun_properties();
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  EXPECT_EQ(ncclCommQueryProperties(comm, &props), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclCommQueryProperties: the communicator is still being made"));
  EXPECT_EQ(ncclTeamWorld(comm).nRanks, 0);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommQueryProperties(comm, &props), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(DeviceApi, RefusesPropertiesThatWereNotBegun) {
  as_ranks(1, [](ncclComm_t comm, int) {
    ncclCommProperties_t props = begun_properties();
    props.magic = 1;
    EXPECT_EQ(ncclCommQueryProperties(comm, &props), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("NCCL_COMM_PROPERTIES_INITIALIZER"));
    EXPECT_EQ(ncclCommQueryProperties(comm, nullptr), ncclInvalidArgument);
    props = begun_properties();
    props.size = 8;
    EXPECT_EQ(ncclCommQueryProperties(comm, &props), ncclInvalidArgument);
  });
}

TEST(DeviceApi, CountsRanksOfTeams) {
  as_ranks(3, [](ncclComm_t comm, int rank) {
    const ncclTeam_t world = ncclTeamWorld(comm), own = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
    EXPECT_EQ(world.nRanks, 3);
    EXPECT_EQ(world.rank, rank);
    EXPECT_EQ(own.nRanks, 1);
    EXPECT_EQ(own.rank, 0);
    EXPECT_EQ(own.nRanks * rail.nRanks, world.nRanks);
    for (const ncclTeam_t& fabric : {ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT), ncclTeamCftMultimem(comm)}) {
      EXPECT_EQ(fabric.nRanks, 1) << "there is no compute fabric transport";
      EXPECT_EQ(ncclTeamRankToWorld(comm, fabric, 0), rank);
    }
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(ncclTeamRankToWorld(comm, world, peer), peer);
      EXPECT_EQ(ncclTeamRankToWorld(comm, rail, peer), peer);
      EXPECT_EQ(ncclTeamRankToLsa(comm, world, peer), peer - rank);
    }
    EXPECT_EQ(ncclTeamRankToWorld(comm, own, 0), rank);
    EXPECT_EQ(ncclTeamRankToLsa(comm, own, 0), 0);
    const ncclTeam_t every_second{.nRanks = 2, .rank = 0, .stride = 2};
    EXPECT_EQ(ncclTeamRankToWorld(comm, every_second, 1), rank + 2);
  });
}

TEST(DeviceApi, HasNoTeamsOfWhatIsNoCommunicator) {
  EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamLsa(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamRail(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamCft(nullptr, NCCL_CFT_TEAM_HIER_LSA).nRanks, 0);
  EXPECT_EQ(ncclTeamCftMultimem(nullptr).nRanks, 0);
  EXPECT_EQ(ncclTeamRankToWorld(nullptr, ncclTeam_t{}, 0), -1);
  EXPECT_EQ(ncclTeamRankToLsa(nullptr, ncclTeam_t{}, 0), -1);
  ncclCommProperties_t props = begun_properties();
  EXPECT_EQ(ncclCommQueryProperties(nullptr, &props), ncclInvalidArgument);
}

TEST(DeviceApi, RefusesTheRestInWords) {
  void* pointer = nullptr;
  const ncclTeam_t team{.nRanks = 1, .rank = 0, .stride = 1};
  const std::vector<std::pair<const char*, std::function<ncclResult_t()>>> calls = {
      {"ncclDevCommCreate", [] { return ncclDevCommCreate(nullptr, nullptr, nullptr); }},
      {"ncclDevCommDestroy", [] { return ncclDevCommDestroy(nullptr, nullptr); }},
      {"ncclGetLsaDevicePointer", [&] { return ncclGetLsaDevicePointer(nullptr, 0, 0, &pointer); }},
      {"ncclGetLsaMultimemDevicePointer", [&] { return ncclGetLsaMultimemDevicePointer(nullptr, 0, &pointer); }},
      {"ncclGetMultimemDevicePointer", [&] { return ncclGetMultimemDevicePointer(nullptr, 0, {}, &pointer); }},
      {"ncclGetPeerDevicePointer", [&] { return ncclGetPeerDevicePointer(nullptr, 0, 0, &pointer); }},
      {"ncclGetMultimemDeviceLeInfo", [] { return ncclGetMultimemDeviceLeInfo(nullptr, 0, nullptr, nullptr); }},
      {"ncclGetCftDeviceLeInfo", [&] { return ncclGetCftDeviceLeInfo(nullptr, 0, 0, team, nullptr, nullptr); }},
      {"ncclGetPeerDeviceLeInfo", [] { return ncclGetPeerDeviceLeInfo(nullptr, 0, 0, nullptr, nullptr); }},
      {"ncclLsaBarrierCreateRequirement", [&] { return ncclLsaBarrierCreateRequirement(team, 1, nullptr, nullptr); }},
      {"ncclGinBarrierCreateRequirement",
       [&] { return ncclGinBarrierCreateRequirement(nullptr, team, 1, nullptr, nullptr); }},
      {"ncclLLA2ACreateRequirement", [] { return ncclLLA2ACreateRequirement(1, 1, nullptr, nullptr); }},
      {"ncclGinOutboxCreateRequirement", [] { return ncclGinOutboxCreateRequirement(1, 1, nullptr, nullptr); }},
      {"ncclGinInboxA2ACreateRequirement",
       [&] { return ncclGinInboxA2ACreateRequirement(team, 1, 1, nullptr, nullptr); }},
  };
  for (const auto& [name, call] : calls) {
    EXPECT_EQ(call(), ncclInvalidUsage) << name;
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(std::string(name) + ": "));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("device API"));
  }
  EXPECT_EQ(pointer, nullptr);
}

// The same results as NCCL's own library: a slot has 8 bytes, and an element occupies whole slots.
TEST(DeviceApi, CountsSlots) {
  EXPECT_EQ(ncclLLA2ACalcSlots(1, 1), 1);
  EXPECT_EQ(ncclLLA2ACalcSlots(1, 8), 1);
  EXPECT_EQ(ncclLLA2ACalcSlots(1, 9), 2);
  EXPECT_EQ(ncclLLA2ACalcSlots(7, 24), 21);
  EXPECT_EQ(ncclLLA2ACalcSlots(5, 100), 65);
  EXPECT_EQ(ncclLLA2ACalcSlots(3, 0), 0);
  EXPECT_EQ(ncclLLA2ACalcSlots(-3, 8), 0);
  EXPECT_EQ(ncclLLA2ACalcSlots(1 << 30, 1 << 30), 0x7fffffff);
}

}  // namespace
