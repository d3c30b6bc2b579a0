// Tests of the events that NCCL's profiler plugins get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "nccl/plugin_jobs.h"

namespace tutti::nccl_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ProfilerOfEachVersion : public NcclPluginVersions {};
INSTANTIATE_TEST_SUITE_P(NcclPlugins, ProfilerOfEachVersion, testing::Values(4, 5, 6));

TEST_P(ProfilerOfEachVersion, GetsTheEventsOfACall) {
  set("NCCL_PROFILER_PLUGIN", profiler(GetParam()));
  set("TUTTI_TEST_MASK", kCollectives);
  run(2, [](ncclComm_t comm, int rank, int) -> std::string {
    if (rank != 0) {
      unsetenv("TUTTI_TEST_PLUGIN_FILE");  // from here on, only rank 0 writes
    }
    std::vector<float> in(10, static_cast<float>(rank + 1)), out(10, -1.0F);
    for (int i = 0; i < 2; ++i) {
      TUTTI_NCCL_TRY(ncclReduce(in.data(), out.data(), in.size(), ncclFloat, ncclSum, 0, comm, nullptr));
    }
    return {};
  });
  EXPECT_THAT(lines("init"), Each(HasSubstr("init v" + std::to_string(GetParam()) + " name (null) nodes 1 ranks 2")));
  EXPECT_EQ(lines("init").size(), 2u);
  const std::string coll = " Reduce #0 count 10 ncclFloat32 root 0 channels 0 warps 0 ";
  std::vector<std::string> events = lines();
  std::erase_if(events, [](const std::string& line) {
    return line.find("init") != std::string::npos || line.find(" id ") != std::string::npos;
  });
  if (GetParam() == 4) {
    ASSERT_EQ(events.size(), 9u);
    EXPECT_EQ(events[0], "[0] 1 Group start rank 0 parent 0");
    EXPECT_THAT(events[1], StartsWith("[0] 2 Coll start rank 0 parent 1" + coll));
    EXPECT_EQ(events[2], "2 Coll stop result 3") << "it stops when the result is there";
    EXPECT_EQ(events[3], "1 Group stop");
    EXPECT_THAT(events[5], HasSubstr(" parent 3 Reduce #1 "));
    EXPECT_EQ(events[8], "[0] finalize");
    return;
  }
  ASSERT_EQ(events.size(), 21u);
  EXPECT_EQ(events[0], "[0] 1 GroupApi start rank 0 parent 0 depth 1 captured 0");
  EXPECT_EQ(events[1], "1 state 23");
  EXPECT_EQ(events[2], "[0] 2 CollApi start rank 0 parent 1 Reduce count 10 ncclFloat32 root 0 stream 0 captured 0");
  EXPECT_EQ(events[3], "2 CollApi stop");
  EXPECT_EQ(events[4], "1 state 24");
  EXPECT_EQ(events[5], "[0] 3 Group start rank 0 parent 0");
  EXPECT_THAT(events[6],
              AllOf(StartsWith("[0] 4 Coll start rank 0 parent 2 group 3" + coll), HasSubstr(" host send 1")));
  EXPECT_EQ(events[7], "4 Coll stop result 3") << "it stops when the result is there";
  EXPECT_EQ(events[8], "3 Group stop");
  EXPECT_EQ(events[9], "1 GroupApi stop");
  EXPECT_THAT(events[16], HasSubstr(" Reduce #1 "));
  EXPECT_EQ(events[20], "[0] finalize");
}

// One process with two communicators, which one group uses.
std::string call_in_group() {
  ncclComm_t comms[2] = {};
  TUTTI_NCCL_TRY(ncclCommInitAll(comms, 2, nullptr));
  float values[2] = {1, 2}, got[2] = {}, stream_values[2] = {3, 4};
  TUTTI_NCCL_TRY(ncclGroupStart());
  TUTTI_NCCL_TRY(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    TUTTI_NCCL_TRY(ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, comms[rank], nullptr));
    TUTTI_NCCL_TRY(ncclSend(&stream_values[rank], 1, ncclFloat, 1 - rank, comms[rank], nullptr));
    TUTTI_NCCL_TRY(ncclRecv(&got[rank], 1, ncclFloat, 1 - rank, comms[rank], nullptr));
  }
  TUTTI_NCCL_TRY(ncclGroupEnd());
  TUTTI_NCCL_TRY(ncclGroupEnd());
  TUTTI_NCCL_WANT(values[0] == 3 && values[1] == 3 && got[0] == 4 && got[1] == 3);
  for (const ncclComm_t comm : comms) TUTTI_NCCL_TRY(ncclCommDestroy(comm));
  return {};
}

