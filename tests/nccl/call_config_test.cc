// Tests of the configuration of one call: how ncclCollConfig_t and algSelection are read.
#include "nccl/call_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nccl/environment/algorithms.h"

namespace tutti::nccl {
namespace {

using ::testing::HasSubstr;

ncclCollConfig_t fresh() {
  const ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  return config;
}

ncclCollConfig_t selecting(const char* text, int force = 1) {
  ncclCollConfig_t config = fresh();
  config.algSelection = text;
  config.forceAlgSelection = force;
  return config;
}

// The message of the error for this configuration; empty if there is none.
std::string refusal(const ncclCollConfig_t& config, CollectiveKind kind = CollectiveKind::kAllReduce) {
  const auto read = read_call_config(&config, kind, Algorithm::kAuto);
  return read ? "" : read.error().message;
}

Algorithm algorithm_for(const char* text, CollectiveKind kind, int force = 1) {
  const ncclCollConfig_t config = selecting(text, force);
  const auto read = read_call_config(&config, kind, Algorithm::kAuto);
  EXPECT_TRUE(read.ok()) << text << ": " << read.error().message;
  return read ? read->algorithm : Algorithm::kUser;
}

TEST(CallConfigOf, NothingIsThatOfTheCommunicator) {
  for (const ncclCollConfig_t& config : {fresh(), selecting("")}) {
    for (const ncclCollConfig_t* given : {&config, static_cast<const ncclCollConfig_t*>(nullptr)}) {
      const auto read = read_call_config(given, CollectiveKind::kAllReduce, Algorithm::kRing);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read->algorithm, Algorithm::kRing);
      EXPECT_EQ(read->timeout.count(), 0);
      EXPECT_EQ(read->label, 0u);
      EXPECT_FALSE(read->uniform);
      EXPECT_FALSE(read->checksum);
      EXPECT_EQ(read->launched, nullptr);
    }
  }
}

TEST(CallConfigOf, StructuresOfOtherVersionsAreRead) {
  ncclCollConfig_t config = fresh();
  config.userProfilerTag = 77;
  config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(8);
  config.size = offsetof(ncclCollConfig_t, launchCompletionEvent);  // that of NCCL 2.31
  auto read = read_call_config(&config, CollectiveKind::kAllReduce, Algorithm::kAuto);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->label, 77u);
  EXPECT_EQ(read->launched, nullptr) << "a program of NCCL 2.31 has no such field";
  config.size = sizeof(config);
  EXPECT_NE(read_call_config(&config, CollectiveKind::kAllReduce, Algorithm::kAuto)->launched, nullptr);
  struct {
    ncclCollConfig_t known = NCCL_COLLCONFIG_INITIALIZER;
    std::uint64_t later = ~std::uint64_t{0};
  } longer;
  longer.known.size = sizeof(longer);
  EXPECT_TRUE(read_call_config(&longer.known, CollectiveKind::kAllReduce, Algorithm::kAuto).ok());
}

TEST(CallConfigOf, WhatIsNotInitialisedOrOutOfRangeIsRefused) {
  ncclCollConfig_t config = fresh();
  config.magic = 1;
  EXPECT_THAT(refusal(config), HasSubstr("NCCL_COLLCONFIG_INITIALIZER"));
  config = fresh();
  config.size = offsetof(ncclCollConfig_t, launchCompletionEvent) - 1;
  EXPECT_THAT(refusal(config), HasSubstr("NCCL_COLLCONFIG_INITIALIZER"));
  struct Field {
    int ncclCollConfig_t::*field;
    int refused;
    int accepted;
  };
  for (const auto& [field, refused, accepted] :
       {Field{&ncclCollConfig_t::minCTAs, 0, 1}, Field{&ncclCollConfig_t::maxCTAs, 0, 1},
        Field{&ncclCollConfig_t::nvlsCTAs, 0, 1}, Field{&ncclCollConfig_t::cgaClusterSize, 9, 8},
        Field{&ncclCollConfig_t::cgaClusterSize, -1, 0}, Field{&ncclCollConfig_t::CTAPolicy, 4, 3},
        Field{&ncclCollConfig_t::CTAPolicy, -5, 0}, Field{&ncclCollConfig_t::forceAlgSelection, 2, 1},
        Field{&ncclCollConfig_t::forceAlgSelection, -1, 0}}) {
    config = fresh();
    config.*field = refused;
    EXPECT_THAT(refusal(config), HasSubstr(std::to_string(refused)));
    config.*field = accepted;
    EXPECT_EQ(refusal(config), "") << accepted;
  }
  config = fresh();
  config.minCTAs = 8;
  config.maxCTAs = 4;
  EXPECT_THAT(refusal(config), HasSubstr("minCTAs 8 is more than maxCTAs 4"));
}

