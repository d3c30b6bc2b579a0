// Tests of calls that are divided into segments (src/engine/segments.h), with the fake driver. The results must be
// equal bit by bit to those of undivided calls, and output is copied out before later input is copied in. Also tests
// failures in the middle of a call, and captured calls.
#include "engine/segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

using detail::kSegmentBytes;
using testing::HasSubstr;
using Kind = CollectiveKind;

const std::chrono::milliseconds kLong = patience();
constexpr std::size_t kThree = 3 * kSegmentBytes;  // size of a call in bytes that has three segments

// Creates the ranks of a job. The first `with_gpu` ranks have a device. If at least one rank has a device, long calls
// are divided into segments; otherwise they are not.
Communicators make_mixed(const JobConfiguration& configuration, std::int32_t ranks, std::int32_t with_gpu,
                         std::chrono::milliseconds timeout = kLong) {
  driver();  // loads the driver before the communicators are created
  CommunicatorOptions options;
  options.timeout = timeout;
  options.transport = configuration.transport;
  options.attach = configuration.attach;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    options.devices.push_back(rank < with_gpu ? rank % 2 : CommunicatorOptions::kNoDevice);
  }
  auto made = Communicator::create_all(ranks, options, std::min(configuration.nodes, ranks));
  EXPECT_TRUE(made.ok()) << to_string(made.error());
  return std::move(*made);
}

bool has_gpu(const Communicator& rank, std::int32_t with_gpu) { return rank.rank() < with_gpu; }

struct Shape {
  Kind kind;
  Algorithm algorithm;
  DataType type;
  std::size_t count;
  bool in_place;
};

// Makes numbers of different magnitudes, so that sums are rounded and depend on the order of the additions.
Bytes numbers(const Shape& shape, std::size_t count, std::uint32_t seed) {
  std::uint32_t state = seed;
  Bytes bytes(count * size_of(shape.type));
  const bool bfloat = shape.type == DataType::kBfloat16;
  for (std::size_t i = 0; i < bytes.size(); i += bfloat ? 2 : 4) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t bits = (state & 0x80ffffffu) + 0x3e000000u;  // 2^-3 to 2^-1, positive or negative
    for (std::size_t byte = 0; byte < (bfloat ? 2u : 4u); ++byte) {
      bytes[i + byte] = static_cast<std::byte>(bits >> 8 * (byte + (bfloat ? 2 : 0)));
    }
  }
  return bytes;
}

// Makes the call of one rank. `buffer` has the output and then, if the call is not in place, the input.
Status carry_out(Communicator& rank, const Shape& shape, std::byte* buffer, CallOptions options) {
  options.algorithm = shape.algorithm;
  return rank.run({.kind = shape.kind,
                   .input = shape.in_place ? buffer : buffer + shape.count * size_of(shape.type),
                   .output = buffer,
                   .count = shape.count,
                   .type = shape.type,
                   .root = 1},
                  options);
}

// Makes the call and returns the buffers of all ranks after it.
std::vector<Bytes> outcome(Communicators& ranks, const Shape& shape, std::int32_t with_gpu) {
  std::vector<Bytes> buffers(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    Bytes& buffer = buffers[static_cast<std::size_t>(rank.rank())];
    buffer = numbers(shape, (shape.in_place ? 1 : 2) * shape.count, static_cast<std::uint32_t>(rank.rank()));
    if (!has_gpu(rank, with_gpu)) {
      const Status status = carry_out(rank, shape, buffer.data(), {});
      EXPECT_TRUE(status.ok()) << to_string(status.error());
      return;
    }
    const Gpu gpu(rank.rank() % 2);
    const cuda::DeviceMemory memory = gpu.allocate(buffer.size());
    gpu.put(memory, buffer);
    const Status status = carry_out(rank, shape, static_cast<std::byte*>(pointer(memory)), on(gpu));
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    buffer = gpu.get(memory);
    const Status later = rank.async_status();
    EXPECT_TRUE(later.ok()) << to_string(later.error());
  });
  return buffers;
}

