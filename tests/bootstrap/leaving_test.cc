// Tests what the other ranks learn of a rank that leaves the set-up before its end.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>

#include "bootstrap/bootstrap.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/test_job.h"
#include "tests/support/patience.h"
#include "tests/support/ports.h"
#include "transports/tcp/tls_library.h"

namespace tutti::test {
namespace {

void expect_rank_2_ended(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::kPeerLost) << to_string(error);
  EXPECT_EQ(error.rank, 2);
  expect_words(error, "rank 2 ended during set-up");
}

TEST(RendezvousServer, ARankThatDiesBeforeAllHaveComeIsNamedToAll) {
  const std::uint16_t port = free_port();
  std::atomic<bool> one_has_joined = false;
  on_ranks({0, 1, 2}, [&](std::int32_t rank) {
    if (rank == 0) {
      const Error error = failure_of(job(0, 4, port));
      expect_rank_2_ended(error);
      expect_words(error, "3 of 4 had not joined");  // rank 0 itself may not have joined
      return;
    }
    Rank by_hand(port, rank, 4);
    EXPECT_TRUE(by_hand.join());
    if (rank == 2) {
      EXPECT_TRUE(eventually([&] { return one_has_joined.load(); }));
      return;
    }
    one_has_joined = true;
    const std::string told = by_hand.receive_sealed();
    ASSERT_TRUE(told.starts_with('!'));
    expect_rank_2_ended(wire::unpack_failure(std::string_view(told).substr(1)));
  });
}

TEST(RendezvousServer, ARankThatDiesBetweenRoundsIsNamedToAll) {
  const std::uint16_t port = free_port();
  on_ranks(up_to(4), [&](std::int32_t rank) {
    if (rank == 2) {
      Rank dying(port, 2, 4);
      EXPECT_TRUE(dying.join());
      dying.send_sealed("b");
      EXPECT_EQ(dying.receive_sealed().substr(0, 1), "+");
      return;
    }
    auto bootstrap = tcp_bootstrap(job(rank, 4, port));
    ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    const auto blobs = (*bootstrap)->all_gather("x");
    ASSERT_FALSE(blobs.ok());
    expect_rank_2_ended(blobs.error());
  });
}

// The rank that leaves has destroyed its Bootstrap before the others begin the next round. If it is rank 0, its server
// must still answer them then: rank 0 does not wait for slow ranks, and its server does not need it.
TEST(RendezvousServer, ARankThatLeavesBetweenRoundsIsNamed) {
  for (const std::int32_t leaver : {0, 1}) {
    const std::uint16_t port = free_port();
    std::atomic<bool> has_left = false;
    on_ranks(up_to(3), [&](std::int32_t rank) {
      auto bootstrap = tcp_bootstrap(job(rank, 3, port));
      ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
      if (rank == leaver) {
        (*bootstrap)->set_succeeded();
        bootstrap->reset();
        has_left = true;
        return;
      }
      EXPECT_TRUE(eventually([&] { return has_left.load(); }));
      const auto blobs = (*bootstrap)->all_gather("x");
      ASSERT_FALSE(blobs.ok());
      expect_words(blobs.error(), "rank " + std::to_string(leaver) + " left set-up before the others");
    });
  }
}

// Rank 1 leaves between two rounds, while nobody is in a round. Rank 0 must notice that without a round, unless the
// set-up has succeeded on rank 1.
TEST(RendezvousServer, ARankKnowsBetweenRoundsThatAnotherHasFailed) {
  ASSERT_TRUE(TlsLibrary::open().ok());
  enum class Way : std::uint8_t { kFails, kFailsEncrypted, kDies, kSucceeds };
  for (const Way way : {Way::kFails, Way::kFailsEncrypted, Way::kDies, Way::kSucceeds}) {
    SCOPED_TRACE(static_cast<int>(way));
    const std::uint16_t port = free_port();
    std::atomic<bool> has_left = false;
    const auto options = [&](std::int32_t rank) {
      RendezvousOptions made = job(rank, 2, port);
      made.encrypt = way == Way::kFailsEncrypted;
      return made;
    };
    const auto leave = [&] {
      if (way == Way::kDies) {
        Rank dying(port, 1, 2);
        EXPECT_TRUE(dying.join());
        dying.send_sealed("b");
        EXPECT_EQ(dying.receive_sealed().substr(0, 1), "+");
        return;
      }
      auto bootstrap = tcp_bootstrap(options(1));
      ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
      if (way == Way::kSucceeds) (*bootstrap)->set_succeeded();
    };
    std::jthread other([&] {
      leave();
      has_left = true;
    });
    auto bootstrap = tcp_bootstrap(options(0));
    ASSERT_TRUE(bootstrap.ok()) << to_string(bootstrap.error());
    if (way == Way::kSucceeds) {
      EXPECT_TRUE(eventually([&] { return has_left.load(); }));
      EXPECT_FALSE((*bootstrap)->has_failed());
    } else {
      EXPECT_TRUE(eventually([&] { return (*bootstrap)->has_failed(); }));
    }
    const auto blobs = (*bootstrap)->all_gather("x");
    ASSERT_FALSE(blobs.ok());
    EXPECT_EQ(blobs.error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(blobs.error().rank, 1);
    // If rank 1 has succeeded, only the round of rank 0 shows that rank 1 is missing.
    expect_words(blobs.error(), way == Way::kSucceeds ? "rank 1 left set-up before the others"
                                : way == Way::kDies   ? "rank 1 ended during set-up"
                                                      : "rank 1 gave up set-up");
  }
}

}  // namespace
}  // namespace tutti::test
