// Tests of the verbs transport's error reports over a real RDMA stack: a link goes down, or a device puts a queue
// pair into the error state. Runs in a guest of scripts/rdma-vm.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/rdma/verbs_support.h"
#include "transports/verbs/device.h"

namespace tutti {
namespace {

TEST_F(Verbs, ALinkThatGoesDownIsNamed) {
  if (!has_cables()) GTEST_SKIP() << "needs a cable: scripts/rdma-vm run --cables 1";
  open(1, 14, 3);
  auto sender = send(0);
  auto receiver = receive(1);
  ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  for (std::size_t i = 0; i < cables(); ++i) {
    ASSERT_EQ(std::system(("ip link set left" + std::to_string(i) + " down").c_str()), 0);
  }
  sender->send_from(nullptr, 0, call(1));
  EXPECT_TRUE(eventually([&] { return ranks[0]->peer_status(1).life == PeerLife::kUnreachable; }));
  const std::string trouble = ranks[0]->peer_trouble(1);
  EXPECT_NE(trouble.find("rxe_left0 port 1, queue pair "), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("at rank 1"), std::string::npos) << trouble;
  EXPECT_NE(ranks[0]->troubles().find("rxe_left0 port 1"), std::string::npos) << ranks[0]->troubles();
  // The other side has sent nothing. It learns of the failure from its peer's report, which uses TCP, or from its
  // own port.
  EXPECT_TRUE(eventually([&] { return ranks[1]->peer_status(0).life == PeerLife::kUnreachable; }));
  const std::string other = ranks[1]->peer_trouble(0);
  EXPECT_TRUE(other.find("rxe_right0 port 1 has been down for") != std::string::npos ||
              (other.find("rxe_right0 port 1, queue pair ") != std::string::npos &&
               other.find("rank 0 says: ") != std::string::npos))
      << other;
  EXPECT_FALSE(sender->ready());
  EXPECT_FALSE(sender->handed_over()) << "the message can never arrive";
  ranks.clear();
  for (std::size_t i = 0; i < cables(); ++i) {
    ASSERT_EQ(std::system(("ip link set left" + std::to_string(i) + " up").c_str()), 0);
  }
}

// The NIC repeats a message that did not arrive, and reads it again from the memory of the user. If the send is given
// up, it must not, because the user may have changed the memory.
TEST_F(Verbs, ASendThatIsGivenUpIsNotReadAnyMore) {
  if (!has_cables()) GTEST_SKIP() << "needs a cable: scripts/rdma-vm run --cables 1";
  constexpr int kRepeatMs = 2200;  // the time after which the NIC repeats a message, with the timeout of 19
  open(1, 19);
  auto sender = send(0);
  auto receiver = receive(1);
  ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  const auto drop_packets = [](const std::string& percent) {
    for (std::size_t i = 0; i < cables(); ++i) {
      const std::string command = "tc qdisc replace dev left" + std::to_string(i) + " root netem loss " + percent + '%';
      ASSERT_EQ(std::system(command.c_str()), 0);
    }
  };
  drop_packets("100");
  std::vector<std::byte> data = pattern(64 * 1024, 1);
  sender->send_pinned(data, data.data(), data.size(), call(1));
  EXPECT_FALSE(sender->pins_done());
  sender->drop_pins();
  drop_packets("0");
  Arrival arrival = Arrival::kNothing;
  EXPECT_FALSE(eventually([&] { return (arrival = receiver->arrival(call(1))) != Arrival::kNothing; }, 2 * kRepeatMs))
      << static_cast<int>(arrival);
  EXPECT_NE(ranks[0]->peer_trouble(1).find("a send was given up"), std::string::npos) << ranks[0]->peer_trouble(1);
  EXPECT_TRUE(eventually([&] { return ranks[1]->peer_status(0).life == PeerLife::kUnreachable; }));
}

// This rank sends nothing, so no failed completion reports the error. Soft-RoCE does not report it with an event
// either.
TEST_F(Verbs, ABrokenQueuePairIsNoticedByWhoOnlyReceives) {
  open();
  auto sender = send(0);
  auto receiver = receive(1);
  ASSERT_TRUE(eventually([&] { return sender->ready(); }));
  const std::string path = ranks[1]->peer_path(0);  // "rxe0 port 1, queue pair 17 (to ..."
  const std::string words = "queue pair ";
  const auto number = std::stoul(path.substr(path.find(words) + words.size()));
  const std::string name = path.substr(0, path.find(' '));
  const auto device = VerbsDevice::open(name, 0).value();
  const auto pairs = device->reports().pairs();
  const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const ibv_qp* one) { return one->qp_num == number; });
  ASSERT_NE(pair, pairs.end()) << path;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(device->library().modify_qp(*pair, &attributes, IBV_QP_STATE), 0);
  EXPECT_TRUE(eventually([&] { return ranks[1]->peer_status(0).life == PeerLife::kUnreachable; }));
  const std::string trouble = ranks[1]->peer_trouble(0);
  EXPECT_NE(trouble.find(name + " port 1, queue pair " + std::to_string(number) + ' '), std::string::npos) << trouble;
  EXPECT_NE(trouble.find("at rank 0"), std::string::npos) << trouble;
  // The queue pair at the other end still works, but its rank must have received the report.
  EXPECT_TRUE(eventually([&] { return ranks[0]->peer_status(1).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks[0]->peer_trouble(1).find("rank 1 says: "), std::string::npos) << ranks[0]->peer_trouble(1);
}

}  // namespace
}  // namespace tutti