// Makes the call and returns the number of segments that each rank with a GPU staged. A segment has two host functions
// in the stream, behind its copies in and behind its copies out, so their number is counted. If all ranks share a GPU
// with another one (4 ranks on 2 GPUs), a segment without copies out has only the first.
std::size_t segments_of(Communicators& ranks, const Shape& shape, std::int32_t with_gpu, std::vector<Bytes>& buffers) {
  const unsigned before = fake().calls("cuLaunchHostFunc");
  buffers = outcome(ranks, shape, with_gpu);
  const unsigned callbacks = fake().calls("cuLaunchHostFunc") - before;
  std::int32_t with_output = with_gpu;
  if (with_gpu == 4 && shape.kind == Kind::kBroadcast && shape.in_place) --with_output;  // the root's is its input
  if (with_gpu == 4 && shape.kind == Kind::kReduce) with_output = 1;
  EXPECT_EQ(callbacks % static_cast<unsigned>(with_gpu + with_output), 0u);
  return callbacks / static_cast<unsigned>(with_gpu + with_output);
}

struct AlgorithmCase {
  Kind kind;
  Algorithm algorithm;
};
constexpr AlgorithmCase kSegmentedCases[] = {{Kind::kAllReduce, Algorithm::kTwoShot},
                                             {Kind::kAllReduce, Algorithm::kOneShot},
                                             {Kind::kAllReduce, Algorithm::kRecursiveDoubling},
                                             {Kind::kReduce, Algorithm::kDirect},
                                             {Kind::kReduce, Algorithm::kBinomial},
                                             {Kind::kReduce, Algorithm::kTree},
                                             {Kind::kReduce, Algorithm::kChain},
                                             {Kind::kBroadcast, Algorithm::kDirect},
                                             {Kind::kBroadcast, Algorithm::kBinomial},
                                             {Kind::kBroadcast, Algorithm::kDoubleTree},
                                             {Kind::kBroadcast, Algorithm::kRing},
                                             {Kind::kBroadcast, Algorithm::kChain},
                                             {Kind::kBroadcast, Algorithm::kTree}};

// Checks every case with one length and one data type, in place or not. `turn` selects the combination for each case.
void expect_bits_of_the_whole(const JobConfiguration& configuration, std::int32_t ranks, std::int32_t with_gpu,
                              int turn) {
  Communicators whole = make_mixed(configuration, ranks, 0);
  Communicators mixed = make_mixed(configuration, ranks, with_gpu);
  for (const AlgorithmCase& tested : kSegmentedCases) {
    ++turn;
    const DataType type = turn % 2 == 0 ? DataType::kBfloat16 : DataType::kFloat32;
    const std::size_t border = 2 * kSegmentBytes / size_of(type);
    const std::size_t counts[] = {border - 1, border, border * 3 / 2 + 1};
    const std::size_t segment_counts[] = {1, 2, 4};
    const Shape shape{tested.kind, tested.algorithm, type, counts[turn % 3], turn / 2 % 2 == 0};
    std::vector<Bytes> buffers;
    EXPECT_EQ(segments_of(mixed, shape, with_gpu, buffers), segment_counts[turn % 3]);
    EXPECT_TRUE(buffers == outcome(whole, shape, 0))
        << configuration.name << " " << to_string(tested.kind) << " " << to_string(tested.algorithm) << " "
        << shape.count << " " << to_string(type) << (shape.in_place ? " in place" : "");
  }
}

// Together, the different values of `turn` cover every case with every length, with both types, in place and not.
TEST(PiecesOfCalls, GiveTheBitsOfTheWholeOverSharedMemory) { expect_bits_of_the_whole(kConfigurations[0], 3, 2, 0); }
TEST(PiecesOfCalls, GiveTheBitsOfTheWholeOverTcp) { expect_bits_of_the_whole(kConfigurations[1], 2, 1, 1); }
TEST(PiecesOfCalls, GiveTheBitsOfTheWholeOverMachines) { expect_bits_of_the_whole(kConfigurations[2], 4, 4, 2); }
TEST(PiecesOfCalls, GiveTheBitsOfTheWholeInAttachedMemory) {
  expect_bits_of_the_whole(kAttachedConfigurations[0], 4, 1, 4);
}

