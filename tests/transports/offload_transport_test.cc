// Tests of OffloadTransport: how it reports a peer that its TCP part cannot reach.
#include "transports/rdma/offload_transport.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tcp_support.h"

namespace tutti::tcp_test {
namespace {

// A data path that reaches no peer. `broken` is the error that it reports for every peer.
class IdlePath final : public DataPath {
 public:
  explicit IdlePath(std::optional<std::string> broken) : broken_(std::move(broken)) {}
  std::string_view name() const override { return "idle"; }
  bool reaches(std::uint32_t) const override { return false; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t, std::uint16_t) override { return Error{}; }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t, std::uint16_t) override { return Error{}; }
  void pump() override {}
  bool flush() override { return true; }
  std::optional<std::string> broken(std::uint32_t) override { return broken_; }
  void drain(std::int64_t) override {}
  std::string troubles() override { return ""; }

 private:
  const std::optional<std::string> broken_;
};

std::unique_ptr<OffloadTransport> rank_0(const std::string& peer, std::optional<std::string> broken) {
  const TcpTransportOptions options{
      .rank = 0, .ranks = 2, .communicator = kCommunicator, .slots = kSlots, .slot_bytes = kSlotBytes};
  return OffloadTransport::create(
             options, endpoint(), {"", peer},
             [&](const DataPathHost&) {
               return Result<std::unique_ptr<DataPath>>(std::make_unique<IdlePath>(std::move(broken)));
             })
      .value();
}

// The peer belongs to another job, so it refuses the connection because of the wrong key.
TEST(OffloadTransport, SaysWhyTcpCannotReachAPeer) {
  const auto other_job = endpoint({.address = "127.0.0.1", .key = {7}});
  const auto rank = rank_0(other_job->address(), std::nullopt);
  auto send = rank->open_send(1, 0).value();
  send->send_from(nullptr, 0, call(1));
  EXPECT_TRUE(eventually([&] {
    rank->pump();
    rank->flush();
    other_job->service();
    return rank->peer_status(1).life == PeerLife::kUnreachable;
  }));
  EXPECT_NE(rank->peer_trouble(1).find("refused"), std::string::npos) << rank->peer_trouble(1);
}

TEST(OffloadTransport, DoesNotSayThatAnUnreachablePeerHasEnded) {
  const std::string nobody = endpoint()->address();
  const auto rank = rank_0(nobody, "the cable is out");
  rank->enter_call(call(1), {});
  rank->announce_abort();  // opens a connection to the peer, which fails
  EXPECT_TRUE(eventually([&] {
    rank->pump();
    return !rank->troubles().empty();
  }));
  const PeerStatus status = rank->peer_status(1);
  EXPECT_EQ(status.life, PeerLife::kUnreachable);
  EXPECT_FALSE(status.ended);
  EXPECT_EQ(rank->peer_trouble(1), "the cable is out");
}

}  // namespace
}  // namespace tutti::tcp_test
