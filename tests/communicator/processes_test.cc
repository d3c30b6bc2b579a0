// Tests ranks as processes: the rendezvous, shared memory through passed descriptors, and the death of a peer.
#include <algorithm>
#include <filesystem>
#include <set>

#include "bootstrap/raw_rank.h"
#include "communicator/process_support.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::set<std::string> shared_by_name() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().string().find("tutti") != std::string::npos) names.insert(entry.path());
  }
  return names;
}
const std::set<std::string> kSharedBefore = shared_by_name();  // made by other programs

bool shares_nothing_by_name() {
  const std::set<std::string> now = shared_by_name();
  return std::includes(kSharedBefore.begin(), kSharedBefore.end(), now.begin(), now.end());
}

int run_all_algorithms(const CommunicatorOptions& options) {
  auto rank = Communicator::create(options);
  if (!rank.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", options.rank, to_string(rank.error()).c_str());
    return 2;
  }
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    for (const std::size_t count : {1, 1000, 300'007}) {
      if (!sum_is_right(**rank, count, with(algorithm))) return 3;
      auto memory = (*rank)->allocate(count * sizeof(float));
      if (!memory.ok()) return 4;
      auto* data = reinterpret_cast<float*>(memory->data());
      for (std::size_t i = 0; i < count; ++i) data[i] = input_of((*rank)->rank(), i);
      if (!(*rank)->all_reduce(data, data, count, DataType::kFloat32, ReduceOp::kSum, with(algorithm)).ok()) return 5;
      for (std::size_t i = 0; i < count; ++i) {
        if (data[i] != sum_of(options.size, i)) return 6;
      }
      // This is a barrier: a rank must not free or refill its memory before all ranks have compared.
      if (!(*rank)->all_reduce(nullptr, nullptr, 0, DataType::kInt8, ReduceOp::kSum).ok()) return 7;
    }
  }
  return 0;
}

TEST(Processes, EveryAlgorithmPlainAndRegistered) {
  for (const std::int32_t size : {1, 2, 4, 7}) {
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < size; ++rank) {
      children.push_back(start([=] { return run_all_algorithms(job(rank, size, port)); }));
    }
    for (const pid_t child : children) EXPECT_EQ(status_of(child), 0) << size << " ranks";
    EXPECT_TRUE(shares_nothing_by_name());
  }
}

// Memory that is shared by parent and children. The ranks report to the test through it.
struct Report {
  std::atomic<int> ready;
  std::atomic<int> named_rank[8];
  std::atomic<std::int64_t> noticed_ms[8];
};

TEST(Processes, AKilledRankIsNamedByAllSurvivorsAndNothingIsLeft) {
  constexpr std::int32_t kSize = 4;
  Report& report = shared_object<Report>();
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    children.push_back(start([=, &report] {
      auto communicator = Communicator::create(job(rank, kSize, port));
      if (!communicator.ok()) return 2;
      std::vector<float> data(1 << 18, 1.0f);
      auto& counter = report.ready;
      ++counter;
      while (true) {
        const Status status =
            (*communicator)->all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax);
        if (status.ok()) continue;
        report.named_rank[rank] = status.error().rank;
        report.noticed_ms[rank] = now_ms();
        const bool said = status.error().code == ErrorCode::kPeerLost &&
                          status.error().message.find("rank 2") != std::string::npos &&
                          status.error().scope == ErrorScope::kCommunicator;
        if (!said) std::fprintf(stderr, "rank %d: %s\n", rank, to_string(status.error()).c_str());
        return said ? 0 : 3;
      }
    }));
  }
  wait_for(report.ready, kSize);
  // usually in the middle of a call; any other time must give the same result
  std::this_thread::sleep_for(milliseconds(200));
  const std::int64_t killed_ms = now_ms();
  kill(children[2], SIGKILL);
  for (std::int32_t rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(status_of(children[static_cast<std::size_t>(rank)]), rank == 2 ? 128 + SIGKILL : 0) << "rank " << rank;
    if (rank == 2) continue;
    EXPECT_EQ(report.named_rank[rank], 2);
    EXPECT_LT(report.noticed_ms[rank] - killed_ms, patience().count())
        << "the documented limit is one second on an idle machine";
  }
  EXPECT_TRUE(shares_nothing_by_name());
}