TEST(AlgSelection, NamesAlgorithmsThatTuttiHas) {
  using enum CollectiveKind;
  EXPECT_EQ(algorithm_for("ring", kAllReduce), Algorithm::kRing);
  EXPECT_EQ(algorithm_for("RING", kAllReduce), Algorithm::kRing);
  EXPECT_EQ(algorithm_for("tree", kAllReduce), Algorithm::kDoubleTree);
  EXPECT_EQ(algorithm_for("tree,nvls", kAllReduce), Algorithm::kDoubleTree);
  EXPECT_EQ(algorithm_for("tree,ring", kAllReduce), Algorithm::kAuto);
  EXPECT_EQ(algorithm_for("^ring", kAllReduce), Algorithm::kDoubleTree);
  EXPECT_EQ(algorithm_for("^symk", kAllReduce), Algorithm::kAuto);
  EXPECT_EQ(algorithm_for("ring_ll,ring_LL128,Ring_Simple", kAllReduce), Algorithm::kRing) << "all its protocols";
  EXPECT_EQ(algorithm_for("pat", kAllGather), Algorithm::kCirculant);
  EXPECT_EQ(algorithm_for("^pat", kReduceScatter), Algorithm::kRing);
  EXPECT_EQ(algorithm_for("ring", kBroadcast), Algorithm::kAuto) << "NCCL has only rings";
  EXPECT_EQ(algorithm_for("^collnet_direct,CollNetChain", kReduce), Algorithm::kAuto);
  EXPECT_EQ(algorithm_for("^ring", kAllToAll), Algorithm::kAuto);
}

TEST(AlgSelection, WithoutSuchAnAlgorithmIsRefusedOnlyIfItIsForced) {
  using enum CollectiveKind;
  struct Case {
    const char* text;
    CollectiveKind kind;
    const char* reason;
  };
  for (const Case& one :
       {Case{"nvls", kAllReduce, "allows no algorithm that Tutti has for all_reduce"},
        Case{"symk", kAllReduce, "allows no algorithm"}, Case{"symk_ll", kAllReduce, "allows no algorithm"},
        Case{"pat", kAllReduce, "allows no algorithm"}, Case{"^ring,tree", kAllReduce, "allows no algorithm"},
        Case{"tree", kBroadcast, "allows no algorithm"}, Case{"^ring", kReduce, "allows no algorithm"},
        Case{"ring", kAllToAll, "allows no algorithm"}, Case{"ring_ll", kAllReduce, "selects a protocol"},
        Case{"^tree_ll128", kAllReduce, "selects a protocol"}, Case{"rings", kAllReduce, "\"rings\" is no algorithm"},
        Case{"ring,", kAllReduce, "\"\" is no algorithm"}, Case{"^", kAllReduce, "\"\" is no algorithm"},
        Case{"ring tree", kAllReduce, "is no algorithm"}}) {
    EXPECT_THAT(refusal(selecting(one.text), one.kind), HasSubstr(one.reason)) << one.text;
    EXPECT_EQ(algorithm_for(one.text, one.kind, 0), Algorithm::kAuto) << one.text;
  }
}

