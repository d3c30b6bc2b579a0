// Collectives over verbs whose queue pairs break and whose links go down, one process for each rank: both get a typed
// error that says which way broke, soon, and a process that lives on keeps nothing of the communicator. Runs as both
// ranks of a guest: scripts/rdma-vm run --cables 1 --ranks 2.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transports/verbs/device.h"
#include "tutti/tutti.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = std::chrono::seconds(90);  // a dead link may keep the guest's kernel busy for 30 s
constexpr std::size_t kCount = 100'000;
// From the break to the error of each rank; measured 0.1 s where nobody else works.
constexpr auto kSoon = std::chrono::seconds(10);

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

class Calls : public testing::Test {
 protected:
  void SetUp() override {
    if (text_of("RANK").empty()) GTEST_SKIP() << "needs two ranks: scripts/rdma-vm run --cables 1 --ranks 2";
    rank = std::atoi(text_of("RANK").c_str());
    other = 1 - rank;
    own_device = text_of("RDMA_VM_DEVICES");
    setenv("TUTTI_RDMA_DEVICES", own_device.c_str(), 1);
    setenv("TUTTI_RDMA_TIMEOUT", "15", 1);  // 0.13 s, four times: the default's 4 s are long for a test
    setenv("TUTTI_RDMA_RETRIES", "4", 1);
  }
  // Ranks meet by their environment; each communicator of the process with a name of its own.
  std::unique_ptr<Communicator> meet() {
    CommunicatorOptions options;
    options.transport = "verbs";
    options.timeout = kDeadline;
    options.setup_timeout = kDeadline;
    options.job_id = testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(met++);
    auto made = Communicator::create(options);
    EXPECT_TRUE(made.ok()) << to_string(made.error());
    return made.ok() ? std::move(*made) : nullptr;
  }
  // A file of the guest's, which both ranks see.
  std::filesystem::path note() const {
    return std::filesystem::temp_directory_path() / testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // The device takes this process's queue pairs out of service.
  void break_pairs() {
    const auto device = VerbsDevice::open(own_device, 0).value();  // the communicator's
    const std::vector<ibv_qp*> pairs = device->reports().pairs();
    ASSERT_FALSE(pairs.empty());
    std::ofstream file(note());
    file << now_ms();
    for (const ibv_qp* pair : pairs) file << ' ' << pair->qp_num;
    file << std::endl;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    for (ibv_qp* pair : pairs) ASSERT_EQ(device->library().modify_qp(pair, &attributes, IBV_QP_STATE), 0);
  }
  // A rank's error: of the right kind, about the other, by words that name the way.
  void expect_names_the_way(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kPeerLost);
    EXPECT_EQ(error.scope, ErrorScope::kCommunicator);
    // Its own board may be quicker than what it says of the queue pair: then the way is named, and this rank blamed.
    const bool by_board = error.message.find("it cannot reach this rank any more") != std::string::npos;
    EXPECT_TRUE(error.rank == other || by_board) << error.rank << ": " << error.message;
    EXPECT_NE(error.message.find(own_device + " port 1, queue pair "), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("at rank " + std::to_string(other)), std::string::npos) << error.message;
  }

  std::int32_t rank = 0;
  std::int32_t other = 1;
  std::string own_device;
  int met = 0;
};

// How many of each the kernel keeps for this process: open files, and what `rdma resource` shows as its own.
std::string kept() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  std::string text = "files " + std::to_string(std::distance(begin(files), end(files)));
  const std::string own = "pid " + std::to_string(getpid()) + " ";
  for (const std::string what : {"qp", "cq", "mr", "pd"}) {
    FILE* const shown = popen(("rdma resource show " + what).c_str(), "r");
    std::array<char, 1024> line{};
    int count = 0;
    while (shown != nullptr && fgets(line.data(), line.size(), shown) != nullptr) {
      count += std::string(line.data()).find(own) != std::string::npos ? 1 : 0;
    }
    if (shown == nullptr || pclose(shown) != 0) return "rdma resource show " + what + " failed";
    text += ", " + what + " " + std::to_string(count);
  }
  return text;
}

enum class Kind : std::uint8_t { kBroadcast, kSum, kMessage };

