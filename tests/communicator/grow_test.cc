// Tests grow(): new ranks join a running job, with ranks as processes. It covers the replacement of killed ranks,
// and invalid arguments.
#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

struct Board {
  std::atomic<int> ready;
  std::atomic<int> id_made;
  char id[257];
};

UniqueId publish_id(Board& board) {
  const auto id = UniqueId::create();
  EXPECT_TRUE(id.ok());
  std::strncpy(board.id, id->to_text().c_str(), sizeof(board.id) - 1);
  board.id_made = 1;
  return *id;
}

int join_as_new_rank(Board& board, std::int32_t rank, std::int32_t size, const char* transport) {
  while (board.id_made == 0) std::this_thread::sleep_for(milliseconds(2));
  const auto id = UniqueId::from_text(board.id);
  if (!id.ok()) return 20;
  CommunicatorOptions options;
  options.unique_id = *id;
  options.rank = rank;
  options.size = size;
  options.transport = transport;
  auto grown = Communicator::create(options);
  if (!grown.ok()) std::fprintf(stderr, "newcomer %d: %s\n", rank, to_string(grown.error()).c_str());
  return grown.ok() && sum_is_right(**grown, 1000) && sum_is_right(**grown, 300'007) ? 0 : 21;
}

class Grow : public testing::TestWithParam<const char*> {};

TEST_P(Grow, AdmitsNewcomersBehindThoseWhoWereThere) {
  Board& board = shared_object<Board>();
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    children.push_back(start([&, rank] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (rank >= 2) return join_as_new_rank(board, rank, 4, GetParam());
      CommunicatorOptions options = job(rank, 2, port);
      options.transport = GetParam();
      auto old = Communicator::create(options);
      if (!old.ok()) return 2;
      auto grown = (*old)->grow(4, rank == 1 ? std::optional(publish_id(board)) : std::nullopt);
      if (!grown.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, to_string(grown.error()).c_str());
      if (!grown.ok() || (*grown)->rank() != rank || (*grown)->size() != 4) return 3;
      if ((*grown)->transport() != (*old)->transport()) return 4;
      if (!sum_is_right(**grown, 1000) || !sum_is_right(**grown, 300'007)) return 5;
      return sum_is_right(**old, 1000) ? 0 : 6;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

// The key of the job counts for the grown communicator too, whichever option passes it.
TEST(GrowWithKey, NeedsTheKeyOfTheJob) {
  const std::string folder = testing::TempDir();
  const std::string file = folder + "grow-" + std::to_string(getpid()) + ".key";
  const std::string key = "a key of 24 characters..";
  std::ofstream(file) << key;
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  for (const bool by_file : {true, false}) {
    Board& board = shared_object<Board>();
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      children.push_back(start([&, rank] {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        UniqueIdOptions id_options;
        CommunicatorOptions options = job(0, 1, port);
        (by_file ? options.job_key_file : options.job_key) = by_file ? file : key;
        (by_file ? id_options.job_key_file : id_options.job_key) = by_file ? file : key;
        if (rank == 1) {
          if (!eventually([&] { return board.id_made != 0; })) return 1;
          options.root.clear();
          options.unique_id = *UniqueId::from_text(board.id);
          options.rank = 1;
          options.size = 2;
          const auto joined = Communicator::create(options);
          if (!joined.ok()) std::fprintf(stderr, "newcomer: %s\n", to_string(joined.error()).c_str());
          return joined.ok() && sum_is_right(**joined, 1000) ? 0 : 2;
        }
        const auto old = Communicator::create(options);
        if (!old.ok()) return 3;
        const auto id = UniqueId::create(id_options);
        if (!id.ok()) return 4;
        std::strncpy(board.id, id->to_text().c_str(), sizeof(board.id) - 1);
        board.id_made = 1;
        const auto grown = (*old)->grow(2, *id);
        if (!grown.ok()) std::fprintf(stderr, "rank 0: %s\n", to_string(grown.error()).c_str());
        return grown.ok() && sum_is_right(**grown, 1000) ? 0 : 5;
      }));
    }
    for (const pid_t child : children) EXPECT_EQ(status_of(child), 0) << (by_file ? "job_key_file" : "job_key");
  }
  std::remove(file.c_str());
}

// A rank is killed, the survivors shrink, a new process joins, and the job has its old size again.
TEST_P(Grow, ReplacesAKilledRank) {
  Board& board = shared_object<Board>();
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    children.push_back(start([&, rank] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      CommunicatorOptions options = job(rank, 3, port);
      options.transport = GetParam();
      auto communicator = Communicator::create(options);
      if (!communicator.ok()) return 2;
      ++board.ready;
      while (sum_fails(**communicator, {}).empty()) continue;
      auto fewer = (*communicator)->shrink();
      if (!fewer.ok() || (*fewer)->size() != 2) return 3;
      const bool first = (*fewer)->rank() == 0;
      auto again = (*fewer)->grow(3, first ? std::optional(publish_id(board)) : std::nullopt);
      if (!again.ok()) std::fprintf(stderr, "rank %d: %s\n", rank, to_string(again.error()).c_str());
      return again.ok() && sum_is_right(**again, 1000) && sum_is_right(**again, 300'007) ? 0 : 4;
    }));
  }
  wait_for(board.ready, 3);
  kill(children[0], SIGKILL);
  children.push_back(start([&] { return join_as_new_rank(board, 2, 3, GetParam()); }));
  for (std::size_t i = 0; i < children.size(); ++i) EXPECT_EQ(status_of(children[i]), i == 0 ? 128 + SIGKILL : 0) << i;
}

INSTANTIATE_TEST_SUITE_P(Ways, Grow, testing::Values("auto", "tcp"),
                         [](const auto& way) { return std::string(way.param); });

TEST(Grow, RefusesWhatCannotBeRight) {
  CommunicatorOptions options;
  options.setup_timeout = scaled(milliseconds(2000));  // of each grow(); the last one below lasts until then
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [](Communicator& rank) {
    const auto fewer = rank.grow(2);
    ASSERT_FALSE(fewer.ok());
    EXPECT_EQ(fewer.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(fewer.error().message, HasSubstr("grow: size 2 is not greater than the 2 ranks"));
    const auto nobody = rank.grow(3);
    ASSERT_FALSE(nobody.ok());
    EXPECT_THAT(nobody.error().message, HasSubstr("no rank passed a unique id"));
    const auto both = rank.grow(3, *UniqueId::create());
    ASSERT_FALSE(both.ok());
    EXPECT_EQ(both.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(both.error().rank, 1);
    const auto sizes = rank.grow(3 + rank.rank());
    ASSERT_FALSE(sizes.ok());
    EXPECT_THAT(sizes.error().message, HasSubstr("rank 0 wants to grow to 3 ranks, rank 1 to 4"));
    const auto alone = rank.grow(3, rank.rank() == 0 ? std::optional(*UniqueId::create()) : std::nullopt);
    ASSERT_FALSE(alone.ok());
    EXPECT_EQ(alone.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(alone.error().scope, ErrorScope::kCall);
    EXPECT_THAT(alone.error().message, HasSubstr("2"));
    EXPECT_TRUE(sum_is_right(rank, 100));
  });
}

}  // namespace
}  // namespace tutti::test
