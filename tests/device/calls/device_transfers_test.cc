// Tests of sends and receives on device memory, and of the collectives that consist of them, which the GPUs carry out
// if no two ranks share one.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/native/device_calls.h"
#include "tests/device/calls/jobs_support.h"
#include "tests/support/patience.h"
#include "tutti/group.h"

namespace tutti::testing {
namespace {

// The bytes that rank `from` sends to rank `to` as transfer `number`.
Bytes message(std::int32_t from, std::int32_t to, std::uint32_t number, std::size_t bytes) {
  return random_bits(bytes, static_cast<std::uint32_t>(from * 1'000'003 + to * 1'009) + number);
}

// The length of that message: 0, short, a slot, several slots, several connections.
std::size_t length(std::int32_t from, std::int32_t to, std::uint32_t number) {
  constexpr std::size_t kLengths[] = {0, 1, 4'096, 4'097, 0, 20'003, 70'000};
  return kLengths[static_cast<std::size_t>(3 * from + 5 * to + static_cast<std::int32_t>(number)) %
                  std::size(kLengths)];
}

unsigned copies_to_host() { return small_devices().calls("cuMemcpyDtoHAsync"); }

// Every rank sends three messages to every rank, itself included, in one Group.
void check_all_pairs(Communicator& rank, const Gpu& gpu) {
  const std::int32_t me = rank.rank();
  struct Expected {
    cuda::DeviceMemory memory;
    Bytes bytes;
  };
  std::vector<cuda::DeviceMemory> sent;
  std::vector<Expected> received;
  const std::uint64_t before = detail::calls_on_device(rank);
  Group group;
  for (std::uint32_t number = 0; number < 3; ++number) {
    for (std::int32_t peer = 0; peer < rank.size(); ++peer) {
      const std::size_t out = length(me, peer, number);
      sent.push_back(gpu.allocate(out + 1));
      Bytes bytes = message(me, peer, number, out);
      bytes.resize(out + 1);
      gpu.put(sent.back(), bytes);
      must(group.send(rank, pointer(sent.back()), out, DataType::kUint8, peer, gpu.options()));
      const std::size_t in = length(peer, me, number);
      received.push_back({gpu.allocate(in + 1), message(peer, me, number, in)});
      gpu.put(received.back().memory, Bytes(in + 1, std::byte{0x5A}));
      received.back().bytes.push_back(std::byte{0x5A});
      must(group.receive(rank, pointer(received.back().memory), in, DataType::kUint8, peer, gpu.options()));
    }
  }
  must(group.run());
  for (const Expected& one : received) must(gpu.get(one.memory) == one.bytes, "a message");
  must(rank.async_status());
  must(detail::calls_on_device(rank) == before + 1, "the host carried out the transfers");
  must(rank.barrier());
}

TEST(DeviceTransferJobs, EveryRankSendsToEveryRank) { EXPECT_TRUE(Job({0, 1, 2}).run(check_all_pairs)); }
TEST(DeviceTransferJobs, RanksAreInOneProcess) {
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 1}, {2}}).run(check_all_pairs));
}

// Rank 0 sends to rank 1, that to rank 2, and so on, with collectives between, all in one stream.
void check_chain(Communicator& rank, const Gpu& gpu) {
  constexpr std::size_t kCount = 9'000;
  const cuda::DeviceMemory memory = gpu.allocate(kCount * sizeof(std::int32_t));
  const cuda::DeviceMemory sum = gpu.allocate(sizeof(std::int32_t));
  for (std::uint32_t round = 0; round < 12; ++round) {
    const Bytes bytes = message(0, 0, round, memory.bytes());
    if (rank.rank() == 0) gpu.put(memory, bytes);
    if (rank.rank() > 0) must(rank.receive(pointer(memory), kCount, DataType::kInt32, rank.rank() - 1, gpu.options()));
    if (rank.rank() + 1 < rank.size())
      must(rank.send(pointer(memory), kCount, DataType::kInt32, rank.rank() + 1, gpu.options()));
    must(rank.all_reduce(pointer(sum), pointer(sum), 1, DataType::kInt32, ReduceOp::kSum, gpu.options()));
    must(gpu.get(memory) == bytes, "the message of round " + std::to_string(round));
  }
  must(rank.async_status());
}

