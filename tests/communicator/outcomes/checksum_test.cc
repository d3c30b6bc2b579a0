// Tests checksums with bits that are flipped between ranks: in a slot of shared memory, and in the bytes that go to
// a socket. The receiving rank must report the damage and the connection, the others must learn that the call
// failed, and the communicator must stay usable. This program interposes send() and sendmsg().
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>

#include "communicator/process_support.h"
#include "communicator/support.h"
#include "tests/support/threads.h"
#include "tutti/group.h"
#include "tutti/plan.h"

namespace {

// in bytes; longer than control messages, so that only messages with data are altered
constexpr std::size_t kLeastToFlip = 64 * 1024;
std::atomic<int> to_flip = 0;  // number of messages that are still to be altered

ssize_t send_flipped(int fd, const msghdr& message, int flags) {
  std::vector<char> bytes;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    const auto* from = static_cast<const char*>(message.msg_iov[i].iov_base);
    bytes.insert(bytes.end(), from, from + message.msg_iov[i].iov_len);
  }
  const std::size_t place = bytes.size() / 2;
  bytes[place] = static_cast<char>(bytes[place] ^ 0x10);
  const ssize_t sent = syscall(SYS_sendto, fd, bytes.data(), bytes.size(), flags, nullptr, 0);
  if (sent <= static_cast<ssize_t>(place)) ++to_flip;  // the flipped byte was not sent yet, so flip it again
  return sent;
}

bool takes_turn(std::size_t bytes) {
  int left = to_flip.load();
  return bytes >= kLeastToFlip && left > 0 && to_flip.compare_exchange_strong(left, left - 1);
}

}  // namespace

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) bytes += message->msg_iov[i].iov_len;
  return takes_turn(bytes) ? send_flipped(fd, *message, flags) : syscall(SYS_sendmsg, fd, message, flags);
}

extern "C" ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sendmsg(fd, &message, flags);
}

namespace tutti::test {
namespace {

// number of float32; needs many messages, so that no rank finishes before it learns of the damage
constexpr std::size_t kCount = 1 << 20;

// Makes `ranks` communicators. `all`: all messages have checksums; otherwise only calls with CallOptions::checksum.
Communicators summed(std::int32_t ranks, const char* transport, bool all = true, std::int32_t nodes = 1) {
  CommunicatorOptions options;
  options.timeout = patience();
  options.transport = transport;
  options.checksum = all;
  auto made = Communicator::create_all(ranks, options, nodes);
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

Status sum(Communicator& rank, std::vector<float>& data, bool asks = false) {
  CallOptions options;
  options.checksum = asks;
  return rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum, options);
}

// One rank must have detected the damage, and its error must name the sender, the receiver and the connection type.
// The errors of the others must report that the call failed.
void expect_one_found_it(const std::vector<Status>& results, const std::string& way) {
  int found = 0;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ASSERT_FALSE(results[rank].ok()) << "rank " << rank << " has no error";
    const Error& error = results[rank].error();
    EXPECT_EQ(error.code, ErrorCode::kDamaged) << to_string(error);
    if (error.message.find("the checksum of message") == std::string::npos) continue;
    ++found;
    const std::string hop = "from rank " + std::to_string(error.rank) + " to rank " + std::to_string(rank) + " over ";
    EXPECT_NE(error.message.find(hop + way), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("all_reduce #"), std::string::npos) << error.message;
  }
  EXPECT_EQ(found, 1);
}

void expect_good_sums(Communicators& ranks, bool ask = false) {
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> data(1000, 1.0F);
    const Status status = sum(rank, data, ask);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(data[999], static_cast<float>(ranks.size()));
  });
}

TEST(Checksums, FindABitThatWasFlippedInATcpStream) {
  for (const bool ask : {false, true}) {
    SCOPED_TRACE(ask ? "only calls that ask have checksums" : "all messages have checksums");
    Communicators ranks = summed(3, "tcp", !ask);
    expect_good_sums(ranks, ask);
    for (int round = 0; round < 3; ++round) {
      std::vector<Status> results(ranks.size());
      to_flip = 1;
      on_every_rank(ranks, [&](Communicator& rank) {
        std::vector<float> data(kCount, 1.0F);
        results[static_cast<std::size_t>(rank.rank())] = sum(rank, data, ask);
      });
      EXPECT_EQ(to_flip, 0) << "nothing was altered";
      expect_one_found_it(results, "tcp, 127.0.0.1:");
      expect_good_sums(ranks, ask);
    }
  }
}

