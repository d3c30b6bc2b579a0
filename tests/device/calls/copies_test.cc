// Tests of calls by the GPUs' copy engines (TUTTI_DEVICE_COPIES). The results must be right, no kernel may be launched,
// and the calls must keep their order with calls by kernels. If some rank cannot use copies, kernels must carry out the
// call. Also tests ranks that do not make the call, or make a different one.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/windows_support.h"
#include "tests/support/shared_object.h"

namespace tutti::testing {
namespace {

using Kind = CollectiveKind;

// The timeout of jobs in which calls must time out. It also limits the time that a registration may take.
const std::chrono::milliseconds kShortTimeout = test::scaled(std::chrono::milliseconds(1500));

constexpr std::size_t kFrom = 16 * 1024;  // the smallest block, in bytes, that copy engines transfer

unsigned launches() {
  return small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel");
}
unsigned copies() { return small_devices().calls("cuMemcpyAsync"); }

bool run(const std::vector<Devices>& processes, const Job::Body& body,
         std::chrono::milliseconds timeout = kLongTimeout) {
  return Job(processes).run(body, timeout, [] { setenv("TUTTI_DEVICE_COPIES", std::to_string(kFrom).c_str(), 1); });
}

// The value of element i of the block that rank `from` sends to rank `to`.
std::int32_t block_value(std::int32_t from, std::int32_t to, std::size_t i) {
  return value(from, i) + 100'000 * (to + 1);
}

// The number of input and output blocks of each rank.
struct Blocks {
  std::int32_t inputs = 1;
  std::int32_t outputs = 1;
  bool personal = false;  // whether each receiver gets a different block
};
Blocks blocks_of(Kind kind, std::int32_t ranks) {
  switch (kind) {
    case Kind::kAllToAll: return {ranks, ranks, true};
    case Kind::kScatter: return {ranks, 1, true};
    case Kind::kAllGather:
    case Kind::kGather: return {1, ranks, false};
    default: return {};
  }
}

// Makes one call and checks its result.
void check_call(Communicator& rank, const Gpu& gpu, Kind kind, std::byte* in, std::byte* out, std::int32_t root) {
  const std::int32_t me = rank.rank();
  const Blocks blocks = blocks_of(kind, rank.size());
  std::vector<std::int32_t> values;
  for (std::int32_t b = 0; b < blocks.inputs; ++b) {
    for (std::size_t i = 0; i < kCount; ++i) values.push_back(block_value(me, blocks.personal ? b : 0, i));
  }
  const auto put = [&](std::byte* to, const std::vector<std::int32_t>& what) {
    must(driver().api().memcpy_htod_async(reinterpret_cast<cuda::CUdeviceptr>(to), what.data(), what.size() * 4,
                                          gpu.stream()) == cuda::CUresult::kSuccess,
         "copy");
  };
  put(in, values);
  put(out, std::vector<std::int32_t>(kCount * static_cast<std::size_t>(blocks.outputs), -1));
  gpu.synchronize();
  must(rank.run({.kind = kind, .input = in, .output = out, .count = kCount, .type = DataType::kInt32, .root = root},
                gpu.options()));
  if (kind == Kind::kGather && me != root) return gpu.synchronize();
  const auto got = get(gpu, out, kCount * static_cast<std::size_t>(blocks.outputs));
  for (std::size_t at = 0; at < got.size(); ++at) {
    const auto block = static_cast<std::int32_t>(at / kCount);
    const bool of_root = kind == Kind::kBroadcast || kind == Kind::kScatter;
    must(got[at] == block_value(of_root ? root : block, blocks.personal ? me : 0, at % kCount),
         std::string(to_string(kind)));
  }
  must(rank.async_status());
}

// The size of a buffer for the input and the output of a call with one block for each rank.
std::size_t buffer_bytes(const Communicator& rank) { return 2 * static_cast<std::size_t>(rank.size()) * kBlock; }
std::byte* output_in(const Communicator& rank, const cuda::DeviceMemory& memory) {
  return at(memory, buffer_bytes(rank) / 2);
}

const std::vector<std::vector<Devices>> kAlone = {{{0}, {1}, {2}}, {{0}, {0}, {0}}, {{0}, {0}, {1}}, {{0, 1}, {2}}};

TEST(DeviceCopiesOfJobs, AreRightAndNeedNoKernel) {
  for (const auto& processes : kAlone) {
    SCOPED_TRACE(name_of(processes));
    EXPECT_TRUE(run(processes, [](Communicator& rank, const Gpu& gpu) {
      const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
      const Memory window = registered(rank, at(memory), memory.bytes());
      must(rank.barrier());
      const unsigned before = launches();
      const unsigned copied = copies();
      for (const Kind kind : {Kind::kAllGather, Kind::kAllToAll, Kind::kBroadcast}) {
        for (std::int32_t root = 0; root < rank.size(); ++root) {
          check_call(rank, gpu, kind, at(memory), output_in(rank, memory), root);
        }
      }
      for (std::int32_t root = 0; root < rank.size(); ++root) {  // in place
        fill(gpu, at(memory), rank.rank());
        must(rank.broadcast(at(memory), at(memory), kCount, DataType::kInt32, root, gpu.options()));
        const auto got = get(gpu, at(memory), kCount);
        for (std::size_t i = 0; i < kCount; ++i) must(got[i] == value(root, i), "broadcast");
      }
      gather(rank, gpu, nullptr, output_in(rank, memory), Algorithm::kAuto);  // in place
      must(rank.barrier());
      must(launches() == before, "a kernel was launched");
      must(copies() > copied, "nothing was copied");
      must(rank.barrier());  // another rank of this process launches kernels soon
      // Calls by copies and calls by kernels take turns, in two streams.
      const cuda::Stream other = *cuda::Stream::create(driver());
      CallOptions in_other;
      in_other.stream = other.handle();
      for (int turn = 0; turn < 3; ++turn) {
        std::byte* out = output_in(rank, memory);
        sum(rank, gpu, at(memory), out, Algorithm::kAuto);
        must(rank.all_gather(at(memory), out, kCount, DataType::kInt32, in_other));
        must(other.synchronize());
        const auto got = get(gpu, out, kCount * static_cast<std::size_t>(rank.size()));
        for (std::size_t i = 0; i < got.size(); ++i)
          must(got[i] == value(static_cast<std::int32_t>(i / kCount), i % kCount), "all_gather in another stream");
      }
      must(launches() > before, "no kernel was launched");
    }));
  }
}

TEST(DeviceCopiesOfJobs, AreNotMadeWhereTheyMayNot) {
  EXPECT_TRUE(run({{0}, {1}, {2}}, [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
    const cuda::DeviceMemory uneven = gpu.allocate(buffer_bytes(rank) + static_cast<std::size_t>(rank.rank()));
    const auto by_kernel = [&](const char* what, const auto& call) {
      must(rank.barrier());
      const unsigned before = launches();
      call();
      gpu.synchronize();
      must(launches() > before, what);
    };
    by_kernel("not registered",
              [&] { check_call(rank, gpu, Kind::kAllGather, at(memory), output_in(rank, memory), 0); });
    const Memory no_window = registered(rank, at(uneven), uneven.bytes());
    by_kernel("the registrations differ in length",
              [&] { check_call(rank, gpu, Kind::kAllGather, at(uneven), output_in(rank, uneven), 0); });
    const Memory window = registered(rank, at(memory), memory.bytes());
    by_kernel("only the root has the input of a scatter",
              [&] { check_call(rank, gpu, Kind::kScatter, at(memory), output_in(rank, memory), 1); });
    by_kernel("only the root knows where the output of a gather is",
              [&] { check_call(rank, gpu, Kind::kGather, at(memory), output_in(rank, memory), 1); });
    by_kernel("another algorithm was asked for",
              [&] { gather(rank, gpu, at(memory), output_in(rank, memory), Algorithm::kRing); });
    by_kernel("the blocks are shorter than the limit", [&] {
      must(rank.all_gather(at(memory), output_in(rank, memory), 100, DataType::kInt32, gpu.options()));
    });
    by_kernel("all_to_all in place", [&] {
      std::byte* both = output_in(rank, memory);
      must(rank.run({.kind = Kind::kAllToAll, .input = both, .output = both, .count = kCount}, gpu.options()));
    });
  }));
}

// All ranks share one GPU in one process. Then copies need no registration.
TEST(DeviceCopiesOfATeam, AreRightAndNeedNoKernel) {
  EXPECT_TRUE(run({{1, 1, 1}}, [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory in = gpu.allocate(buffer_bytes(rank) / 2);
    const cuda::DeviceMemory out = gpu.allocate(buffer_bytes(rank) / 2);
    must(rank.barrier());
    const unsigned before = launches();
    for (const Kind kind : {Kind::kAllGather, Kind::kAllToAll, Kind::kBroadcast, Kind::kScatter, Kind::kGather}) {
      for (std::int32_t root = 0; root < rank.size(); ++root) check_call(rank, gpu, kind, at(in), at(out), root);
    }
    gather(rank, gpu, nullptr, at(out), Algorithm::kAuto);
    must(rank.barrier());
    must(launches() == before, "a kernel was launched");
    // If the call is in place on one rank only, the kernel carries it out for all ranks.
    must(rank.barrier());
    std::byte* input = rank.rank() == 1 ? at(out) : at(in);
    must(rank.run({.kind = Kind::kAllToAll, .input = input, .output = at(out), .count = kCount}, gpu.options()));
    gpu.synchronize();
    must(launches() > before, "no kernel was launched");
  }));
}

TEST(DeviceCopiesOfJobs, AreCapturedAndReplayed) {
  for (const std::vector<Devices>& processes : {std::vector<Devices>{{0}, {1}}, std::vector<Devices>{{0}, {0}}}) {
    SCOPED_TRACE(name_of(processes));
    EXPECT_TRUE(run(processes, [](Communicator& rank, const Gpu& gpu) {
      const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
      const Memory window = registered(rank, at(memory), memory.bytes());
      std::byte* out = output_in(rank, memory);
      const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
        must(rank.all_gather(at(memory), out, kCount, DataType::kInt32, gpu.options()));
        must(rank.broadcast(out, out, kCount, DataType::kInt32, 1, gpu.options()));
      });
      for (std::int32_t turn = 0; turn < 3; ++turn) {
        fill(gpu, at(memory), rank.rank() + turn);
        graph.launch();
        const auto got = get(gpu, out, kCount * 2);
        for (std::size_t i = 0; i < got.size(); ++i) {
          // The broadcast does not change block 0, because rank 1 sends its own block 0, which is the data of rank 0.
          const auto from = i < kCount ? std::int32_t{0} : std::int32_t{1};
          must(got[i] == value(from + turn, i % kCount), "replay");
        }
        must(rank.barrier());
      }
      must(rank.async_status());
    }));
  }
}

