// Tests connections that something between the ranks closes, for example a firewall or a proxy. The error must not
// claim that a process has ended.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "support.h"

namespace tutti::test {
namespace {

// Returns the descriptors of this process's TCP connections.
std::set<int> tcp_connections() {
  std::set<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family == AF_INET)
      found.insert(fd);
  }
  return found;
}

TEST(CutConnections, AreNotTakenForTheEndOfAProcess) {
  const std::set<int> others = tcp_connections();
  CommunicatorOptions options;
  options.timeout = patience();
  options.transport = "tcp";
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok()) << to_string(made.error());
  Communicators ranks = std::move(*made);
  std::vector<float> values(2000, 1);
  const auto sum = [&](Communicator& rank) {
    std::vector<float> total(values.size());
    return rank.all_reduce(values.data(), total.data(), values.size(), DataType::kFloat32, ReduceOp::kSum, {});
  };
  on_every_rank(ranks, [&](Communicator& rank) { EXPECT_TRUE(sum(rank).ok()); });
  int cut = 0;
  for (const int fd : tcp_connections()) cut += others.count(fd) == 0 && shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
  ASSERT_GT(cut, 0);
  std::mutex mutex;
  std::vector<std::string> errors;
  on_every_rank(ranks, [&](Communicator& rank) {
    const Status status = sum(rank);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kPeerLost) << to_string(status.error());
    const std::scoped_lock lock(mutex);
    errors.push_back(status.error().message);
  });
  // number of ranks that report the cause themselves; the other rank may only repeat the error of its peer
  std::size_t right = 0;
  for (const std::string& error : errors) {
    EXPECT_EQ(error.find("process has ended"), std::string::npos) << error;
    right += error.find("something still takes connections at its port: ") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(right, 0u) << errors.front();
}

}  // namespace
}  // namespace tutti::test