TEST(Checksums, OfOneCallCoverThisCallOnly) {
  Communicators ranks = summed(2, "tcp", false);
  std::atomic<int> wrong = 0;
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> data(kCount, 1.0F);
    EXPECT_TRUE(sum(rank, data, true).ok());
    EXPECT_EQ(std::count(data.begin(), data.end(), 2.0F), kCount);
    data.assign(kCount, 1.0F);
    if (rank.rank() == 0) to_flip = 1;
    EXPECT_TRUE(rank.barrier().ok());
    EXPECT_TRUE(sum(rank, data).ok());
    wrong += static_cast<int>(kCount - std::count(data.begin(), data.end(), 2.0F));
  });
  EXPECT_EQ(to_flip, 0);
  EXPECT_GT(wrong, 0) << "the flipped bit changed no element, so the test has no effect";
}

// Every collective, in any order with calls without checksums.
TEST(Checksums, OfSingleCallsMixWithOtherCalls) {
  for (const auto& [transport, nodes] : {std::pair("shm", 1), std::pair("tcp", 1), std::pair("auto", 2)}) {
    Communicators ranks = summed(3, transport, false, nodes);
    on_every_rank(ranks, [](Communicator& rank) {
      CallOptions asking;
      asking.checksum = true;
      std::vector<std::int32_t> in(3, rank.rank());
      std::vector<std::int32_t> out(3, -1);
      const std::vector<std::int32_t> all{0, 1, 2};
      for (int round = 0; round < 3; ++round) {
        EXPECT_TRUE(rank.all_gather(in.data(), out.data(), 1, DataType::kInt32, asking).ok());
        EXPECT_EQ(out, all);
        EXPECT_TRUE(rank.all_to_all(in.data(), out.data(), 1, DataType::kInt32).ok());
        EXPECT_EQ(out, all);
        EXPECT_TRUE(sum_is_right(rank, 1000));
        const std::vector<std::size_t> ones(3, 1);
        out.assign(3, -1);
        EXPECT_TRUE(
            rank.all_to_all_v(in.data(), {.counts = ones}, out.data(), {.counts = ones}, DataType::kInt32, asking)
                .ok());
        EXPECT_EQ(out, all);
        EXPECT_TRUE(rank.barrier(asking).ok());
      }
      EXPECT_TRUE(rank.finalize().ok());
    });
  }
}

TEST(Checksums, OfACallMustBeAskedForOnAllRanks) {
  Communicators ranks = summed(3, "auto", false);
  for (int round = 0; round < 2; ++round) {
    on_every_rank(ranks, [](Communicator& rank) {
      std::vector<float> data(1000, 1.0F);
      const Status status = sum(rank, data, rank.rank() == 1);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
      if (rank.rank() == 1) {
        EXPECT_THAT(status.error().message, testing::HasSubstr("the barrier of a call with a checksum"));
      }
    });
    expect_good_sums(ranks, true);
  }
}

// A call with a checksum begins with a barrier, which is not taken for a barrier of the program.
TEST(Checksums, OfABarrierMustBeAskedForOnAllRanks) {
  Communicators ranks = summed(2, "auto", false);
  on_every_rank(ranks, [](Communicator& rank) {
    for (int call = 0; call < 2; ++call) EXPECT_TRUE(rank.barrier().ok());
    CallOptions options;
    options.checksum = rank.rank() == 1;
    const Status status = rank.barrier(options);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
    EXPECT_THAT(status.error().message, testing::HasSubstr("rank 0 passed an ordinary call"));
    EXPECT_THAT(status.error().message, testing::HasSubstr("rank 1 passed the barrier of a call with a checksum"));
  });
  expect_good_sums(ranks, true);
}

// A call with a wrong argument does not happen, so the rank can repeat it while the others wait in it.
TEST(Checksums, OfACallWithAWrongArgumentKeepNobodyWaiting) {
  Communicators ranks = summed(2, "auto", false);
  on_every_rank(ranks, [](Communicator& rank) {
    CallOptions asking;
    asking.checksum = true;
    float value = 1;
    if (rank.rank() == 0) {
      const Status refused = rank.all_reduce(&value, nullptr, 1, DataType::kFloat32, ReduceOp::kSum, asking);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      CallOptions impossible = asking;
      impossible.algorithm = Algorithm::kChain;  // only for broadcasts
      EXPECT_FALSE(rank.all_reduce(&value, &value, 1, DataType::kFloat32, ReduceOp::kSum, impossible).ok());
      Group group;
      EXPECT_FALSE(group.send(rank, &value, 1, DataType::kFloat32, 1, asking).ok());
    }
    EXPECT_TRUE(rank.all_reduce(&value, &value, 1, DataType::kFloat32, ReduceOp::kSum, asking).ok());
    EXPECT_EQ(value, 2);
  });
}