// Copies the output of an all_gather to the host and checks it.
void check_gathered(Communicator& rank, const Gpu& gpu, const std::byte* out) {
  const auto got = get(gpu, out, kCount * static_cast<std::size_t>(rank.size()));
  for (std::size_t i = 0; i < got.size(); ++i)
    must(got[i] == value(static_cast<std::int32_t>(i / kCount), i % kCount), "all_gather");
}

// The ranks add the calls to a Group in different orders. The calls are prepared in these orders, but all ranks submit
// them in the same order.
TEST(DeviceCopiesOfJobs, AreNumberedInTheOrderOfTheirSubmission) {
  EXPECT_TRUE(run({{0}, {1}}, [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank) + kBlock);
    const Memory window = registered(rank, at(memory), memory.bytes());
    std::byte* sent = at(memory, buffer_bytes(rank));
    const CollectiveCall gathers{.kind = Kind::kAllGather,
                                 .input = at(memory),
                                 .output = output_in(rank, memory),
                                 .count = kCount,
                                 .type = DataType::kInt32};
    const CollectiveCall sends{
        .kind = Kind::kBroadcast, .input = sent, .output = sent, .count = kCount, .type = DataType::kInt32, .root = 1};
    fill(gpu, at(memory), rank.rank());
    fill(gpu, sent, rank.rank());
    const unsigned before = launches();
    Group group;
    must(group.add(rank, rank.rank() == 0 ? gathers : sends, gpu.options()));
    must(group.add(rank, rank.rank() == 0 ? sends : gathers, gpu.options()));
    must(group.run());
    check_gathered(rank, gpu, output_in(rank, memory));
    const auto got = get(gpu, sent, kCount);
    for (std::size_t i = 0; i < kCount; ++i) must(got[i] == value(1, i), "broadcast");
    must(launches() == before, "a kernel was launched");
    must(rank.async_status());
  }));
}

