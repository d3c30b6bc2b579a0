// What the verbs transport says when something breaks, over a real RDMA stack: a link that goes down. Runs in a guest
// of scripts/rdma-vm.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/rdma/verbs_support.h"

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
  // The other side has sent nothing, and knows by its port.
  EXPECT_TRUE(eventually([&] { return ranks[1]->peer_status(0).life == PeerLife::kUnreachable; }));
  EXPECT_NE(ranks[1]->peer_trouble(0).find("rxe_right0 port 1 has been down for"), std::string::npos)
      << ranks[1]->peer_trouble(0);
  EXPECT_FALSE(sender->ready());
  EXPECT_FALSE(sender->handed_over()) << "it has not arrived, and never will";
  ranks.clear();
  for (std::size_t i = 0; i < cables(); ++i) {
    ASSERT_EQ(std::system(("ip link set left" + std::to_string(i) + " up").c_str()), 0);
  }
}

}  // namespace
}  // namespace tutti
