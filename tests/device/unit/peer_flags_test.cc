// Tests of PeerFlags: two ranks of different processes see each other's flags, through streams and on the host.
#include "device/native/peer_flags.h"

#include <gmock/gmock.h>

#include "executor/device_arena.h"
#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

using tutti::detail::PeerFlags;
using Kind = PeerFlags::Kind;
using testing::HasSubstr;

class PeerFlagsTest : public CudaTest {};

TEST_F(PeerFlagsTest, EachRankAndKindHasAFlagOfItsOwn) {
  const auto flags = good(PeerFlags::create(driver()));
  for (const Kind kind : {Kind::kClosed, Kind::kEven, Kind::kOdd}) {
    for (std::uint32_t peer = 0; peer < kMostDeviceRanks; ++peer) {
      EXPECT_EQ(flags->flag(kind, peer).exchange(peer + 1), 0U) << "rank " << peer;
    }
  }
  for (std::uint32_t peer = 0; peer < kMostDeviceRanks; ++peer) {
    EXPECT_EQ(flags->flag(Kind::kClosed, peer).load(), peer + 1);
  }
}

TEST_F(PeerFlagsTest, AStreamOfThePeerSetsTheFlagThatTheOwnerReads) {
  const auto own = good(PeerFlags::create(driver()));
  const auto of_peer = good(PeerFlags::open(driver(), good(Mapping::map_again(*own->mapping()))));
  const auto stream = good(Stream::create(driver()));
  ASSERT_NE(of_peer->on_device(Kind::kOdd, 3), own->on_device(Kind::kOdd, 3)) << "each rank has its own address";
  ASSERT_EQ(driver().api().stream_write_value32(stream.handle(), of_peer->on_device(Kind::kOdd, 3), 7, kWriteDefault),
            CUresult::kSuccess);
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(own->flag(Kind::kOdd, 3).load(), 7U);
  EXPECT_EQ(own->flag(Kind::kEven, 3).load(), 0U);
}

TEST_F(PeerFlagsTest, AStoreOfTheHostReleasesAStream) {
  const auto flags = good(PeerFlags::create(driver()));
  const auto stream = good(Stream::create(driver()));
  ASSERT_EQ(driver().api().stream_wait_value32(stream.handle(), flags->on_device(Kind::kEven, 1), 5, kWaitEqual),
            CUresult::kSuccess);
  EXPECT_EQ(driver().api().stream_query(stream.handle()), CUresult::kNotReady);
  flags->flag(Kind::kEven, 1).store(5);
  EXPECT_TRUE(stream.synchronize().ok());
}

TEST_F(PeerFlagsTest, AMappingThatIsTooShortIsRefused) {
  const auto flags = PeerFlags::open(driver(), good(Mapping::create(1, false)));
  ASSERT_FALSE(flags.ok());
  EXPECT_EQ(flags.error().code, ErrorCode::kRefused);
  EXPECT_THAT(flags.error().message, HasSubstr("too short"));
}

}  // namespace
}  // namespace tutti::cuda
