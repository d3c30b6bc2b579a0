// Tests of collectives over verbs when queue pairs break or links go down, with one process for each rank. Both
// ranks must soon get a typed error that names the broken path, and a process that continues must keep no resources
// of the communicator. Runs as both ranks of a guest: scripts/rdma-vm run --cables 1 --ranks 2.
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

constexpr auto kDeadline = std::chrono::seconds(90);  // a dead link can keep the kernel of the guest busy for 47 s
constexpr std::size_t kCount = 100'000;
// The time from the fault to the error on each rank. We measured 0.1 s on an otherwise idle machine.
constexpr auto kMaxDetectionTime = std::chrono::seconds(30);  // an emulated guest may be slow

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
    setenv("TUTTI_RDMA_TIMEOUT", "15", 1);  // 0.13 s, four times; the default of 4 s would make the test slow
    setenv("TUTTI_RDMA_RETRIES", "4", 1);
  }
  // Creates a communicator of both ranks, which find each other through the environment. Each one has a job id of
  // its own.
  std::unique_ptr<Communicator> create_communicator() {
    CommunicatorOptions options;
    options.transport = "verbs";
    options.timeout = kDeadline;
    options.setup_timeout = kDeadline;
    options.job_id = testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(created_count++);
    auto made = Communicator::create(options);
    EXPECT_TRUE(made.ok()) << to_string(made.error());
    return made.ok() ? std::move(*made) : nullptr;
  }
  // A file of the guest, which both ranks can access.
  std::filesystem::path fault_file() const {
    return std::filesystem::temp_directory_path() / testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  // Puts this process's queue pairs into the error state, as a failing device does.
  void break_pairs() {
    const auto device = VerbsDevice::open(own_device, 0).value();  // the device that the communicator uses
    const std::vector<ibv_qp*> pairs = device->reports().pairs();
    ASSERT_FALSE(pairs.empty());
    std::ofstream file(fault_file());
    file << now_ms();
    for (const ibv_qp* pair : pairs) file << ' ' << pair->qp_num;
    file << std::endl;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    for (ibv_qp* pair : pairs) ASSERT_EQ(device->library().modify_qp(pair, &attributes, IBV_QP_STATE), 0);
  }
  // Checks a rank's error: its code and scope, that it names the other rank, and that it describes the broken path.
  void expect_names_the_path(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kPeerLost);
    EXPECT_EQ(error.scope, ErrorScope::kCommunicator);
    // A board (the status over TCP) can arrive before this rank notices its own broken queue pair. Then the error
    // names this rank, but it still describes the path.
    const bool by_board = error.message.find("it cannot reach this rank any more") != std::string::npos;
    EXPECT_TRUE(error.rank == other || by_board) << error.rank << ": " << error.message;
    EXPECT_NE(error.message.find(own_device + " port 1, queue pair "), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("at rank " + std::to_string(other)), std::string::npos) << error.message;
  }

  std::int32_t rank = 0;
  std::int32_t other = 1;
  std::string own_device;
  int created_count = 0;
};

// Returns how many resources this process holds: its open files, and the objects that `rdma resource` lists for it.
std::string held_resources() {
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

enum class CallType : std::uint8_t { kBroadcast, kSum, kMessage };

Status call(Communicator& communicator, CallType type, std::int32_t rank, std::vector<float>& data) {
  switch (type) {
    case CallType::kBroadcast: return communicator.broadcast(data.data(), data.data(), kCount, DataType::kFloat32, 0);
    case CallType::kSum:
      return communicator.all_reduce(data.data(), data.data(), kCount, DataType::kFloat32, ReduceOp::kMax);
    case CallType::kMessage:
      return rank == 0 ? communicator.send(data.data(), kCount, DataType::kFloat32, 1)
                       : communicator.receive(data.data(), kCount, DataType::kFloat32, 0);
  }
  return {};
}

// Rank 0 sends. In the middle of a call, the device of one of the two ranks puts its queue pairs into the error
// state.
class BrokenPairs : public Calls {
 protected:
  // In the middle of a call, rank 0's end of the cable goes down, and with it both ports.
  void expect_link_error_on_both() {
    std::vector<float> data(kCount, 1);
    auto communicator = create_communicator();
    ASSERT_NE(communicator, nullptr);
    ASSERT_TRUE(communicator->barrier().ok());
    std::thread unplugs([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (rank == 1) return;
      EXPECT_EQ(std::system("ip link set left0 down"), 0);  // NOLINT(cert-env33-c): in a guest of this test's
    });
    Status status;
    while (status.ok()) status = call(*communicator, CallType::kSum, rank, data);
    unplugs.join();
    EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
    EXPECT_NE(status.error().message.find(own_device + " port 1"), std::string::npos) << status.error().message;
  }
  void expect_error_on_both(CallType type, std::int32_t breaker) {
    std::vector<float> data(kCount, 1);
    auto communicator = create_communicator();
    ASSERT_NE(communicator, nullptr);
    ASSERT_TRUE(communicator->barrier().ok());
    std::thread breaks([&] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (rank == breaker) break_pairs();
    });
    Status status;
    while (status.ok()) status = call(*communicator, type, rank, data);
    const std::int64_t ended_ms = now_ms();
    breaks.join();
    expect_names_the_path(status.error());
    std::int64_t broken_ms = 0;
    std::ifstream file(fault_file());
    file >> broken_ms;
    bool named = false;
    for (std::string number; file >> number;) {
      named |= status.error().message.find("queue pair " + number + ' ') != std::string::npos;
    }
    EXPECT_TRUE(named) << status.error().message;
    EXPECT_LT(ended_ms - broken_ms, std::chrono::milliseconds(kMaxDetectionTime).count()) << status.error().message;
    std::cout << "rank " << rank << " after " << ended_ms - broken_ms << " ms: " << status.error().message << std::endl;
  }
};

TEST_F(BrokenPairs, OfABroadcastsSender) { expect_error_on_both(CallType::kBroadcast, 0); }
TEST_F(BrokenPairs, OfABroadcastsReceiver) { expect_error_on_both(CallType::kBroadcast, 1); }
TEST_F(BrokenPairs, OfASum) { expect_error_on_both(CallType::kSum, 1); }
TEST_F(BrokenPairs, OfAMessagesSender) { expect_error_on_both(CallType::kMessage, 0); }
TEST_F(BrokenPairs, OfAMessagesReceiver) { expect_error_on_both(CallType::kMessage, 1); }

// The process continues. The first communicator opens some resources that stay open. After that, each communicator
// must release everything that it has opened.
TEST_F(BrokenPairs, AndLinksLeaveNothingBehind) {
  expect_error_on_both(CallType::kSum, 0);
  const std::string first = held_resources();
  EXPECT_NE(first.find("qp 0, "), std::string::npos) << first;
  EXPECT_NE(first.find("mr 0, "), std::string::npos) << first;
  {
    auto working = create_communicator();
    std::vector<float> data(kCount, 1);
    ASSERT_TRUE(working != nullptr && call(*working, CallType::kSum, rank, data).ok());
    EXPECT_NE(held_resources(), first) << "a working communicator must have queue pairs";
    ASSERT_TRUE(working->barrier().ok());
  }
  EXPECT_EQ(held_resources(), first) << "after a communicator that ended normally";
  expect_error_on_both(CallType::kMessage, 1);
  EXPECT_EQ(held_resources(), first) << "after a broken queue pair";
  expect_link_error_on_both();
  EXPECT_EQ(held_resources(), first) << "after a link went down";
}

}  // namespace
}  // namespace tutti