TEST(PiecesOfCalls, PlansThatAddChunksInOrdersOfTheirOwnStayWhole) {
  Communicators whole = make_mixed(kConfigurations[0], 3, 0);
  Communicators mixed = make_mixed(kConfigurations[0], 3, 1);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling}) {
    const Shape shape{Kind::kAllReduce, algorithm, DataType::kFloat32, kThree / 4, false};
    std::vector<Bytes> buffers;
    EXPECT_EQ(segments_of(mixed, shape, 1, buffers), 1u) << to_string(algorithm);
    EXPECT_TRUE(buffers == outcome(whole, shape, 0)) << to_string(algorithm);
  }
}

// The call of the tests below. Rank 0 has device memory filled with 1 and rank 1 has host memory filled with 2, so the
// sum is 3.
constexpr CollectiveCall sum_of_bytes(void* data, std::size_t count) {
  return {.kind = Kind::kAllReduce, .input = data, .output = data, .count = count, .type = DataType::kUint8};
}

// Waits until condition() is true. The test fails if that takes longer than kLong.
template <class Condition>
void await(const char* what, const Condition& condition) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kLong) << "timeout while waiting for: " << what;
    std::this_thread::yield();
  }
}

// While the copy of the last segment's input is held back, the output of the first segments must reach the device.
TEST(PiecesOfCalls, AreCopiedOutBeforeTheLastIsCopiedIn) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1) {
      Bytes bytes(kThree, std::byte{2});
      EXPECT_TRUE(rank.run(sum_of_bytes(bytes.data(), kThree), {}).ok());
      EXPECT_TRUE(bytes == Bytes(kThree, std::byte{3}));
      return;
    }
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    gpu.put(memory, Bytes(kThree, std::byte{1}));
    fake().hold_copy("cuMemcpyDtoHAsync", 3);
    const unsigned in = fake().copies_done("cuMemcpyDtoHAsync");
    const unsigned out = fake().copies_done("cuMemcpyHtoDAsync");
    EXPECT_TRUE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok());
    await("two segments copied out", [&] { return fake().copies_done("cuMemcpyHtoDAsync") == out + 2; });
    EXPECT_EQ(fake().copies_done("cuMemcpyDtoHAsync"), in + 2);
    const auto* now = static_cast<const std::byte*>(pointer(memory));  // the host can read the fake driver's memory
    EXPECT_TRUE(std::all_of(now, now + 2 * kSegmentBytes, [](std::byte b) { return b == std::byte{3}; }));
    EXPECT_EQ(driver().api().stream_query(gpu.stream()), cuda::CUresult::kNotReady);
    fake().release();
    EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{3}));
  });
}

// While the copy of the first segment's output is held back, the input of all segments must be copied.
TEST(PiecesOfCalls, AreCopiedInBeforeTheFirstIsCopiedOut) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1) {
      Bytes bytes(kThree, std::byte{2});
      EXPECT_TRUE(rank.run(sum_of_bytes(bytes.data(), kThree), {}).ok());
      return;
    }
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    gpu.put(memory, Bytes(kThree, std::byte{1}));
    fake().hold_copy("cuMemcpyHtoDAsync", 1);
    const unsigned in = fake().copies_done("cuMemcpyDtoHAsync");
    const unsigned out = fake().copies_done("cuMemcpyHtoDAsync");
    EXPECT_TRUE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok());
    await("all segments copied in", [&] { return fake().copies_done("cuMemcpyDtoHAsync") == in + 3; });
    EXPECT_EQ(fake().copies_done("cuMemcpyHtoDAsync"), out);
    fake().release();
    EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{3}));
  });
}

