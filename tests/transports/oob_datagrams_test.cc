// Tests of the data other than memory that ranks of one machine pass to each other: datagrams and open files.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shm_ranks.h"

namespace tutti {
namespace {

std::vector<std::string> take_all(SegmentExchange& exchange, std::uint32_t from, std::uint64_t channel) {
  std::vector<std::string> datagrams;
  while (auto datagram = exchange.take_datagram(from, channel)) datagrams.push_back(std::move(*datagram));
  return datagrams;
}

using Texts = std::vector<std::string>;

TEST(Notes, KeepTheirOrderAndChannelsApartOverBothExchanges) {
  for (const Exchanges& ranks : {in_process_exchanges(3), unix_exchanges(3)}) {
    EXPECT_EQ(ranks[1]->take_datagram(0, 7), std::nullopt);
    for (const char* datagram : {"a", "", "c"}) ranks[0]->post(1, 7, datagram);
    ranks[0]->post(1, 8, "other");
    ranks[0]->post(2, 7, std::string(kMostDatagramBytes, 'x'));
    ranks[2]->post(1, 7, "from two");
    EXPECT_EQ(take_all(*ranks[1], 0, 7), (Texts{"a", "", "c"}));
    EXPECT_EQ(take_all(*ranks[1], 0, 8), Texts{"other"});
    EXPECT_EQ(take_all(*ranks[1], 2, 7), Texts{"from two"});
    EXPECT_EQ(take_all(*ranks[2], 0, 7), Texts{std::string(kMostDatagramBytes, 'x')});
    EXPECT_EQ(take_all(*ranks[0], 1, 7), Texts{});
    // A SubExchange of some of the ranks uses their rank numbers in the sub-group.
    SubExchange of_two(ranks[0], {2, 0}), of_zero(ranks[2], {2, 0});
    of_two.post(0, 9, "by view");
    EXPECT_EQ(take_all(of_zero, 1, 9), Texts{"by view"});
  }
}

TEST(Notes, ThatNobodyTakesLoseTheOldest) {
  const Exchanges ranks = in_process_exchanges(2);
  for (std::size_t i = 0; i < kMostQueuedDatagrams + 2; ++i) ranks[0]->post(1, 7, std::to_string(i));
  const Texts datagrams = take_all(*ranks[1], 0, 7);
  EXPECT_EQ(datagrams.size(), kMostQueuedDatagrams);
  EXPECT_EQ(datagrams.front(), "2");
}

// Rank 1 receives nothing, as if its process were stopped. Rank 0 must still see that rank 2 has been sent
// everything.
TEST(Notes, MoreThanASocketHoldsGoLaterAndHoldUpNobodyElse) {
  Exchanges ranks = unix_exchanges(3);
  for (int i = 0; i < 600; ++i) ranks[0]->post(1, 7, std::to_string(i));
  ranks[0]->post(2, 7, "for two");
  EXPECT_FALSE(ranks[0]->pump());
  EXPECT_FALSE(ranks[0]->all_sent_to(std::vector<std::uint32_t>{1, 2}));
  EXPECT_TRUE(ranks[0]->all_sent_to(std::vector<std::uint32_t>{2}));
  EXPECT_TRUE(SubExchange(ranks[0], {0, 2}).pump());
  Texts datagrams;
  for (int round = 0; round < 50; ++round) {
    const Texts more = take_all(*ranks[1], 0, 7);
    datagrams.insert(datagrams.end(), more.begin(), more.end());
    ranks[0]->pump();
  }
  ASSERT_EQ(datagrams.size(), 600u);
  for (int i = 0; i < 600; ++i) EXPECT_EQ(datagrams[static_cast<std::size_t>(i)], std::to_string(i));
  ranks[0]->post(1, 7, "last");
  ranks[0].reset();
  EXPECT_TRUE(ranks[1]->peer_gone(0));
  EXPECT_EQ(take_all(*ranks[1], 0, 7), Texts{"last"})
      << "a datagram that was sent before the sender ended still arrives";
  ranks[1]->post(0, 7, "to nobody");
}

// The file is one end of a pipe. So a write to the other end shows whether the received descriptor refers to the
// same file.
TEST(UnixExchange, PassesOpenFilesToBeTakenOnce) {
  Exchanges ranks = unix_exchanges(3);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const std::vector<std::uint32_t> audience = {1};
  const std::uint32_t id = ranks[0]->share_file(ends[0], audience);
  EXPECT_EQ(ranks[1]->take_file(0, id + 1), -1);
  EXPECT_EQ(ranks[2]->take_file(0, id), -1) << "rank 2 may not take the file";
  const int taken = ranks[1]->take_file(0, id);
  ASSERT_GE(taken, 0);
  EXPECT_EQ(ranks[1]->take_file(0, id), -1) << "a file can be taken only once";
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  char got = 0;
  EXPECT_EQ(read(taken, &got, 1), 1);
  EXPECT_EQ(got, 'x');
  close(taken);
  signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(write(ends[1], "x", 1), -1) << "the exchange must not keep the file open";
  close(ends[1]);
}

TEST(UnixExchange, ClosesFilesThatNobodyTakes) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  const auto before = open_files();
  {
    Exchanges ranks = unix_exchanges(2);
    const auto connected = open_files();
    const std::uint32_t id = ranks[0]->share_file(open("/dev/null", O_RDONLY), {});
    ranks[1]->pump();
    EXPECT_EQ(open_files(), connected + 1);
    ranks[0]->unshare(id, {});
    ranks[1]->pump();
    EXPECT_EQ(open_files(), connected);
    // more than a rank keeps for one peer
    for (int i = 0; i < 600; ++i) ranks[0]->share_file(open("/dev/null", O_RDONLY), {});
    for (int round = 0; round < 50; ++round) {
      ranks[1]->pump();
      ranks[0]->pump();
    }
    EXPECT_EQ(open_files(), connected + 256);
  }
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace tutti