TEST_F(NcclPlugins, AProfilerGetsTheEventsOfAGroup) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectivesAndTransfers);
  run_alone(call_in_group);
  EXPECT_THAT(lines("GroupApi"),
              ElementsAre("[0] 1 GroupApi start rank 0 parent 0 depth 3 captured 0", "1 GroupApi stop"));
  EXPECT_THAT(lines("state"), ElementsAre("1 state 23", "1 state 24"));
  EXPECT_THAT(
      lines("Api start rank 1"),
      ElementsAre("[1] 5 CollApi start rank 1 parent 1 AllReduce count 1 ncclFloat32 root 0 stream 0 captured 0",
                  "[1] 6 P2pApi start rank 1 parent 1 Send count 1 ncclFloat32 stream 0 captured 0",
                  "[1] 7 P2pApi start rank 1 parent 1 Recv count 1 ncclFloat32 stream 0 captured 0"));
  EXPECT_THAT(lines(" Group start"),
              ElementsAre("[0] 8 Group start rank 0 parent 0", "[1] 12 Group start rank 1 parent 0"));
  EXPECT_THAT(lines(" P2p start"),
              ElementsAre("[0] 10 P2p start rank 0 parent 3 group 8 Send count 1 ncclFloat32 peer 1 buff 1",
                          "[0] 11 P2p start rank 0 parent 4 group 8 Recv count 1 ncclFloat32 peer 1 buff 1",
                          "[1] 14 P2p start rank 1 parent 6 group 12 Send count 1 ncclFloat32 peer 0 buff 1",
                          "[1] 15 P2p start rank 1 parent 7 group 12 Recv count 1 ncclFloat32 peer 0 buff 1"));
  EXPECT_THAT(lines(" Coll stop"), ElementsAre("13 Coll stop result 3", "9 Coll stop result 3"));
  EXPECT_EQ(lines("start").size(), lines("stop").size());
  // The calls run after the group has ended, and everything ends before the GroupApi event.
  const std::vector<std::string> all = lines();
  const auto place = [&](const std::string& line) { return std::ranges::find(all, line) - all.begin(); };
  EXPECT_LT(place("1 state 24"), place("[0] 8 Group start rank 0 parent 0"));
  EXPECT_LT(place("8 Group stop"), place("1 GroupApi stop"));
  EXPECT_THAT(lines("finalize"), ElementsAre("[0] finalize", "[1] finalize"));
}

TEST_F(NcclPlugins, AProfilerGetsOnlyTheEventsOfItsMask) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  const auto types = [&](const char* mask) {
    set("TUTTI_TEST_MASK", mask);
    run_alone(call_in_group);
    std::set<std::string> found;
    for (const std::string& line : lines("start")) {
      std::istringstream words(line);
      std::string word;
      words >> word >> word >> word;
      found.insert(word);
    }
    return found;
  };
  using Set = std::set<std::string>;
  EXPECT_EQ(types("0"), Set{});
  EXPECT_EQ(types("32"), Set{}) << "events of NCCL's proxy";
  EXPECT_EQ(types("256"), Set{"GroupApi"});
  EXPECT_EQ(types("512"), (Set{"GroupApi", "CollApi"}));
  EXPECT_EQ(types("1024"), (Set{"GroupApi", "P2pApi"}));
  EXPECT_EQ(types("1"), (Set{"GroupApi", "Group"}));
  EXPECT_EQ(types("4"), (Set{"GroupApi", "P2pApi", "Group", "P2p"}));
  EXPECT_EQ(types("64"), (Set{"GroupApi", "CollApi", "P2pApi", "Group", "Coll", "P2p"}))
      << "kernels are inside of these";
}