// Work of the stream before and after the calls must keep its order, even if the last copy of output is held back.
TEST(PiecesOfCalls, KeepTheOrderOfTheStream) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    Bytes bytes(kThree, std::byte{2});
    if (rank.rank() == 1) {
      for (int call = 0; call < 2; ++call) EXPECT_TRUE(rank.run(sum_of_bytes(bytes.data(), kThree), {}).ok());
      return;
    }
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    const cuda::DeviceMemory later = gpu.allocate(kThree);
    auto* stream = gpu.stream();
    ASSERT_EQ(driver().api().memset_d8_async(memory.address(), 1, kThree, stream), cuda::CUresult::kSuccess);
    fake().hold_copy("cuMemcpyHtoDAsync", 6);
    for (int call = 0; call < 2; ++call) {
      ASSERT_TRUE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok());
    }
    ASSERT_EQ(driver().api().memcpy_dtod_async(later.address(), memory.address(), kThree, stream),
              cuda::CUresult::kSuccess);
    ASSERT_EQ(driver().api().memset_d8_async(memory.address(), 9, kThree, stream), cuda::CUresult::kSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time in which a wrong order would show
    EXPECT_EQ(driver().api().stream_query(stream), cuda::CUresult::kNotReady);
    fake().release();
    EXPECT_TRUE(gpu.get(later) == Bytes(kThree, std::byte{6}));  // (1 + 2) + (2 + 1)
    EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{9}));
  });
}

TEST(PiecesOfCalls, AWorkAndAGroupWaitForAllOfThem) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    const std::optional<Gpu> gpu = rank.rank() == 0 ? std::optional<Gpu>(std::in_place, 0) : std::nullopt;
    Bytes host(2 * kThree, std::byte{2});
    const std::optional<cuda::DeviceMemory> memory = gpu ? std::optional(gpu->allocate(2 * kThree)) : std::nullopt;
    if (gpu) gpu->put(*memory, Bytes(2 * kThree, std::byte{1}));
    auto* data = memory ? static_cast<std::byte*>(pointer(*memory)) : host.data();
    const CallOptions options = gpu ? on(*gpu) : CallOptions();
    const auto holds = [&](std::size_t from, int value) {
      const std::byte wanted{static_cast<unsigned char>(value)};
      return std::all_of(data + from, data + from + kThree, [=](std::byte b) { return b == wanted; });
    };
    auto work = rank.start(sum_of_bytes(data, kThree), options);
    ASSERT_TRUE(work.ok()) << to_string(work.error());
    ASSERT_TRUE(work->wait().ok());
    EXPECT_TRUE(holds(0, 3));
    Group group;  // two equal calls, whose segments must not be mixed up
    ASSERT_TRUE(group.add(rank, sum_of_bytes(data, kThree), options).ok());
    ASSERT_TRUE(group.add(rank, sum_of_bytes(data + kThree, kThree), options).ok());
    auto both = group.start();
    ASSERT_TRUE(both.ok()) << to_string(both.error());
    ASSERT_TRUE(both->wait().ok());
    EXPECT_TRUE(holds(0, 6));
    EXPECT_TRUE(holds(kThree, 3));
  });
}

// Rank 1 makes the call after the call of rank 0 has timed out. All segments must fail at once, and afterwards the
// ranks must agree on the number of the next call.
TEST(PiecesOfCalls, FailTogetherAndLeaveTheRanksInStep) {
  for (const JobConfiguration& configuration : {kConfigurations[0], kConfigurations[1]}) {
    Communicators ranks = make_mixed(configuration, 2, 1);
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    // This call opens the connections. They are needed to report the failure to the peer.
    on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 10)); });
    gpu.put(memory, Bytes(kThree, std::byte{1}));
    fake().hold_copy("cuMemcpyDtoHAsync", 2);  // the input of the second segment is late
    CallOptions impatient = on(gpu);
    impatient.timeout = scaled(std::chrono::milliseconds(300));
    ASSERT_TRUE(ranks[0]->run(sum_of_bytes(pointer(memory), kThree), impatient).ok());
    Status first;
    await("rank 0's failure", [&] { return !(first = ranks[0]->async_status()).ok(); });
    EXPECT_EQ(first.error().code, ErrorCode::kTimeout);
    EXPECT_THAT(first.error().message, HasSubstr("not entered by rank 1"));
    Bytes bytes(kThree, std::byte{2});
    CallOptions patient;
    patient.timeout = 3 * kLong;  // if the call wrongly waited for the second segment, it would take this long
    const auto start = std::chrono::steady_clock::now();
    const Status second = ranks[1]->run(sum_of_bytes(bytes.data(), kThree), patient);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLong) << configuration.name;
    fake().release();
    gpu.synchronize();
    EXPECT_TRUE(ranks[0]->async_status().ok()) << "the error was reported twice";
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ErrorCode::kTimeout);
    EXPECT_THAT(second.error().message, HasSubstr("rank 0 gave it up")) << configuration.name;
    std::fill(bytes.begin(), bytes.end(), std::byte{2});
    gpu.put(memory, Bytes(kThree, std::byte{1}));
    on_every_rank(ranks, [&](Communicator& rank) {
      void* data = rank.rank() == 0 ? pointer(memory) : bytes.data();
      const Status third = rank.run(sum_of_bytes(data, kThree), rank.rank() == 0 ? on(gpu) : CallOptions());
      EXPECT_TRUE(third.ok()) << configuration.name << ": " << to_string(third.error());
    });
    EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{3})) << configuration.name;
    EXPECT_TRUE(ranks[0]->async_status().ok());
  }
}

