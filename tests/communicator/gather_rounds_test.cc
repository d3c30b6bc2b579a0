// Tests all_gather_blobs(), the set-up rounds of communicators that are made from others.
#include "communicator/gather_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using Blobs = Result<std::vector<std::string>>;

// All-gathers three blobs: that of rank 1 has `bytes` bytes, that of rank 0 is empty, and that of rank 2 has two bytes.
// Returns the results of the three ranks.
std::vector<Blobs> gathered(std::size_t bytes) {
  Communicators ranks = make_ranks(3);
  std::mutex mutex;
  std::vector<Blobs> results;
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto number = static_cast<std::size_t>(rank.rank());
    const std::string blob(number == 1 ? bytes : number, static_cast<char>('a' + number));
    const auto run = [&rank](const CollectiveCall& call) { return rank.run(call, {}); };
    Blobs blobs = detail::all_gather_blobs(3, run, blob);
    const std::scoped_lock lock(mutex);
    results.push_back(std::move(blobs));
  });
  EXPECT_EQ(results.size(), 3U);
  return results;
}

TEST(GatherRounds, GiveAllRanksTheBlobsOfAll) {
  for (const std::size_t bytes : {0, 1, 4096}) {
    for (const Blobs& blobs : gathered(bytes)) {
      ASSERT_TRUE(blobs.ok()) << to_string(blobs.error());
      EXPECT_THAT(*blobs, testing::ElementsAre("", std::string(bytes, 'b'), "cc"));
    }
  }
}

TEST(GatherRounds, ABlobThatIsTooLongFailsOnAllRanks) {
  for (const Blobs& blobs : gathered(4097)) {
    ASSERT_FALSE(blobs.ok());
    EXPECT_EQ(blobs.error().code, ErrorCode::kRefused);
    EXPECT_EQ(blobs.error().rank, 1);
    EXPECT_THAT(blobs.error().message, testing::HasSubstr("has 4097 bytes for a round of set-up, and at most 4096"));
  }
}

}  // namespace
}  // namespace tutti::test