TEST(DeviceTransferJobs, AChainOfRanksPassesMessagesOn) { EXPECT_TRUE(Job({0, 1, 2}).run(check_chain)); }

// Both of two ranks have their transfers captured, and replay the graph.
void check_replays(Communicator& rank, const Gpu& gpu) {
  const std::int32_t peer = 1 - rank.rank();
  constexpr std::size_t kBytes = 50'000;
  const cuda::DeviceMemory out = gpu.allocate(kBytes);
  const cuda::DeviceMemory in = gpu.allocate(kBytes);
  const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
    Group group;
    must(group.send(rank, pointer(out), kBytes, DataType::kUint8, peer, gpu.options()));
    must(group.receive(rank, pointer(in), kBytes, DataType::kUint8, peer, gpu.options()));
    must(group.run());
  });
  for (std::uint32_t round = 0; round < 5; ++round) {
    gpu.put(out, message(rank.rank(), peer, round, kBytes));
    graph.launch();
    must(gpu.get(in) == message(peer, rank.rank(), round, kBytes), "a replay");
  }
  must(rank.async_status());
}

TEST(DeviceTransferJobs, GraphsAreReplayed) { EXPECT_TRUE(Job({0, 1}).run(check_replays)); }

// More messages than fit into the parameters of a kernel, so that they are in pinned memory. The memory of a captured
// call is not reused by others.
void check_many(Communicator& rank, const Gpu& gpu) {
  constexpr std::uint32_t kMessages = 90;
  constexpr std::size_t kBytes = 64;
  const std::int32_t peer = 1 - rank.rank();
  const cuda::DeviceMemory out = gpu.allocate(kMessages * kBytes);
  const cuda::DeviceMemory in = gpu.allocate(kMessages * kBytes);
  // message i is the i-th block at the sender, and the last but i at the receiver
  const auto exchange = [&] {
    Group group;
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      auto* const from = static_cast<std::byte*>(pointer(out)) + i * kBytes;
      auto* const to = static_cast<std::byte*>(pointer(in)) + (kMessages - 1 - i) * kBytes;
      must(group.send(rank, from, kBytes, DataType::kUint8, peer, gpu.options()));
      must(group.receive(rank, to, kBytes, DataType::kUint8, peer, gpu.options()));
    }
    must(group.run());
  };
  const auto check = [&](std::uint32_t round) {
    const Bytes sent = message(peer, rank.rank(), round, out.bytes());
    Bytes wanted;
    for (std::uint32_t i = kMessages; i-- > 0;)
      wanted.insert(wanted.end(), sent.begin() + i * kBytes, sent.begin() + (i + 1) * kBytes);
    must(gpu.get(in) == wanted, "round " + std::to_string(round));
  };
  const test::CapturedGraph graph(driver(), gpu.stream(), exchange);
  for (std::uint32_t round = 0; round < 24; ++round) {
    gpu.put(out, message(rank.rank(), peer, round, out.bytes()));
    if (round % 2 == 0)
      exchange();
    else
      graph.launch();
    check(round);
  }
  must(rank.async_status());
}

TEST(DeviceTransferJobs, ManyMessagesInOneCall) { EXPECT_TRUE(Job({0, 1}).run(check_many)); }

