// Tests of calls that the host carries out for ranks of one process that share a GPU, with the fake driver. The streams
// of these ranks share hardware queues, so no stream may wait for another rank; the threads wait instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <optional>
#include <thread>

#include "base/assert.h"
#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;

// Long enough that a rank that sends them waits for the receiver.
constexpr std::size_t kSharedBytes = 4 << 20;

// A rank of the process, with a stream of its own on GPU 0.
struct Member {
  explicit Member(Communicator& communicator) : rank(&communicator), memory(gpu.allocate(kSharedBytes)) {
    gpu.put(memory, Bytes(kSharedBytes, static_cast<std::byte>(communicator.rank() + 1)));
  }
  CollectiveCall call(Kind kind) const {
    return {.kind = kind,
            .input = pointer(memory),
            .output = pointer(memory),
            .count = kSharedBytes,
            .type = DataType::kUint8,
            .root = 0};
  }
  Status run(Kind kind) const { return rank->run(call(kind), on(gpu)); }
  Bytes result() const { return gpu.get(memory); }

  Communicator* rank;
  Gpu gpu{0};
  cuda::DeviceMemory memory;
};

Communicators ranks_of_one_gpu() {
  driver();  // loads the driver before the communicators are created
  CommunicatorOptions options;
  options.timeout = patience();
  options.devices = {0, 0};
  auto made = Communicator::create_all(2, options);
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

// Runs an all-reduce of both ranks in a Group.
Status sum_of_both(const Member& first, const Member& second) {
  Group group;
  for (const Member* member : {&first, &second})
    TUTTI_TRY(group.add(*member->rank, member->call(Kind::kAllReduce), on(member->gpu)));
  return group.run();
}

TEST(SharedGpu, ACallWithoutOutputHoldsUpNoStream) {
  Communicators ranks = ranks_of_one_gpu();
  const Member root(*ranks[0]);
  const Member other(*ranks[1]);
  ASSERT_TRUE(root.run(Kind::kBroadcast).ok());
  root.gpu.synchronize();  // although the other rank has not made the call
  ASSERT_TRUE(other.run(Kind::kBroadcast).ok());
  EXPECT_EQ(other.result(), Bytes(kSharedBytes, std::byte{1}));
  ASSERT_TRUE(other.run(Kind::kReduce).ok());
  other.gpu.synchronize();
  ASSERT_TRUE(root.run(Kind::kReduce).ok());
  EXPECT_EQ(root.result(), Bytes(kSharedBytes, std::byte{2}));
}

TEST(SharedGpu, TheWorkOfACallWithoutOutputEndsWithTheCall) {
  Communicators ranks = ranks_of_one_gpu();
  const Member root(*ranks[0]);
  const Member other(*ranks[1]);
  auto work = root.rank->start(root.call(Kind::kBroadcast), on(root.gpu));
  ASSERT_TRUE(work.ok()) << to_string(work.error());
  root.gpu.synchronize();
  EXPECT_FALSE(work->test());
  ASSERT_TRUE(other.run(Kind::kBroadcast).ok());
  const Status waited = work->wait();
  EXPECT_TRUE(waited.ok()) << to_string(waited.error());
}

// Captures a call of the rank in a graph that is never launched. From then on, the streams submit the rank's calls.
void capture_a_call(const Gpu& gpu, Communicator& rank, const cuda::DeviceMemory& memory) {
  auto* const stream = gpu.stream();
  ASSERT_EQ(driver().api().stream_begin_capture(stream, cuda::CaptureMode::kThreadLocal), cuda::CUresult::kSuccess);
  EXPECT_TRUE(rank.all_reduce(pointer(memory), pointer(memory), 4, DataType::kUint8, ReduceOp::kSum, on(gpu)).ok());
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver().api().stream_end_capture(stream, &graph), cuda::CUresult::kSuccess);
  EXPECT_EQ(driver().api().graph_destroy(graph), cuda::CUresult::kSuccess);
}

TEST(SharedGpu, AbortEndsTheWaitOfACallThatItsStreamHasNotReached) {
  Communicators ranks = ranks_of_one_gpu();
  const Member member(*ranks[0]);
  capture_a_call(member.gpu, *member.rank, member.memory);
  const BlockedStream held(driver(), member.gpu.stream());
  const unsigned before = fake().calls("cuLaunchHostFunc");
  std::atomic<bool> over = false;
  std::optional<Status> ended;
  std::thread caller([&] {
    ended = member.run(Kind::kAllReduce);
    over = true;
  });
  while (fake().calls("cuLaunchHostFunc") == before && !over) std::this_thread::yield();  // until it is in the stream
  member.rank->abort();
  caller.join();
  ASSERT_FALSE(ended->ok());
  EXPECT_EQ(ended->error().code, ErrorCode::kAborted);
}