// Rank 1 comes too late for the barrier. It might have found it complete, so no rank may go on.
TEST(Checksums, OfACallWhoseBarrierTimesOutEndTheCommunicator) {
  Communicators ranks = summed(2, "auto", false);
  expect_good_sums(ranks, true);
  CallOptions asking;
  asking.checksum = true;
  asking.timeout = std::chrono::milliseconds(20);
  const Status late = ranks[0]->barrier(asking);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kTimeout) << to_string(late.error());
  EXPECT_GE(late.error().scope, ErrorScope::kCommunicator);
  asking.timeout = patience();
  const Status refused = ranks[1]->barrier(asking);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().code, ErrorCode::kTimeout) << to_string(refused.error());
}

// The second communicator, on which such calls run, does not have the plans of the program.
TEST(Checksums, OfACallAreRefusedWithPlansOfTheProgram) {
  PlanBuilder builder({.name = "pair", .ranks = 2, .order = Order::kByRank});
  PlanBuilder::Step first = builder.channel(0).step();
  first.local(Space::kInput, 0).receive(1).store(Space::kOutput, 0).send(1).completes();
  PlanBuilder::Channel second = builder.channel(1);
  second.step().local(Space::kInput, 0).send(0);
  second.step().receive(0).store(Space::kOutput, 0);
  const Result<UserPlan> plan = builder.build();
  ASSERT_TRUE(plan.ok()) << to_string(plan.error());
  Communicators ranks = summed(2, "auto", false);
  on_every_rank(ranks, [&](Communicator& rank) {
    ASSERT_TRUE(rank.use_plan(*plan).ok());
    std::vector<float> data(1000, 1.0F);
    const Status status = sum(rank, data, true);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported) << to_string(status.error());
    EXPECT_TRUE(sum(rank, data).ok());
  });
}

// Another thread aborts at any time: in the barrier, in the call, or between calls.
TEST(Checksums, OfACallEndWithAnAbort) {
  Communicators ranks = summed(2, "auto", false);
  std::atomic<int> begun = 0;
  std::thread aborts([&] {
    EXPECT_TRUE(eventually([&] { return begun >= 6; }));
    ranks[1]->abort();
  });
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> data(kCount, 1.0F);
    Status status;
    while (status.ok()) {
      ++begun;
      status = sum(rank, data, true);
    }
    EXPECT_EQ(status.error().code, ErrorCode::kAborted) << to_string(status.error());
    const Status refused = sum(rank, data);
    ASSERT_FALSE(refused.ok());
    EXPECT_GT(refused.error().scope, ErrorScope::kCall);
  });
  aborts.join();
}

TEST(Checksums, WithoutThemItGoesUnseen) {
  CommunicatorOptions options;
  options.transport = "tcp";
  auto ranks = Communicator::create_all(2, options);
  ASSERT_TRUE(ranks.ok());
  std::atomic<int> wrong = 0;
  to_flip = 1;
  on_every_rank(*ranks, [&](Communicator& rank) {
    std::vector<float> data(kCount, 1.0F);
    EXPECT_TRUE(sum(rank, data).ok());
    for (const float value : data) wrong += value != 2.0F;
  });
  EXPECT_EQ(to_flip, 0);
  EXPECT_GT(wrong, 0) << "the flipped bits changed no result, so the test has no effect";
}

TEST(Checksums, FindABitThatWasFlippedInATransfer) {
  Communicators ranks = summed(2, "tcp");
  to_flip = 1;
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> data(kCount, 1.0F);
    if (rank.rank() == 0) {
      // may finish before the receiver reads the message
      static_cast<void>(rank.send(data.data(), data.size(), DataType::kFloat32, 1));
      return;
    }
    const Status status = rank.receive(data.data(), data.size(), DataType::kFloat32, 0);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kDamaged) << to_string(status.error());
    EXPECT_EQ(status.error().rank, 0);
    EXPECT_NE(status.error().message.find("from rank 0 to rank 1 over tcp"), std::string::npos)
        << status.error().message;
  });
  expect_good_sums(ranks);
}

constexpr float kPattern = 1234.5F;