Status call(Communicator& communicator, Kind kind, std::int32_t rank, std::vector<float>& data) {
  switch (kind) {
    case Kind::kBroadcast: return communicator.broadcast(data.data(), data.data(), kCount, DataType::kFloat32, 0);
    case Kind::kSum:
      return communicator.all_reduce(data.data(), data.data(), kCount, DataType::kFloat32, ReduceOp::kMax);
    case Kind::kMessage:
      return rank == 0 ? communicator.send(data.data(), kCount, DataType::kFloat32, 1)
                       : communicator.receive(data.data(), kCount, DataType::kFloat32, 0);
  }
  return {};
}

// Rank 0 sends. The device of one of the two takes its queue pairs out of service in the middle.
class BrokenPairs : public Calls {
 protected:
  // Rank 0's end of the cable goes down in the middle, and both ports with it.
  void expect_both_to_be_told_of_the_link() {
    std::vector<float> data(kCount, 1);
    auto communicator = meet();
    ASSERT_NE(communicator, nullptr);
    ASSERT_TRUE(communicator->barrier().ok());
    std::thread unplugs([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (rank == 1) return;
      EXPECT_EQ(std::system("ip link set left0 down"), 0);  // NOLINT(cert-env33-c): in a guest of this test's
    });
    Status status;
    while (status.ok()) status = call(*communicator, Kind::kSum, rank, data);
    unplugs.join();
    EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
    EXPECT_NE(status.error().message.find(own_device + " port 1"), std::string::npos) << status.error().message;
  }
  void expect_both_to_be_told(Kind kind, std::int32_t breaker) {
    std::vector<float> data(kCount, 1);
    auto communicator = meet();
    ASSERT_NE(communicator, nullptr);
    ASSERT_TRUE(communicator->barrier().ok());
    std::thread breaks([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (rank == breaker) break_pairs();
    });
    Status status;
    while (status.ok()) status = call(*communicator, kind, rank, data);
    const std::int64_t ended_ms = now_ms();
    breaks.join();
    expect_names_the_way(status.error());
    std::int64_t broken_ms = 0;
    std::ifstream file(note());
    file >> broken_ms;
    bool named = false;
    for (std::string number; file >> number;) {
      named |= status.error().message.find("queue pair " + number + ' ') != std::string::npos;
    }
    EXPECT_TRUE(named) << status.error().message;
    EXPECT_LT(ended_ms - broken_ms, std::chrono::milliseconds(kSoon).count()) << status.error().message;
    std::cout << "rank " << rank << " after " << ended_ms - broken_ms << " ms: " << status.error().message << std::endl;
  }
};

TEST_F(BrokenPairs, OfABroadcastsSender) { expect_both_to_be_told(Kind::kBroadcast, 0); }
TEST_F(BrokenPairs, OfABroadcastsReceiver) { expect_both_to_be_told(Kind::kBroadcast, 1); }
TEST_F(BrokenPairs, OfASum) { expect_both_to_be_told(Kind::kSum, 1); }
TEST_F(BrokenPairs, OfAMessagesSender) { expect_both_to_be_told(Kind::kMessage, 0); }
TEST_F(BrokenPairs, OfAMessagesReceiver) { expect_both_to_be_told(Kind::kMessage, 1); }

// The process lives on: after the first communicator, which opens what stays open, each one leaves as much as it found.
TEST_F(BrokenPairs, AndLinksLeaveNothingBehind) {
  expect_both_to_be_told(Kind::kSum, 0);
  const std::string first = kept();
  EXPECT_NE(first.find("qp 0, "), std::string::npos) << first;
  EXPECT_NE(first.find("mr 0, "), std::string::npos) << first;
  {
    auto lives = meet();
    std::vector<float> data(kCount, 1);
    ASSERT_TRUE(lives != nullptr && call(*lives, Kind::kSum, rank, data).ok());
    EXPECT_NE(kept(), first) << "a communicator that works has queue pairs";
    ASSERT_TRUE(lives->barrier().ok());
  }
  EXPECT_EQ(kept(), first) << "after one that ended well";
  expect_both_to_be_told(Kind::kMessage, 1);
  EXPECT_EQ(kept(), first) << "after a broken queue pair";
  expect_both_to_be_told_of_the_link();
  EXPECT_EQ(kept(), first) << "after a link went down";
}

}  // namespace
}  // namespace tutti