// Rank 1 prepares a call that it never submits, and submits one that the driver refuses. The other rank has no such
// calls, so they must not count.
TEST(DeviceCopiesOfJobs, AreNotNumberedIfTheyAreNotSubmitted) {
  EXPECT_TRUE(run({{0}, {1}}, [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
    const Memory window = registered(rank, at(memory), memory.bytes());
    const CollectiveCall call{.kind = Kind::kAllGather,
                              .input = at(memory),
                              .output = output_in(rank, memory),
                              .count = kCount,
                              .type = DataType::kInt32};
    fill(gpu, at(memory), rank.rank());
    const unsigned before = launches();
    if (rank.rank() == 1) {
      {
        Group dropped;
        must(dropped.add(rank, call, gpu.options()));
      }
      small_devices().fail("cuStreamGetCaptureInfo", 1, cuda::CUresult::kInvalidHandle);
      const Status refused = rank.run(call, gpu.options());
      must(!refused.ok() && refused.error().scope == ErrorScope::kCall, "the driver refuses the call");
    }
    must(rank.run(call, gpu.options()));
    check_gathered(rank, gpu, output_in(rank, memory));
    must(launches() == before, "a kernel was launched");
    must(rank.async_status());
  }));
}

// Makes an all_gather call, waits for it, and returns its error, if there is one.
std::optional<Error> call_error(Communicator& rank, const Gpu& gpu, std::byte* in, std::byte* out) {
  auto work = rank.start({.kind = Kind::kAllGather, .input = in, .output = out, .count = kCount}, gpu.options());
  must(work.ok(), "start");
  const Status status = work->wait();
  gpu.synchronize();  // the stream must continue
  return status.ok() ? std::nullopt : std::optional(status.error());
}

