// Tests which calls use other ranks' private memory (memory that a rank attaches, for example with cross-memory
// attach), by the default limits and by measured ones.
#include <gtest/gtest.h>

#include "executor/single_copy.h"

namespace tutti {
namespace {

constexpr std::uint64_t kLong = 16 << 20;

bool uses(CollectiveKind kind, std::uint32_t ranks, std::uint32_t cores, std::uint64_t bytes = kLong) {
  return uses_attached_memory({.kind = kind, .ranks = ranks}, bytes, Attachment::kLongCalls,
                              default_choices(ranks, cores));
}

TEST(AttachedMemory, SumsUseItOnlyWhereAnAllReducesRanksHaveACoreEach) {
  EXPECT_TRUE(uses(CollectiveKind::kAllReduce, 2, 2));
  EXPECT_TRUE(uses(CollectiveKind::kAllReduce, 64, 0)) << "the number of cores is unknown";
  EXPECT_FALSE(uses(CollectiveKind::kAllReduce, 3, 2));
  EXPECT_FALSE(uses(CollectiveKind::kAllReduce, 2, 2, 200 * 1024)) << "less than 128 KiB for a rank";
  for (const CollectiveKind kind : {CollectiveKind::kReduce, CollectiveKind::kReduceScatter}) {
    EXPECT_FALSE(uses(kind, 2, 2));
    EXPECT_FALSE(uses(kind, 8, 0));
  }
}

TEST(AttachedMemory, LongCopiesUseItHoweverManyRanks) {
  for (const CollectiveKind kind :
       {CollectiveKind::kBroadcast, CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    EXPECT_TRUE(uses(kind, 8, 2, 128 * 1024));
    EXPECT_FALSE(uses(kind, 8, 2, 128 * 1024 - 1));
  }
}

TEST(AttachedMemory, OtherAttachmentsAreForAllCallsOrNone) {
  const Collective reduce{.kind = CollectiveKind::kReduce, .ranks = 8};
  EXPECT_TRUE(uses_attached_memory(reduce, 8, Attachment::kCalls, {}));
  EXPECT_TRUE(uses_attached_memory(reduce, 8, Attachment::kPointers, {}));
  EXPECT_FALSE(uses_attached_memory(reduce, kLong, Attachment::kNone, default_choices(8, 0)));
}

TEST(AttachedMemory, MeasuredLimitsCount) {
  const MachineChoices choices{.copy_by_calls_bytes = 4096, .all_reduce_by_calls_bytes = 1 << 20};
  const auto attaches = [](CollectiveKind kind, std::uint64_t bytes, const MachineChoices& limits) {
    return uses_attached_memory({.kind = kind, .ranks = 4}, bytes, Attachment::kLongCalls, limits);
  };
  EXPECT_TRUE(attaches(CollectiveKind::kBroadcast, 4096, choices));
  EXPECT_FALSE(attaches(CollectiveKind::kBroadcast, 4095, choices));
  EXPECT_TRUE(attaches(CollectiveKind::kAllReduce, 4 << 20, choices));
  EXPECT_FALSE(attaches(CollectiveKind::kAllReduce, (4 << 20) - 4, choices)) << "a share is shorter than 1 MiB";
  EXPECT_FALSE(attaches(CollectiveKind::kReduce, kLong, choices));
  for (const CollectiveKind kind : {CollectiveKind::kBroadcast, CollectiveKind::kAllReduce})
    EXPECT_FALSE(attaches(kind, kLong, {})) << "never";
}

}  // namespace
}  // namespace tutti