// An option of Tutti with a number, or with a text.
ncclConfigExt_t option(int id, int value) {
  ncclConfigExt_t made{};
  made.key.vendorId = TUTTI_NCCL_VENDOR_ID;
  made.key.optionId = id;
  made.val.i = value;
  return made;
}
ncclConfigExt_t algorithm_option(const char* name) {
  ncclConfigExt_t made = option(tuttiNcclAlgorithm, 0);
  made.val.s = name;
  return made;
}

// The options as a list, with a configuration that has them.
ncclCollConfig_t with(std::vector<ncclConfigExt_t>& options) {
  ncclCollConfig_t config = fresh();
  for (std::size_t i = 0; i + 1 < options.size(); ++i) options[i].next = &options[i + 1];
  config.ext = options.empty() ? nullptr : options.data();
  return config;
}

TEST(CallOptionsOfTutti, AreReadInAnyOrder) {
  ncclConfigExt_t foreign = option(1, 5);
  foreign.key.vendorId = TUTTI_NCCL_VENDOR_ID + 1;
  std::vector<ncclConfigExt_t> options = {foreign, option(tuttiNcclDeadlineMs, 1500), option(tuttiNcclUniform, 1),
                                          option(tuttiNcclChecksum, 1), algorithm_option("halving_doubling")};
  ncclCollConfig_t config = with(options);
  config.algSelection = "ring";
  const auto read = read_call_config(&config, CollectiveKind::kAllReduce, Algorithm::kDoubleTree);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->algorithm, Algorithm::kHalvingDoubling) << "the option takes precedence over algSelection";
  EXPECT_EQ(read->timeout.count(), 1500);
  EXPECT_TRUE(read->uniform);
  EXPECT_TRUE(read->checksum);
  config.algSelection = "nvls";
  const auto impossible = read_call_config(&config, CollectiveKind::kAllReduce, Algorithm::kDoubleTree);
  ASSERT_TRUE(impossible.ok()) << impossible.error().message;
  EXPECT_EQ(impossible->algorithm, Algorithm::kHalvingDoubling) << "also if no algorithm is left there";
}

TEST(CallOptionsOfTutti, AreRefusedIfTheyAreWrong) {
  struct Case {
    std::vector<ncclConfigExt_t> options;
    const char* reason;
  };
  ncclConfigExt_t no_vendor = option(1, 1);
  no_vendor.key.vendorId = 0;
  ncclConfigExt_t large_vendor = option(1, 1);
  large_vendor.key.vendorId = 1 << 24;
  ncclConfigExt_t foreign = option(1, 1);
  foreign.key.vendorId = 12;
  for (Case one :
       {Case{{option(99, 1)}, "Tutti has no option 99"}, Case{{algorithm_option("fastest")}, "\"fastest\""},
        Case{{algorithm_option(nullptr)}, "\"\""}, Case{{option(tuttiNcclDeadlineMs, 0)}, "0, not at least 1"},
        Case{{option(tuttiNcclUniform, 2)}, "tuttiNcclUniform is 2, not 0 or 1"},
        Case{{option(tuttiNcclChecksum, -1)}, "tuttiNcclChecksum is -1, not 0 or 1"}, Case{{no_vendor}, "vendor 0"},
        Case{{large_vendor}, "vendor 16777216"},
        Case{{foreign, option(tuttiNcclDeadlineMs, 1), foreign}, "option 1 of vendor 12 is in the list twice"}}) {
    EXPECT_THAT(refusal(with(one.options)), HasSubstr(one.reason));
  }
  std::vector<ncclConfigExt_t> ring = {option(tuttiNcclDeadlineMs, 1), algorithm_option("ring")};
  const ncclCollConfig_t config = with(ring);
  ring.back().next = ring.data();
  EXPECT_THAT(refusal(config), HasSubstr("the list has a cycle"));
}

}  // namespace
}  // namespace tutti::nccl