void must_report(const std::optional<Error>& error, ErrorCode code, std::int32_t rank, const std::string& words) {
  must(error.has_value(), "no error");
  must(error->code == code && error->rank == rank && error->message.find(words) != std::string::npos,
       to_string(*error));
}

TEST(DeviceCopiesOfJobs, ARankThatHasDiedIsNamed) {
  EXPECT_TRUE(run({{0}, {1}, {2}}, [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
    const Memory window = registered(rank, at(memory), memory.bytes());
    if (rank.rank() == 1) _exit(0);
    must_report(call_error(rank, gpu, at(memory), output_in(rank, memory)), ErrorCode::kPeerLost, 1,
                "rank 1 has ended");
  }));
}

// Counts the processes that have reached a point of the test, in shared memory. With it, ranks destroy their
// communicators at about the same time. Otherwise a rank that ends long before its peers has to leave memory that they
// still map.
class ProcessCounter {
 public:
  void arrive() const { count_.fetch_add(1); }
  void wait_for(int processes) const {
    must(test::eventually([&] { return count_.load() >= processes; }), "the other processes did not reach this point");
  }

 private:
  std::atomic<int>& count_ = test::shared_object<std::atomic<int>>();
};

TEST(DeviceCopiesOfJobs, ARankThatDoesNotComeIsNamed) {
  const ProcessCounter finished;
  EXPECT_TRUE(run(
      {{0}, {1}, {2}},
      [&finished](Communicator& rank, const Gpu& gpu) {
        const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
        const Memory window = registered(rank, at(memory), memory.bytes());
        if (rank.rank() == 1) return finished.wait_for(2);
        must_report(call_error(rank, gpu, at(memory), output_in(rank, memory)), ErrorCode::kTimeout, 1,
                    "for rank 1, which has not made the call");
        finished.arrive();
      },
      kShortTimeout));
}