TEST(DeviceTransfer, OfTheOnlyRankIsACopy) {
  Communicators ranks = ranks_on({0});
  const Gpu gpu(0);
  const cuda::DeviceMemory out = gpu.allocate(500);
  const cuda::DeviceMemory in = gpu.allocate(500);
  gpu.put(out, message(0, 0, 0, 500));
  Group group;
  EXPECT_TRUE(group.send(*ranks[0], pointer(out), 500, DataType::kUint8, 0, gpu.options()).ok());
  EXPECT_TRUE(group.receive(*ranks[0], pointer(in), 500, DataType::kUint8, 0, gpu.options()).ok());
  EXPECT_TRUE(group.run().ok());
  EXPECT_EQ(gpu.get(in), message(0, 0, 0, 500));
}

// A rank whose transfers are all empty cannot know that they are in device memory.
void check_empty(Communicator& rank, const Gpu& gpu) {
  const std::int32_t ranks = rank.size();
  const cuda::DeviceMemory in = gpu.allocate(40'000);
  const cuda::DeviceMemory out = gpu.allocate(40'000);
  gpu.put(in, message(rank.rank(), 0, 0, in.bytes()));
  // rank 0 sends to all but the last rank; the others send nothing
  std::vector<std::size_t> sends(static_cast<std::size_t>(ranks));
  std::vector<std::size_t> receives(sends.size());
  for (std::int32_t peer = 0; peer + 1 < ranks && rank.rank() == 0; ++peer)
    sends[static_cast<std::size_t>(peer)] = 9'000;
  if (rank.rank() + 1 < ranks) receives[0] = 9'000;
  for (int round = 0; round < 3; ++round) {
    gpu.put(out, Bytes(out.bytes()));
    auto work = rank.start({.kind = CollectiveKind::kAllToAll,
                            .input = pointer(in),
                            .output = pointer(out),
                            .type = DataType::kUint8,
                            .variable = true,
                            .input_counts = {.counts = sends, .displacements = {}},
                            .output_counts = {.counts = receives, .displacements = {}}},
                           gpu.options());
    must(work.ok(), work.ok() ? "" : to_string(work.error()));
    must(work->wait());
    Bytes wanted(out.bytes());
    const Bytes from = message(0, 0, 0, in.bytes());
    std::copy_n(from.begin() + 9'000 * rank.rank(), receives[0], wanted.begin());
    must(gpu.get(out) == wanted, "round " + std::to_string(round));
  }
  must(rank.async_status());
}

TEST(DeviceTransferJobs, SomeRanksHaveNothingToSend) { EXPECT_TRUE(Job({0, 1, 2}).run(check_empty)); }

// The two lengths differ, and one of them is 0. The receiver with the longer buffer waits in vain.
TEST(DeviceTransfer, WithoutBytesDoesNotMatchALongerOne) {
  Communicators ranks = ranks_on({0, 1});
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(100);
    CallOptions options = gpu.options();
    options.timeout = test::scaled(std::chrono::milliseconds(300));
    if (rank.rank() == 0) {
      const Status sent = rank.send(pointer(memory), 0, DataType::kUint8, 1, options);
      EXPECT_TRUE(sent.ok()) << to_string(sent.error());
      return;
    }
    EXPECT_TRUE(rank.receive(pointer(memory), 100, DataType::kUint8, 0, options).ok());
    gpu.synchronize();
    const Status later = rank.async_status();
    ASSERT_FALSE(later.ok());
    EXPECT_EQ(later.error().code, ErrorCode::kTimeout) << to_string(later.error());
    EXPECT_EQ(later.error().rank, 0) << to_string(later.error());
  });
}

// A call with messages with and without bytes. Those without differ in their type, which only the host can find out.
TEST(DeviceTransfer, AMismatchWithoutBytesIsReportedLater) {
  Communicators ranks = ranks_on({0, 1});
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(100);
    Group group;
    if (rank.rank() == 0) {
      EXPECT_TRUE(group.send(rank, pointer(memory), 100, DataType::kUint8, 1, gpu.options()).ok());
      EXPECT_TRUE(group.send(rank, nullptr, 0, DataType::kUint8, 1, gpu.options()).ok());
    } else {
      EXPECT_TRUE(group.receive(rank, pointer(memory), 100, DataType::kUint8, 0, gpu.options()).ok());
      EXPECT_TRUE(group.receive(rank, nullptr, 0, DataType::kFloat32, 0, gpu.options()).ok());
    }
    EXPECT_TRUE(group.run().ok());
    gpu.synchronize();
    if (rank.rank() == 0) return;
    Status later;
    ASSERT_TRUE(test::eventually([&] { return !(later = rank.async_status()).ok(); }));
    EXPECT_EQ(later.error().code, ErrorCode::kMismatch) << to_string(later.error());
    EXPECT_TRUE(rank.async_status().ok()) << "the error is reported once";
  });
}