TEST_F(NcclPlugins, ADiscardedGroupEndsItsEvent) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectives);
  run_alone([]() -> std::string {
    ncclComm_t comm = nullptr;
    TUTTI_NCCL_TRY(ncclCommInitAll(&comm, 1, nullptr));
    float value = 1;
    TUTTI_NCCL_TRY(ncclGroupStart());
    TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr));
    TUTTI_NCCL_WANT(ncclAllReduce(&value, &value, 1, ncclNumTypes, ncclSum, comm, nullptr) == ncclInvalidArgument);
    TUTTI_NCCL_WANT(ncclGroupEnd() == ncclInvalidArgument);
    TUTTI_NCCL_TRY(ncclCommDestroy(comm));
    return {};
  });
  EXPECT_TRUE(lines(" Coll start").empty());
  EXPECT_EQ(lines("GroupApi stop").size(), 1u);
  EXPECT_EQ(lines("finalize").size(), 1u);
}

// The first rank's call cannot end before the second one makes its call.
TEST_F(NcclPlugins, OnANonblockingCommunicatorAnEventEndsWhenTheCallHasBegun) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectives);
  run_alone([]() -> std::string {
    ncclUniqueId id;
    TUTTI_NCCL_TRY(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comms[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
      TUTTI_NCCL_WANT(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == ncclInProgress);
    }
    const auto wait = [&] {
      for (const ncclComm_t comm : comms) {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress && ncclCommGetAsyncError(comm, &state) == ncclSuccess) std::this_thread::yield();
        if (state != ncclSuccess) return state;
      }
      return ncclSuccess;
    };
    TUTTI_NCCL_TRY(wait());
    float values[2] = {1, 2}, sums[2] = {-1, -1};
    for (int rank = 0; rank < 2; ++rank) {
      // The call of rank 0 cannot end before that of rank 1 begins. That of rank 1 may write its result at any time.
      if (rank == 1) set("TUTTI_TEST_NO_RESULT", "1");
      TUTTI_NCCL_WANT(ncclAllReduce(&values[rank], &sums[rank], 1, ncclFloat, ncclSum, comms[rank], nullptr) ==
                      ncclInProgress);
    }
    TUTTI_NCCL_TRY(wait());
    TUTTI_NCCL_WANT(sums[0] == 3 && sums[1] == 3);
    for (const ncclComm_t comm : comms) TUTTI_NCCL_TRY(ncclCommDestroy(comm));
    return {};
  });
  EXPECT_THAT(lines(" Coll st"), ElementsAre(StartsWith("[0] 4 Coll start"), "4 Coll stop result -1",
                                             StartsWith("[1] 8 Coll start"), "8 Coll stop"));
}

TEST_F(NcclPlugins, AProfilerWithoutAContextGetsEventsButNoFinalize) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_PROFILER", "no_context");
  set("TUTTI_TEST_MASK", kCollectives);
  run(2, reduce_once);
  EXPECT_EQ(lines("[-1] 4 Coll start").size(), 2u);
  EXPECT_TRUE(lines("finalize").empty());
}

TEST_F(NcclPlugins, ChildrenHaveTheirOwnIdsAndNames) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  run(3, [](ncclComm_t comm, int rank, int) -> std::string {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = rank == 1 ? "odd" : "even";
    ncclComm_t halves = nullptr, again = nullptr, copy = nullptr;
    TUTTI_NCCL_TRY(ncclCommSplit(comm, rank % 2, 0, &halves, &config));
    TUTTI_NCCL_TRY(ncclCommSplit(comm, rank % 2, 0, &again, nullptr));
    TUTTI_NCCL_TRY(ncclCommSplit(halves, 0, 0, &copy, nullptr));
    for (const ncclComm_t one : {halves, again, copy}) TUTTI_NCCL_TRY(ncclCommDestroy(one));
    return {};
  });
  std::map<std::string, int> ids;
  for (const std::string& line : lines(" id ")) ++ids[line.substr(line.find(" id "))];
  std::multiset<int> ranks;
  for (const auto& [id, count] : ids) ranks.insert(count);
  EXPECT_EQ(ranks, (std::multiset<int>{3, 2, 1, 2, 1, 2, 1})) << "the parent, and three times both colours";
  EXPECT_EQ(lines("init v6 name even nodes 1 ranks 2").size(), 4u) << "a child of a named communicator has its name";
  EXPECT_EQ(lines("init v6 name odd nodes 1 ranks 1").size(), 2u);
  EXPECT_EQ(lines("init v6 name (null)").size(), 6u);
  EXPECT_EQ(lines("finalize").size(), lines("init").size());
}

}  // namespace
}  // namespace tutti::nccl_test