TEST(PiecesOfCalls, RanksThatDisagreeOnALongCallAreToldThatTheyAreOutOfStep) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    const bool device = rank.rank() == 0;
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    Bytes bytes(kThree);
    void* data = device ? pointer(memory) : bytes.data();
    const CallOptions options = device ? on(gpu) : CallOptions();
    Status status = rank.run(sum_of_bytes(data, device ? kThree : 100), options);
    if (device) {
      gpu.synchronize();
      status = rank.async_status();
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(status.error().message, HasSubstr("make a new communicator"));
    EXPECT_FALSE(rank.run(sum_of_bytes(data, 8), options).ok());
  });
}

// A function of the driver fails in the second segment. The peer must report an error, the stream must continue, and no
// pinned memory may be leaked.
TEST(PiecesOfCalls, FailuresOfTheDriverInTheMidst) {
  const auto pinned = [] {  // the number of registered ranges of host memory
    const std::string leaks = fake().leaks();
    std::size_t found = 0;
    for (std::size_t at = leaks.find("registered host memory"); at != std::string::npos; ++found) {
      at = leaks.find("registered host memory", at + 1);
    }
    return found;
  };
  const std::size_t before = pinned();
  struct Fault {
    const char* function;
    unsigned nth;
  };
  for (const auto& [function, nth] :
       {Fault{"cuMemcpyDtoHAsync", 2}, Fault{"cuMemcpyHtoDAsync", 2}, Fault{"cuStreamWaitValue32", 2},
        Fault{"cuStreamWaitEvent", 2}, Fault{"cuEventRecord", 3}, Fault{"cuLaunchHostFunc", 3}}) {
    Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
    on_every_rank(ranks, [function = function, nth = nth](Communicator& rank) {
      Bytes bytes(kThree);
      if (rank.rank() == 1) {
        const Status status = rank.run(sum_of_bytes(bytes.data(), kThree), {});
        ASSERT_FALSE(status.ok());
        // The error must be that rank 0 aborted, or that the call of rank 0 failed; rank 1 may see either one first. It
        // must not be a timeout.
        EXPECT_NE(status.error().code, ErrorCode::kTimeout) << function;
        EXPECT_THAT(status.error().message, HasSubstr(": rank 0 ")) << function;
        return;
      }
      const Gpu gpu(0);
      const cuda::DeviceMemory memory = gpu.allocate(kThree);
      gpu.synchronize();
      fake().fail(function, nth, cuda::CUresult::kOutOfMemory);
      const Status status = rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu));
      fake().forget_faults();
      ASSERT_FALSE(status.ok()) << function;
      EXPECT_THAT(status.error().message, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")) << function;
      gpu.synchronize();
    });
  }
  EXPECT_EQ(pinned(), before) << fake().leaks();  // memory that graphs of other tests use is never freed
}

