// Tests which calls use other ranks' private memory (memory that a rank attaches, for example with cross-memory
// attach). The limits come from the measurements in docs/results/2026-11-22-tuner.md.
#include <gtest/gtest.h>

#include "executor/single_copy.h"

namespace tutti {
namespace {

constexpr std::uint64_t kLong = 16 << 20;

bool uses(CollectiveKind kind, std::uint32_t ranks, std::uint32_t cores, std::uint64_t bytes = kLong) {
  return uses_attached_memory({.kind = kind, .ranks = ranks}, bytes, Attachment::kLongCalls, cores);
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
  EXPECT_TRUE(uses_attached_memory(reduce, 8, Attachment::kCalls, 2));
  EXPECT_TRUE(uses_attached_memory(reduce, 8, Attachment::kPointers, 2));
  EXPECT_FALSE(uses_attached_memory(reduce, kLong, Attachment::kNone, 2));
}

}  // namespace
}  // namespace tutti