TEST(SharedGpu, AbortEndsTheWorkOfACallWithoutOutputThatItsStreamHasNotReached) {
  Communicators ranks = ranks_of_one_gpu();
  const Member member(*ranks[1]);
  capture_a_call(member.gpu, *member.rank, member.memory);
  const BlockedStream held(driver(), member.gpu.stream());
  auto work = member.rank->start(member.call(Kind::kReduce), on(member.gpu));
  ASSERT_TRUE(work.ok()) << to_string(work.error());
  EXPECT_FALSE(work->test());
  member.rank->abort();
  const Status ended = work->wait();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code, ErrorCode::kAborted);
}

TEST(SharedGpu, AContextThatIsLostBeforeTheInputEndsTheWorkOfACallWithoutOutput) {
  Communicators ranks = ranks_of_one_gpu();
  const cuda::CUcontext context = fake().create_context(0);
  {
    const Gpu gpu(0, context);
    const cuda::DeviceMemory memory = gpu.allocate(4);
    capture_a_call(gpu, *ranks[1], memory);
    std::atomic<bool> fails = false;
    fake().register_kernel({"bad", {}, [&](const cuda::fake::FakeLaunch&) {
                              while (!fails) std::this_thread::yield();
                              return cuda::CUresult::kIllegalAddress;
                            }});
    const auto module = *cuda::Module::load(driver(), "fake image");
    ASSERT_EQ(
        driver().api().launch_kernel(*module.function("bad"), 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, nullptr),
        cuda::CUresult::kSuccess);
    auto work = ranks[1]->start({.kind = Kind::kReduce,
                                 .input = pointer(memory),
                                 .output = pointer(memory),
                                 .count = 4,
                                 .type = DataType::kUint8,
                                 .root = 0},
                                on(gpu));
    fails = true;
    ASSERT_TRUE(work.ok()) << to_string(work.error());
    const Status ended = work->wait();
    ASSERT_FALSE(ended.ok());
    EXPECT_THAT(ended.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  fake().destroy_context(context);
}

// A Group waits for the end of its call on device memory. Meanwhile its call on host memory must go on, because the
// other rank makes the two calls one after the other.
TEST(SharedGpu, AGroupWithACallOnHostMemoryDrivesItMeanwhile) {
  Communicators on_gpu = ranks_of_one_gpu();
  Communicators on_host = make_ranks(2);
  on_every_rank(on_gpu, [&](Communicator& rank) {
    const Member member(rank);
    Communicator& host = *on_host[static_cast<std::size_t>(rank.rank())];
    Bytes bytes(kSharedBytes, std::byte{7});
    if (rank.rank() == 0) {
      Group group;
      ASSERT_TRUE(group.send(host, bytes.data(), bytes.size(), DataType::kUint8, 1).ok());
      ASSERT_TRUE(group.add(rank, member.call(Kind::kAllReduce), on(member.gpu)).ok());
      const Status status = group.run();
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    } else {
      const Status received = host.receive(bytes.data(), bytes.size(), DataType::kUint8, 0);
      EXPECT_TRUE(received.ok()) << to_string(received.error());
      const Status status = member.run(Kind::kAllReduce);
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    }
    member.gpu.synchronize();
  });
}

TEST(SharedGpu, AnOutputThatCannotBeCopiedBackIsToldAndHoldsUpNothing) {
  Communicators ranks = ranks_of_one_gpu();
  const Member first(*ranks[0]);
  const Member second(*ranks[1]);
  fake().fail("cuMemcpyHtoDAsync", 1, cuda::CUresult::kOutOfMemory);
  const Status failed = sum_of_both(first, second);
  fake().forget_faults();
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  const Status good = sum_of_both(first, second);
  EXPECT_TRUE(good.ok()) << to_string(good.error());
  first.gpu.synchronize();
  second.gpu.synchronize();
}

TEST(SharedGpu, AContextThatIsLostBeforeTheOutputBreaksTheCommunicator) {
  Communicators ranks = ranks_of_one_gpu();
  std::barrier<> step(2);
  std::atomic<int> failed = 0;
  on_every_rank(ranks, [&](Communicator& rank) {
    const Member member(rank);
    step.arrive_and_wait();
    if (rank.rank() == 0) fake().fail("cuMemcpyHtoDAsync", 1, cuda::CUresult::kIllegalAddress);
    step.arrive_and_wait();
    const Status status = member.run(Kind::kAllReduce);
    if (status.ok()) return;
    ++failed;
    EXPECT_EQ(status.error().scope, ErrorScope::kProcess);
    std::int32_t value = 0;
    const Status later = rank.all_reduce(&value, &value, 1, DataType::kInt32, ReduceOp::kSum);
    ASSERT_FALSE(later.ok());
    EXPECT_THAT(later.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  });
  fake().forget_faults();
  EXPECT_EQ(failed, 1);
}

}  // namespace
}  // namespace tutti::test