// A rank that only sends does not wait for messages of others. Here it must learn of the death of a rank that takes
// part in no other call.
TEST(Processes, ARankThatOnlySendsLearnsOfADeathToo) {
  for (const char* transport : {"tcp", "shm"}) {
    constexpr std::int32_t kSize = 4;
    Report& report = shared_object<Report>();
    const std::uint16_t port = free_port();
    std::vector<pid_t> children;
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      children.push_back(start([=, &report] {
        CommunicatorOptions options = job(rank, kSize, port);
        options.transport = transport;
        auto communicator = Communicator::create(options);
        if (!communicator.ok()) return 2;
        std::vector<float> data(40'000, 1.0f);
        auto& counter = report.ready;
        ++counter;
        const std::int64_t end_ms = now_ms() + patience().count();
        while (now_ms() < end_ms) {
          const Status status =
              (*communicator)->broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, 0);
          if (status.ok()) continue;
          report.named_rank[rank] = status.error().rank;
          report.noticed_ms[rank] = now_ms();
          return 0;
        }
        return 3;
      }));
    }
    wait_for(report.ready, kSize);
    std::this_thread::sleep_for(milliseconds(200));  // usually in the middle of a call, as above
    const std::int64_t killed_ms = now_ms();
    kill(children[2], SIGKILL);
    for (std::int32_t rank = 0; rank < kSize; ++rank) {
      const int status = status_of(children[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(status, rank == 2 ? 128 + SIGKILL : 0) << transport << ", rank " << rank << " never learnt of it";
      if (rank == 2 || status != 0) continue;
      EXPECT_EQ(report.named_rank[rank], 2) << transport << ", rank " << rank;
      EXPECT_LT(report.noticed_ms[rank] - killed_ms, patience().count())
          << "the documented limit is one second on an idle machine";
    }
  }
}

TEST(SetUp, AMissingRankIsNamedToAllWhoCame) {
  constexpr std::int32_t kSize = 4;
  const std::uint16_t port = free_port();
  Report& report = shared_object<Report>();
  std::vector<pid_t> children;
  for (const std::int32_t rank : {1, 3, 0}) {
    // the other ranks are already connecting when the short timeout of rank 0 begins
    if (rank == 0) wait_for(report.ready, 2);
    children.push_back(start([=, &report] {
      ++report.ready;
      CommunicatorOptions options = job(rank, kSize, port);
      if (rank == 0) options.setup_timeout = scaled(milliseconds(1500));
      auto communicator = Communicator::create(options);
      if (communicator.ok()) return 2;
      const Error& error = communicator.error();
      const bool said = error.code == ErrorCode::kTimeout && error.message.find("rank(s) 2 of 4") != std::string::npos;
      if (!said) std::fprintf(stderr, "rank %d: %s\n", rank, to_string(error).c_str());
      return said ? 0 : 3;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

TEST(SetUp, WithoutRankZeroTheOthersSayWhereTheyLooked) {
  CommunicatorOptions options = job(1, 2, free_port());
  options.setup_timeout = milliseconds(300);
  auto communicator = Communicator::create(options);
  ASSERT_FALSE(communicator.ok());
  EXPECT_EQ(communicator.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(communicator.error().rank, 0);
  EXPECT_NE(communicator.error().message.find(options.root), std::string::npos) << communicator.error().message;
}

// Foreign connections to the port are refused: garbage, a silent connection, a rank of another job, and a second
// copy of a rank. The real ranks must still be able to join.
TEST(SetUp, StrangersAreRefusedAndTheJobGoesOn) {
  const std::uint16_t port = free_port();
  const pid_t root = start([=] { return run_all_algorithms(job(0, 2, port)); });
  const RawConnection silent(port);
  RawConnection garbage(port);
  garbage.send_bytes(std::string(4096, 'x'));

  CommunicatorOptions other_job = job(1, 2, port);
  other_job.job_id = "another";
  auto refused = Communicator::create(other_job);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused) << to_string(refused.error());
  EXPECT_NE(refused.error().message.find("another job"), std::string::npos);

  CommunicatorOptions other_size = job(1, 3, port);
  refused = Communicator::create(other_size);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("3 ranks"), std::string::npos) << refused.error().message;

  const pid_t peer = start([=] { return run_all_algorithms(job(1, 2, port)); });
  EXPECT_EQ(status_of(peer), 0);
  EXPECT_EQ(status_of(root), 0);
}

TEST(SetUp, AnUnknownVariableIsRefusedWithTheNearestName) {
  ASSERT_EQ(setenv("TUTTI_SLOT_BYTE", "65536", 1), 0);
  auto ranks = Communicator::create_all(2);
  unsetenv("TUTTI_SLOT_BYTE");
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.error().code, ErrorCode::kConfig);
  EXPECT_NE(ranks.error().message.find("did you mean TUTTI_SLOT_BYTES"), std::string::npos) << ranks.error().message;
}

TEST(SetUp, RanksWithDifferentSlotsAreRefusedByName) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (const std::int32_t rank : {0, 1}) {
    children.push_back(start([=] {
      if (rank == 1) setenv("TUTTI_SLOTS", "8", 1);
      auto communicator = Communicator::create(job(rank, 2, port));
      if (communicator.ok()) return 2;
      return communicator.error().code == ErrorCode::kMismatch &&
                     communicator.error().message.find("TUTTI_SLOTS") != std::string::npos
                 ? 0
                 : 3;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(status_of(child), 0);
}

TEST(SetUp, AnInterfaceThatDoesNotExistIsRefusedWithThoseThatDo) {
  CommunicatorOptions options;
  options.rank = 0;
  options.size = 2;
  options.interface = "nosuch0";
  auto communicator = Communicator::create(options);
  ASSERT_FALSE(communicator.ok());
  EXPECT_NE(communicator.error().message.find("there are: "), std::string::npos) << communicator.error().message;
  EXPECT_NE(communicator.error().message.find("lo"), std::string::npos);
}

}  // namespace
}  // namespace tutti::test