// A kernel of the caller fails before the second call. The results of the first call remain valid, and the peer must
// report an error in the second one.
TEST(PiecesOfCalls, ALostContextIsTold) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    Bytes bytes(kThree, std::byte{2});
    if (rank.rank() == 1) {
      EXPECT_TRUE(rank.run(sum_of_bytes(bytes.data(), kThree), {}).ok());
      const Status status = rank.run(sum_of_bytes(bytes.data(), kThree), {});
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().rank, 0) << to_string(status.error());
      return;
    }
    const cuda::CUcontext own = fake().create_context(0);
    {
      const Gpu gpu(0, own);
      const cuda::DeviceMemory memory = gpu.allocate(kThree);
      gpu.put(memory, Bytes(kThree, std::byte{1}));
      EXPECT_TRUE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok());
      EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{3}));
      fake().register_kernel({"fails", {}, [](const auto&) { return cuda::CUresult::kIllegalAddress; }});
      const auto module = *cuda::Module::load(driver(), "fake image");
      ASSERT_EQ(
          driver().api().launch_kernel(*module.function("fails"), 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, nullptr),
          cuda::CUresult::kSuccess);
      // The call fails at once if the library has already noticed the loss; otherwise async_status() reports it later.
      Status reported = rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu));
      if (reported.ok()) await("the loss", [&] { return !(reported = rank.async_status()).ok(); });
      EXPECT_FALSE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok());
    }
    fake().destroy_context(own);
  });
}

// Rank 0 captures the call and replays it; the calls of rank 1 are not captured. In each replay the segments run one
// after another, and a later call of rank 0 that is not captured works, too.
TEST(PiecesOfCalls, CanBeCaptured) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  on_every_rank(ranks, [](Communicator& rank) {
    Bytes bytes(kThree, std::byte{2});
    if (rank.rank() == 1) {
      for (int call = 0; call < 4; ++call) EXPECT_TRUE(rank.run(sum_of_bytes(bytes.data(), kThree), {}).ok());
      EXPECT_TRUE(bytes == Bytes(kThree, std::byte{24}));  // 3, 6, 12, 24
      return;
    }
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(kThree);
    gpu.put(memory, Bytes(kThree, std::byte{1}));
    const auto call = [&] { EXPECT_TRUE(rank.run(sum_of_bytes(pointer(memory), kThree), on(gpu)).ok()); };
    const CapturedGraph graph(driver(), gpu.stream(), call);
    for (int replay = 0; replay < 3; ++replay) graph.launch();
    call();
    EXPECT_TRUE(gpu.get(memory) == Bytes(kThree, std::byte{24}));
    EXPECT_TRUE(rank.async_status().ok());
  });
}

// The driver refuses the callback of a captured call, so no graph has it.
TEST(Segments, ACaptureThatTheDriverRefusesDoesNotChangeHowLaterCallsRun) {
  Communicators ranks = make_mixed(kConfigurations[0], 2, 1);
  {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(64);
    const auto stream = gpu.stream();
    const cuda::DriverApi& api = driver().api();
    ASSERT_EQ(api.stream_begin_capture(stream, cuda::CaptureMode::kThreadLocal), cuda::CUresult::kSuccess);
    fake().fail("cuLaunchHostFunc", 1, cuda::CUresult::kNotSupported);
    EXPECT_FALSE(
        ranks[0]->all_reduce(pointer(memory), pointer(memory), 16, DataType::kFloat32, ReduceOp::kSum, on(gpu)).ok());
    cuda::CUgraph graph = nullptr;
    ASSERT_EQ(api.stream_end_capture(stream, &graph), cuda::CUresult::kSuccess);
    EXPECT_EQ(api.graph_destroy(graph), cuda::CUresult::kSuccess);
  }
  // The output of segments is copied in a stream that each communicator makes for that. But if there are graphs, the
  // caller's streams submit all calls, and then it is not made.
  const unsigned before = fake().calls("cuStreamCreateWithPriority");
  outcome(ranks, {Kind::kAllReduce, Algorithm::kTwoShot, DataType::kFloat32, kThree / 4, true}, 1);
  const unsigned of_test = 1;  // for the Gpu in outcome()
  EXPECT_EQ(fake().calls("cuStreamCreateWithPriority") - before, of_test + 1);
}

}  // namespace
}  // namespace tutti::test