// Rank 0 sends `sent` to rank 1, which expects `expected`. Returns the error that rank 1 gets.
std::optional<Error> error_of_receiver(std::pair<std::size_t, DataType> sent,
                                       std::pair<std::size_t, DataType> expected) {
  Communicators ranks = ranks_on({0, 1});
  std::optional<Error> found;
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(100'000);
    CallOptions options = gpu.options();
    options.timeout = test::scaled(std::chrono::seconds(2));
    const Status status = rank.rank() == 0 ? rank.send(pointer(memory), sent.first, sent.second, 1, options)
                                           : rank.receive(pointer(memory), expected.first, expected.second, 0, options);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    gpu.synchronize();
    const Status later = rank.async_status();
    if (rank.rank() == 1 && !later.ok()) found = later.error();
  });
  return found;
}

TEST(DeviceTransfer, OfAnotherLengthOrTypeIsRefused) {
  using Shape = std::pair<std::size_t, DataType>;
  constexpr std::array<std::pair<Shape, Shape>, 4> kCases = {{
      {{100, DataType::kUint8}, {90, DataType::kUint8}},
      {{80'000, DataType::kUint8}, {100, DataType::kUint8}},
      {{100, DataType::kUint8}, {80'000, DataType::kUint8}},  // of more parts
      {{100, DataType::kFloat32}, {100, DataType::kInt32}},
  }};
  for (const auto& [sent, expected] : kCases) {
    const auto error = error_of_receiver(sent, expected);
    ASSERT_TRUE(error.has_value()) << sent.first << " meets " << expected.first;
    EXPECT_EQ(error->code, ErrorCode::kMismatch) << to_string(*error);
    EXPECT_EQ(error->rank, 0) << to_string(*error);
  }
  EXPECT_FALSE(error_of_receiver({100, DataType::kInt8}, {100, DataType::kInt8}).has_value());
}

TEST(DeviceTransfer, WithoutAPartnerEndsAtItsTimeout) {
  Communicators ranks = ranks_on({0, 1, 2});
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() != 1) return;
    const Gpu gpu(1);
    const cuda::DeviceMemory memory = gpu.allocate(100);
    CallOptions options = gpu.options();
    options.timeout = test::scaled(std::chrono::milliseconds(100));
    const Status status = rank.receive(pointer(memory), 100, DataType::kUint8, 2, options);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    gpu.synchronize();
    const Status later = rank.async_status();
    ASSERT_FALSE(later.ok());
    EXPECT_EQ(later.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(later.error().rank, 2);
  });
}

// Rank 0 makes a call, and its kernel waits for rank 1. Both ranks then make another communicator, and only after that
// does rank 1 make the call. During that set-up the driver must not wait for the kernel. It would, for example, if the
// set-up freed memory.
void check_set_up_beside_a_call(Communicator& rank, const Gpu& gpu) {
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  gpu.put(memory, Bytes(4'096, std::byte{1}));
  auto first = rank.split(0, rank.rank());
  must(first.ok(), "the first communicator");
  const auto call = [&] {
    must(
        (*first)->all_reduce(pointer(memory), pointer(memory), 4'096, DataType::kUint8, ReduceOp::kSum, gpu.options()));
  };
  if (rank.rank() == 0) call();
  auto second = rank.split(0, rank.rank());
  must(second.ok(), second.ok() ? "" : to_string(second.error()));
  if (rank.rank() == 1) call();
  must(gpu.get(memory) == Bytes(4'096, std::byte{2}), "a sum");
  must((*first)->async_status());
}

TEST(DeviceTransferJobs, ACommunicatorIsMadeWhileACallWaits) {
  setenv("FAKE_CUDA_IMPLICIT_WAITS", "1", 1);
  EXPECT_TRUE(Job({0, 1}).run(check_set_up_beside_a_call, test::scaled(std::chrono::seconds(10))));
  unsetenv("FAKE_CUDA_IMPLICIT_WAITS");
}

// Writes of rank 0 to the memory of the other GPU are lost, although the driver says that rank 0 can access it.
TEST(DeviceTransferJobs, WritesThatAreLostAreFoundAtSetUp) {
  const Job::Making making{.begins =
                               [](std::int32_t rank) {
                                 if (rank == 0) setenv("FAKE_CUDA_LOSES_WRITES", "1", 1);
                               },
                           .ends =
                               [](const Result<std::unique_ptr<Communicator>>& made) {
                                 must(made.ok(), made.ok() ? "" : to_string(made.error()));
                                 must(!(*made)->runs_on_devices(), "the host must carry out the calls");
                               }};
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(100);
    gpu.put(memory, Bytes(100, std::byte{1}));
    must(rank.all_reduce(pointer(memory), pointer(memory), 100, DataType::kUint8, ReduceOp::kSum, gpu.options()));
    must(gpu.get(memory) == Bytes(100, std::byte{2}), "a sum");
    must(rank.barrier());
  };
  EXPECT_TRUE(Job({0, 1}).run(
      body, test::scaled(std::chrono::seconds(10)), [] {}, &making));
}

// The process of the sender ends. The receiver's stream goes on, and the error names the rank.
void check_lost_sender(Communicator& rank, const Gpu& gpu) {
  if (rank.rank() == 1) _exit(0);
  if (rank.rank() == 2) return;
  const cuda::DeviceMemory memory = gpu.allocate(100);
  const Status status = rank.receive(pointer(memory), 100, DataType::kUint8, 1, gpu.options());
  gpu.synchronize();
  const Status later = status.ok() ? rank.async_status() : status;
  must(!later.ok() && later.error().code == ErrorCode::kPeerLost && later.error().rank == 1,
       later.ok() ? "no error" : to_string(later.error()));
}

TEST(DeviceTransferJobs, ALostSenderIsNamed) {
  Job job({0, 1, 2});
  job.may_keep_memory();
  EXPECT_TRUE(job.run(check_lost_sender));
}

// A rank leaves when it has sent its message, while its receiver waits for another rank.
TEST(DeviceTransfer, ARankMayLeaveWhenItsPartIsDone) {
  Communicators ranks = ranks_on({0, 1, 2});
  const Gpu receiving(0);
  const cuda::DeviceMemory first = receiving.allocate(1'000);
  const cuda::DeviceMemory second = receiving.allocate(1'000);
  Group group;
  ASSERT_TRUE(group.receive(*ranks[0], pointer(first), 1'000, DataType::kUint8, 1, receiving.options()).ok());
  ASSERT_TRUE(group.receive(*ranks[0], pointer(second), 1'000, DataType::kUint8, 2, receiving.options()).ok());
  ASSERT_TRUE(group.run().ok());
  const auto send_from = [&](std::int32_t from) {
    const Gpu gpu(from);
    const cuda::DeviceMemory memory = gpu.allocate(1'000);
    gpu.put(memory, message(from, 0, 0, 1'000));
    EXPECT_TRUE(
        ranks[static_cast<std::size_t>(from)]->send(pointer(memory), 1'000, DataType::kUint8, 0, gpu.options()).ok());
    gpu.synchronize();
  };
  send_from(1);
  ranks[1].reset();
  // During this time a watchdog that minds only who has left would fail the receive; it gives the rank 200 ms.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  send_from(2);
  EXPECT_EQ(receiving.get(first), message(1, 0, 0, 1'000));
  EXPECT_EQ(receiving.get(second), message(2, 0, 0, 1'000));
  const Status later = ranks[0]->async_status();
  EXPECT_TRUE(later.ok()) << to_string(later.error());
}

TEST(DeviceTransfer, NeitherComesFromNorGoesToARankThatHasLeft) {
  Communicators ranks = ranks_on({0, 1});
  ranks.pop_back();
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(1'000);
  const Status sent = ranks[0]->send(pointer(memory), 1'000, DataType::kUint8, 1, gpu.options());
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kPeerLost) << to_string(sent.error());
  EXPECT_EQ(sent.error().rank, 1);
  EXPECT_TRUE(ranks[0]->receive(pointer(memory), 1'000, DataType::kUint8, 1, gpu.options()).ok());
  gpu.synchronize();
  const Status received = ranks[0]->async_status();
  ASSERT_FALSE(received.ok());
  EXPECT_EQ(received.error().code, ErrorCode::kPeerLost) << to_string(received.error());
  EXPECT_EQ(received.error().rank, 1);
}

// A rank may leave while two others still send to each other.
TEST(DeviceTransfer, GoesOnWithoutARankThatHasLeft) {
  Communicators ranks = ranks_on({0, 1, 2});
  ranks.pop_back();
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(1'000);
    gpu.put(memory, message(rank.rank(), 0, 0, 1'000));
    if (rank.rank() == 0) {
      // During this time a watchdog that minds the absent rank would fail the receive; it gives it 200 ms.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      EXPECT_TRUE(rank.send(pointer(memory), 1'000, DataType::kUint8, 1, gpu.options()).ok());
    } else {
      EXPECT_TRUE(rank.receive(pointer(memory), 1'000, DataType::kUint8, 0, gpu.options()).ok());
      EXPECT_EQ(gpu.get(memory), message(0, 0, 0, 1'000));
    }
    gpu.synchronize();
    const Status later = rank.async_status();
    EXPECT_TRUE(later.ok()) << to_string(later.error());
  });
}

// Ranks that share a GPU: by the host.
TEST(DeviceTransferJobs, RanksOnOneGpuSendByTheHost) {
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(5'000);
    const unsigned before = copies_to_host();
    if (rank.rank() == 0) {
      gpu.put(memory, message(0, 1, 0, 5'000));
      must(rank.send(pointer(memory), 5'000, DataType::kUint8, 1, gpu.options()));
      must(copies_to_host() > before, "the data was not copied to the host");
    } else {
      must(rank.receive(pointer(memory), 5'000, DataType::kUint8, 0, gpu.options()));
      must(gpu.get(memory) == message(0, 1, 0, 5'000), "a message");
    }
    must(rank.barrier());
  };
  EXPECT_TRUE(Job({0, 0}).run(body));
}

TEST(DeviceTransfer, NeedsAllBuffersInOnePlace) {
  Communicators ranks = ranks_on({0, 1});
  const Gpu other(1);
  const cuda::DeviceMemory elsewhere = other.allocate(100);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(100);
  Bytes host(100);
  const Status status = ranks[0]->send(pointer(elsewhere), 100, DataType::kUint8, 1, gpu.options());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument) << to_string(status.error());
  Group group;
  EXPECT_TRUE(group.send(*ranks[0], pointer(memory), 100, DataType::kUint8, 1, gpu.options()).ok());
  EXPECT_TRUE(group.receive(*ranks[0], host.data(), 100, DataType::kUint8, 1, gpu.options()).ok());
  const Status mixed = group.run();
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kInvalidArgument) << to_string(mixed.error());
  EXPECT_NE(mixed.error().message.find("host memory"), std::string::npos) << mixed.error().message;
}

}  // namespace
}  // namespace tutti::testing