// A rank makes the call after the others have timed out. Their streams then continue and set the same flags as after a
// completed call. The late rank must not take this for success.
TEST(DeviceCopiesOfJobs, ALatecomerIsNotToldThatAllIsWell) {
  const ProcessCounter finished;
  EXPECT_TRUE(run(
      {{0}, {1}, {2}},
      [&finished](Communicator& rank, const Gpu& gpu) {
        const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank));
        const Memory window = registered(rank, at(memory), memory.bytes());
        if (rank.rank() == 1) finished.wait_for(2);
        const auto error = call_error(rank, gpu, at(memory), output_in(rank, memory));
        must(error.has_value(), "the call of the late rank succeeded");
        must(error->code == ErrorCode::kTimeout, to_string(*error));
        if (rank.rank() == 1) must_report(error, ErrorCode::kTimeout, 0, "for rank 0, 2, which has given it up");
        finished.arrive();
        finished.wait_for(3);
      },
      kShortTimeout));
}

// If a rank makes a different call, the other ranks must not write into its memory.
TEST(DeviceCopiesOfJobs, ARankThatMakesAnotherCallIsNamed) {
  for (const bool other_buffer : {true, false}) {
    const ProcessCounter finished;
    EXPECT_TRUE(run(
        {{0}, {1}, {0}},
        [&finished, other_buffer](Communicator& rank, const Gpu& gpu) {
          const cuda::DeviceMemory memory = gpu.allocate(buffer_bytes(rank) + 64);
          const Memory window = registered(rank, at(memory), memory.bytes());
          std::byte* out = output_in(rank, memory);
          std::vector<std::int32_t> untouched(kCount * static_cast<std::size_t>(rank.size()), -7);
          must(driver().api().memcpy_htod_async(reinterpret_cast<cuda::CUdeviceptr>(out), untouched.data(),
                                                untouched.size() * 4, gpu.stream()) == cuda::CUresult::kSuccess,
               "copy");
          gpu.synchronize();
          must(rank.barrier());
          if (rank.rank() == 1) {
            CallOptions longer = gpu.options();  // a longer timeout, so that the others time out first
            longer.timeout = 3 * kShortTimeout;
            const Status other = other_buffer
                                     ? rank.all_gather(at(memory, 64), out, kCount, DataType::kInt32, longer)
                                     : rank.broadcast(at(memory), at(memory), kCount, DataType::kInt32, 1, longer);
            gpu.synchronize();
            must(other.ok() || other.error().code == ErrorCode::kTimeout, "another error");
            must(!rank.async_status().ok(), "async_status() does not report the error");
            finished.wait_for(2);  // until the streams of the others have continued
            if (!other_buffer)
              must(get(gpu, out, untouched.size()) == untouched, "another rank wrote into this buffer");
            finished.arrive();
          } else {
            must_report(call_error(rank, gpu, at(memory), out), ErrorCode::kTimeout, 1, "rank 1 makes another call");
            finished.arrive();
            finished.wait_for(3);
          }
        },
        kShortTimeout));
  }
}

}  // namespace
}  // namespace tutti::testing
