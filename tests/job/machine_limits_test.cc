#include "job/machine_limits.h"

#include <gtest/gtest.h>

#include <string>

#include "tutti/communicator.h"

namespace tutti {
namespace {

SegmentShape shape_of(std::uint32_t ranks) { return {.ranks = ranks}; }

void expect_refusal(const Status& status, ErrorCode code, const std::string& words) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, code);
  EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
}

TEST(MachineLimits, OneRankMoreThanCanShareMemoryIsRefusedWithTheLimit) {
  EXPECT_TRUE(check_machine_limits(shape_of(kMostMachineRanks), {}).ok());
  expect_refusal(check_machine_limits(shape_of(kMostMachineRanks + 1), {}), ErrorCode::kUnsupported,
                 "4097 ranks are on this machine, and at most 4096 can share its memory");
}

TEST(MachineLimits, OneRankMoreThanThereAreDescriptorsForIsRefusedWithTheLimit) {
  const ProcessLimits limits{.descriptors = 1024, .open = 10};
  EXPECT_TRUE(check_machine_limits(shape_of(500), limits).ok());
  expect_refusal(check_machine_limits(shape_of(501), limits), ErrorCode::kSystem,
                 "needs 1026 file descriptors, and the limit is 1024: raise it (ulimit -n)");
}

TEST(MachineLimits, OneRankMoreThanTheSystemHasFilesForIsRefusedWithTheLimit) {
  const ProcessLimits limits{.files = 1'000'000};
  EXPECT_TRUE(check_machine_limits(shape_of(703), limits).ok());
  expect_refusal(check_machine_limits(shape_of(704), limits), ErrorCode::kSystem,
                 "704 ranks on this machine need 1001088 open files together, and the limit is 1000000");
}

TEST(MachineLimits, OneRankMoreThanThereAreMappingsForIsRefusedWithTheLimit) {
  const ProcessLimits limits{.mappings = 3000};
  EXPECT_TRUE(check_machine_limits(shape_of(1000), limits).ok());
  expect_refusal(check_machine_limits(shape_of(1001), limits), ErrorCode::kSystem,
                 "needs 3002 mappings, and the limit is 3000");
}

TEST(MachineLimits, SlotsThatFillTheAddressSpaceAreRefusedWithTheLimit) {
  expect_refusal(check_machine_limits({.ranks = 4096, .slots = 64, .slot_bytes = 128 * 1024}, {}),
                 ErrorCode::kUnsupported, "at most 100 can be mapped: use smaller TUTTI_SLOTS");
}

TEST(MachineLimits, OfThisProcessAreKnown) {
  const ProcessLimits limits = process_limits();
  EXPECT_GE(limits.open, 3u);
  EXPECT_GT(limits.mappings, 0u);
}

TEST(RanksInAll, OneMoreThanAJobCanHaveIsRefusedWithTheLimit) {
  CommunicatorOptions options;
  options.rank = 0;
  options.size = 65536;
  const auto job = Communicator::create(options);
  ASSERT_FALSE(job.ok());
  EXPECT_NE(job.error().message.find("size 65536 is outside 1..65535"), std::string::npos) << job.error().message;
  const auto threads = Communicator::create_all(1025);
  ASSERT_FALSE(threads.ok());
  EXPECT_NE(threads.error().message.find("outside 1..1024"), std::string::npos) << threads.error().message;
}

}  // namespace
}  // namespace tutti