// Flips a bit in a slot of shared memory that is full of the pattern. Returns false if there is none.
bool flip_in_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  const std::vector<float> wanted(1024, kPattern);
  while (std::getline(maps, line)) {
    if (line.find("memfd:") == std::string::npos || line.find("rw-s") == std::string::npos) continue;
    const std::size_t dash = line.find('-');
    auto* at = reinterpret_cast<std::byte*>(std::stoull(line.substr(0, dash), nullptr, 16));
    const auto* end = reinterpret_cast<std::byte*>(std::stoull(line.substr(dash + 1), nullptr, 16));
    for (; at + wanted.size() * sizeof(float) <= end; at += 4096) {
      if (std::memcmp(at, wanted.data(), wanted.size() * sizeof(float)) != 0) continue;
      at[1000] ^= std::byte{1};
      return true;
    }
  }
  return false;
}

TEST(Checksums, FindABitThatWasFlippedInASlot) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "flipping a bit in the memory of running ranks is a data race";
#endif
  Communicators ranks = summed(2, "shm");
  expect_good_sums(ranks);
  std::vector<Status> results(2);
  std::atomic<pid_t> caller = 0;
  std::thread early([&] {
    std::vector<float> data(kCount, kPattern);
    caller = gettid();
    results[0] = sum(*ranks[0], data);
  });
  // Rank 0 has written its slots when it waits for rank 1. Rank 1 calls after the flip, so it has not read them yet.
  EXPECT_TRUE(eventually([&] { return caller != 0; }) && falls_asleep(caller));
  EXPECT_TRUE(flip_in_shared_memory()) << "the pattern was not found in shared memory";
  std::vector<float> data(kCount, 1.0F);
  results[1] = sum(*ranks[1], data);
  early.join();
  expect_one_found_it(results, "shared memory");
  expect_good_sums(ranks);
}

TEST(Checksums, MustBeAskedForOnAllRanks) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([=] {
      CommunicatorOptions options = job(rank, 2, port);
      options.checksum = rank == 1;
      const auto made = Communicator::create(options);
      ASSERT_FALSE(made.ok());
      EXPECT_EQ(made.error().code, ErrorCode::kMismatch);
      EXPECT_EQ(made.error().rank, 1);
      EXPECT_NE(made.error().message.find("TUTTI_CHECKSUM=1"), std::string::npos) << made.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The path test of the set-up (TUTTI_SELFTEST), which needs no checksums.
class PathTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TUTTI_SELFTEST", "1", 1);
    setenv("TUTTI_LOG", "info", 1);
  }
  void TearDown() override {
    unsetenv("TUTTI_SELFTEST");
    unsetenv("TUTTI_LOG");
  }
};

TEST_F(PathTest, NamesThePathThatAltersData) {
  CommunicatorOptions options;
  options.transport = "tcp";
  options.timeout = patience();
  to_flip = 1;
  const auto made = Communicator::create_all(3, options);
  EXPECT_EQ(to_flip, 0) << "nothing was altered";
  ASSERT_FALSE(made.ok());
  const Error& error = made.error();
  EXPECT_EQ(error.code, ErrorCode::kDamaged) << to_string(error);
  int sender = -1, receiver = -1;
  unsigned place = 0, sent = 0, received = 0;
  const std::size_t begin = error.message.find("path test: 1 path alters data: from rank ");
  ASSERT_NE(begin, std::string::npos) << error.message;
  EXPECT_EQ(
      std::sscanf(error.message.c_str() + begin,
                  "path test: 1 path alters data: from rank %d (host %*[^)]) to rank %d (host %*[^)]) over tcp: byte "
                  "%u of 1048576 was sent as 0x%x and received as 0x%x",
                  &sender, &receiver, &place, &sent, &received),
      5)
      << error.message;
  EXPECT_EQ(error.rank, sender);
  EXPECT_NE(sender, receiver);
  EXPECT_EQ(sent ^ received, 0x10U) << "the bit that was flipped";
}

TEST_F(PathTest, TellsTheSpeedOfEachKindOfPath) {
  testing::internal::CaptureStderr();
  auto made = Communicator::create_all(4, {}, 2);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(made.ok()) << to_string(made.error());
  for (const char* kind : {"path test: 4 paths over shared memory", "path test: 8 paths over tcp"}) {
    const std::size_t line = log.find(kind);
    ASSERT_NE(line, std::string::npos) << log;
    EXPECT_NE(log.find(" GB/s, median ", line), std::string::npos) << log;
  }
  on_every_rank(*made, [](Communicator& rank) {
    std::vector<float> data(1000, 1.0F);
    EXPECT_TRUE(sum(rank, data).ok());
    const auto agreement = rank.agree();
    ASSERT_TRUE(agreement.ok());
    EXPECT_EQ(agreement->last_operation, 1u) << "the test has made no call on this communicator";
  });
}

}  // namespace
}  // namespace tutti::test
