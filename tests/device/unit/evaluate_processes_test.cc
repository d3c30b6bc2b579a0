// Tests of launches that wait for each other: in two processes, through device memory that each has opened from the
// other, and in one process with devices that can run so few blocks that a launch may never start.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "algorithms/algorithms.h"
#include "kernels/device_group.h"
#include "plan/collective.h"
#include "tests/device/unit/evaluate_support.h"
#include "tests/device/unit/processes.h"

namespace tutti::testing {
namespace {

using cuda::CUresult;
using cuda::DeviceSession;
using cuda::must;
using cuda::ProcessChannel;
using cuda::run_two;
using device::Protocol;

constexpr std::uint32_t kRanks = 2;

Generator ring() {
  return find_generator({.kind = CollectiveKind::kAllReduce, .ranks = kRanks}, Algorithm::kRing).value();
}

// The memory of one rank that the other rank opens. For each connection it has a mailbox, envelopes and slots.
struct Region {
  cuda::CUdeviceptr address = 0;
  GroupOptions options;

  std::size_t bytes_each() const { return 2 * device::kLineBytes + options.slots * options.slot_bytes; }
  std::size_t bytes(const DeviceGroup& group) const { return group.connections().size() * bytes_each(); }
  device::Mailbox* mailbox(std::size_t c) const { return on_device<device::Mailbox>(address + c * bytes_each()); }
  device::Envelope* envelopes(std::size_t c) const {
    return on_device<device::Envelope>(address + c * bytes_each() + device::kLineBytes);
  }
  std::byte* slots(std::size_t c) const { return on_device(address + c * bytes_each() + 2 * device::kLineBytes); }
};

void connect(const DeviceGroup& group, const std::array<Region, kRanks>& regions) {
  for (std::size_t c = 0; c < group.connections().size(); ++c) {
    DeviceGroup::Connection& connection = *group.connections()[c];
    const Region& from = regions[connection.from];
    const Region& to = regions[connection.to];
    connection.send->own = connection.receive->peer = from.mailbox(c);
    connection.receive->own = connection.send->peer = to.mailbox(c);
    connection.send->slots = connection.receive->slots = to.slots(c);
    connection.send->envelopes = connection.receive->envelopes = to.envelopes(c);
  }
}

// Makes the calls of one rank, in its own process and on its own device, and compares the results with those of the
// host.
void run_calls(const DeviceSession& own, DeviceGroup& group, std::uint32_t rank, const GroupOptions& options) {
  const auto module = cuda::Module::load(own.driver, kernels::device_image().data()).value();
  const auto stream = cuda::Stream::create(own.driver).value();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CallOptions call;
    call.lengths.count = 1'000 * seed;
    call.seed = seed;
    const std::vector<RankBuffers> host = run_on_host(ring(), call, group.max_chunk_bytes());
    std::vector<RankBuffers> buffers = make_buffers(ring().shape, call);
    group.set_call(call, buffers);
    std::vector<std::byte>& memory = buffers[rank].memory;
    const auto device = cuda::DeviceMemory::allocate(own.driver, memory.size()).value();
    group.call(rank).input = on_device(device.address() + buffers[rank].input_at);
    group.call(rank).output = on_device(device.address() + buffers[rank].output_at);
    must(own.api.memcpy_htod_async(device.address(), memory.data(), memory.size(), stream.handle()) ==
         CUresult::kSuccess);
    must(launch_evaluator(own.driver, module, options.protocol, options.threads, stream.handle(),
                          group.launch_of_rank(rank)) == CUresult::kSuccess);
    must(own.api.memcpy_dtoh_async(memory.data(), device.address(), memory.size(), stream.handle()) ==
         CUresult::kSuccess);
    must(stream.synchronize().ok());
    must(group.status(rank).failure == 0 && group.finished(rank));
    must(std::ranges::equal(memory, host[rank].memory));
  }
}

TEST(DeviceProcesses, LaunchesOfTwoProcessesMeetInMemoryOfBoth) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    SCOPED_TRACE(evaluator_of(protocol));
    const auto rank_of = [protocol](std::uint32_t rank, ProcessChannel channel) {
      const DeviceSession own = DeviceSession::on(static_cast<int>(rank));
      register_device_kernels(*cuda::fake::control(), {.seed = rank, .policy = emu::Policy::kRandom, .weak = true});
      const GroupOptions options{.protocol = protocol, .threads = 64};
      DeviceGroup group(ring(), options);
      std::array<Region, kRanks> regions{Region{0, options}, Region{0, options}};
      const std::size_t bytes = regions[0].bytes(group);
      {
        const auto mine = cuda::DeviceMemory::allocate(own.driver, bytes).value();
        const auto stream = cuda::Stream::create(own.driver).value();
        must(own.api.memset_d8_async(mine.address(), 0, bytes, stream.handle()) == CUresult::kSuccess);
        must(stream.synchronize().ok());
        channel.send(mine.share().value());
        {
          const auto other = cuda::PeerMemory::open(own.driver, channel.receive<cuda::CUipcMemHandle>()).value();
          regions[rank].address = mine.address();
          regions[1 - rank].address = other.address();
          connect(group, regions);
          run_calls(own, group, rank, options);
        }
        channel.send('x');
        channel.receive<char>();  // the other process has closed this process's memory
      }
    };
    run_two([&](ProcessChannel channel) { rank_of(0, channel); }, [&](ProcessChannel channel) { rank_of(1, channel); });
  }
}

enum class Launches : std::uint8_t { kOneEach, kOneForAll };

// Runs two ranks that wait for each other on a device that can run only `blocks` blocks at once.
void run_with_blocks(const char* blocks, Launches launches, device::Failure expected) {
  must(setenv("FAKE_CUDA_BLOCKS", blocks, 1) == 0);
  const DeviceSession own = DeviceSession::on(0);
  register_device_kernels(*cuda::fake::control(), {});
  DeviceGroup group(ring(), {});
  CallOptions call;
  call.lengths.count = 10;
  std::vector<RankBuffers> buffers = make_buffers(ring().shape, call);
  group.set_call(call, buffers);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) group.call(rank).timeout_ns = 200'000'000;
  const auto module = cuda::Module::load(own.driver, kernels::device_image().data()).value();
  std::array<cuda::Stream, kRanks> streams{cuda::Stream::create(own.driver).value(),
                                           cuda::Stream::create(own.driver).value()};
  if (launches == Launches::kOneForAll) {
    must(launch_evaluator(own.driver, module, Protocol::kSimple, 32, streams[0].handle(),
                          group.launch_of_all(DeviceGroup::Calls::kInline)) == CUresult::kSuccess);
  } else {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      must(launch_evaluator(own.driver, module, Protocol::kSimple, 32, streams[rank].handle(),
                            group.launch_of_rank(rank)) == CUresult::kSuccess);
  }
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) must(streams[rank].synchronize().ok());
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) must(group.failure(rank).cause == expected);
}

TEST(DeviceProcesses, LaunchesThatWaitForOneThatFindsNoRoomEndByTheirDeadline) {
  for (const Launches launches : {Launches::kOneEach, Launches::kOneForAll}) {
    SCOPED_TRACE(launches == Launches::kOneEach ? "one each" : "one for all");
    run_two([&](ProcessChannel) { run_with_blocks("1", launches, device::Failure::kTimedOut); },
            [&](ProcessChannel) { run_with_blocks("2", launches, device::Failure::kNone); });
  }
}

}  // namespace
}  // namespace tutti::testing
