// Every allocation of a call on the memory of GPUs fails once (runtime/allocation_sweep.h), over the double of the
// driver. Its own allocations are spared: a driver that has no memory says so by a result, and never throws.
#include <pthread.h>
#include <sys/mman.h>

#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "base/assert.h"
#include "device_double/jobs_support.h"
#include "runtime/allocation_sweep.h"

namespace tutti::testing {
namespace {

using namespace tutti::test;  // the sweep

constexpr std::size_t kCount = 1'500;  // of int32, a rank's: several tiles of the small devices
constexpr std::size_t kBlock = kCount * sizeof(std::int32_t);
constexpr std::chrono::milliseconds kSetupTimeout{500};
constexpr std::chrono::milliseconds kCallTimeout{300};  // short, because many calls end by it

struct GpuWorld {
  const char* name;
  std::vector<Devices> processes;  // of two ranks in all
  bool reach = true;               // without it the host carries the calls out
};
std::ostream& operator<<(std::ostream& stream, const GpuWorld& world) { return stream << world.name; }

const GpuWorld kGpuWorlds[] = {{"OneProcessOneGpu", {{0, 0}}},
                               {"OneProcessTwoGpus", {{0, 1}}},
                               {"TwoProcessesOneGpu", {{0}, {0}}},
                               {"TwoProcessesTwoGpus", {{0}, {1}}}};
const GpuWorld kHostWorld = {"ByTheHost", {{0}, {1}}, false};

std::int32_t value(std::int32_t rank, std::size_t i) { return (rank + 1) * 1000 + static_cast<std::int32_t>(i % 997); }

// One rank's memory and what a call makes.
struct GpuData {
  const Gpu& gpu;
  cuda::DeviceMemory input, output;
  Memory window{};
  Group group{};
  cuda::CUgraphExec graph = nullptr;
};

struct GpuCall {
  const char* name;
  Status (*call)(Communicator& rank, GpuData& data);
  std::int32_t (*expected)(Communicator& rank, std::size_t i);  // element i of the output
  std::size_t count = kCount;                                   // of the output's elements
  bool in_background = false;  // a thread of the library may carry it out: those of the whole process count
};
std::ostream& operator<<(std::ostream& stream, const GpuCall& call) { return stream << call.name; }

std::int32_t sum_of_both(Communicator&, std::size_t i) { return value(0, i) + value(1, i); }
std::int32_t blocks_of_both(Communicator&, std::size_t i) {
  return value(static_cast<std::int32_t>(i / kCount), i % kCount);
}
std::int32_t block_of_other(Communicator& rank, std::size_t i) { return value(1 - rank.rank(), i); }

Status sum(Communicator& rank, GpuData& data) {
  return rank.all_reduce(pointer(data.input), pointer(data.output), kCount, DataType::kInt32, ReduceOp::kSum,
                         data.gpu.options());
}

Status sum_in_background(Communicator& rank, GpuData& data) {
  auto work = rank.start(
      {.input = pointer(data.input), .output = pointer(data.output), .count = kCount, .type = DataType::kInt32},
      data.gpu.options());
  return work ? work->wait() : Status(std::move(work).error());
}

Status gather(Communicator& rank, GpuData& data) {
  return rank.all_gather(pointer(data.input), pointer(data.output), kCount, DataType::kInt32, data.gpu.options());
}

Status gather_v(Communicator& rank, GpuData& data) {
  static constexpr std::size_t kCounts[] = {kCount, kCount};
  return rank.all_gather_v(pointer(data.input), pointer(data.output), {.counts = kCounts}, DataType::kInt32,
                           data.gpu.options());
}

Status exchange(Communicator& rank, GpuData& data) {
  const std::int32_t peer = 1 - rank.rank();
  TUTTI_TRY(data.group.send(rank, pointer(data.input), kCount, DataType::kInt32, peer, data.gpu.options()));
  TUTTI_TRY(data.group.receive(rank, pointer(data.output), kCount, DataType::kInt32, peer, data.gpu.options()));
  return data.group.run();
}

Status register_input(Communicator& rank, GpuData& data) {
  auto window = rank.register_memory(pointer(data.input), data.input.bytes());
  if (!window) return std::move(window).error();
  data.window = *std::move(window);
  return {};
}

// By kernels; the gathering goes by copies (TUTTI_DEVICE_COPIES).
Status sum_in_window(Communicator& rank, GpuData& data) {
  TUTTI_TRY(register_input(rank, data));
  return sum(rank, data);
}
Status gather_in_window(Communicator& rank, GpuData& data) {
  TUTTI_TRY(register_input(rank, data));
  return gather(rank, data);
}

Status captured_sum(Communicator& rank, GpuData& data) {
  const cuda::DriverApi& api = driver().api();
  const auto failed = [](const char* what) { return Error{ErrorCode::kDevice, ErrorScope::kCall, -1, what}; };
  if (api.stream_begin_capture(data.gpu.stream(), cuda::CaptureMode::kThreadLocal) != cuda::CUresult::kSuccess) {
    return failed("cuStreamBeginCapture");
  }
  Status status = sum(rank, data);
  cuda::CUgraph graph = nullptr;
  const auto ended = api.stream_end_capture(data.gpu.stream(), &graph);
  if (status.ok() && ended != cuda::CUresult::kSuccess) status = failed("cuStreamEndCapture");
  if (status.ok() && api.graph_instantiate(&data.graph, graph, 0) != cuda::CUresult::kSuccess) {
    status = failed("cuGraphInstantiate");
  }
  if (graph != nullptr) static_cast<void>(api.graph_destroy(graph));
  if (status.ok() && api.graph_launch(data.graph, data.gpu.stream()) != cuda::CUresult::kSuccess) {
    status = failed("cuGraphLaunch");
  }
  return status;
}

// The first three are those of the short program, and the last one is not for calls by the host.
constexpr GpuCall kCalls[] = {
    {"Sum", sum, sum_of_both},
    {"GatherInWindow", gather_in_window, blocks_of_both, 2 * kCount},
    {"Exchange", exchange, block_of_other},
    {"SumInBackground", sum_in_background, sum_of_both, kCount, true},
    {"Gather", gather, blocks_of_both, 2 * kCount},
    {"GatherV", gather_v, blocks_of_both, 2 * kCount},
    {"SumInWindow", sum_in_window, sum_of_both},
    {"CapturedSum", captured_sum, sum_of_both},
};
constexpr std::size_t kCallCount = TUTTI_EVERY_ALLOCATION ? std::size(kCalls) : 3;
constexpr std::size_t kHostCallCount = TUTTI_EVERY_ALLOCATION ? std::size(kCalls) - 1 : 3;
constexpr std::int32_t kFirstToFail = TUTTI_EVERY_ALLOCATION ? 0 : 1;  // ranks from this one to 1 fail

// What the processes of a trial share.
struct Shared {
  pthread_barrier_t meet;
  std::atomic<int> worst = kReached;
  std::atomic<std::int64_t> counted = 0;
  std::atomic<std::int32_t> begun = 0;  // ranks whose set-up has begun
};

Shared& make_shared_state() {
  void* const pages = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) std::abort();
  Shared& shared = *new (pages) Shared;
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared.meet, &attributes, 2);
  return shared;
}

bool copy(const Gpu& gpu, void* to, const void* from, std::size_t bytes) {
  const auto address = [](const void* memory) { return reinterpret_cast<cuda::CUdeviceptr>(memory); };
  const cuda::CUresult result = driver().api().memcpy_async(address(to), address(from), bytes, gpu.stream());
  const bool copied = result == cuda::CUresult::kSuccess;
  return copied && driver().api().stream_synchronize(gpu.stream()) == cuda::CUresult::kSuccess;
}

// One call of a rank, which ends as n says (0: no allocation fails), and one more, which comes back, well or not.
class GpuTrial {
 public:
  GpuTrial(Shared& shared, const GpuCall& kind, std::int32_t fails_on)
      : shared_(shared), kind_(kind), fails_on_(fails_on) {}

  int run(Communicator& rank, GpuData& data, std::int64_t n) {
    std::vector<std::int32_t> values(2 * kCount);
    for (std::size_t i = 0; i < kCount; ++i) values[i] = value(rank.rank(), i);
    if (!copy(data.gpu, pointer(data.input), values.data(), kBlock)) return kBadTrial;
    const bool fails = rank.rank() == fails_on_;
    meet();
    if (fails) failing_allocations::fail_after(n, kind_.in_background);
    meet();
    Status status;
    try {
      status = kind_.call(rank, data);
    } catch (const std::bad_alloc&) {
      shared_.worst = kThrows;
      std::abort();  // the other rank waits for this one
    }
    meet();
    if (fails) {
      failing_allocations::fail_after(0, false);
      shared_.counted = failing_allocations::counted();
    }
    meet();
    int outcome = kReached;
    // The stream goes on, whatever became of the call.
    if (!copy(data.gpu, values.data(), pointer(data.output), kind_.count * sizeof(std::int32_t))) outcome = kLostGpu;
    if (!status.ok() && status.error().message.empty()) outcome = kNoMessage;
    if (status.ok() && rank.async_status().ok()) {
      for (std::size_t i = 0; i < kind_.count; ++i) {
        if (values[i] != kind_.expected(rank, i)) outcome = kWrongData;
      }
    }
    if (n != 0) static_cast<void>(sum(rank, data));
    const cuda::CUresult end = driver().api().stream_synchronize(data.gpu.stream());
    meet();  // until here the other rank's stream may read this one's registered memory
    return end == cuda::CUresult::kSuccess ? outcome : kLostGpu;
  }

 private:
  void meet() { pthread_barrier_wait(&shared_.meet); }

  Shared& shared_;
  const GpuCall& kind_;
  const std::int32_t fails_on_;
};

void begin_process(const GpuWorld& world) {
  const cuda::fake::Control& fake = small_devices();
  fake.watch_threads(&failing_allocations::spare_this_thread);
  fake.set_peer_access(0, 1, world.reach);
  fake.set_peer_access(1, 0, world.reach);
  alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
}

// `warm`: after a call of the same kind.
int try_call(const GpuWorld& world, const GpuCall& kind, std::int32_t fails_on, bool warm, std::int64_t n) {
  setenv("TUTTI_DEVICE_COPIES", "1024", 1);
  Shared& shared = make_shared_state();
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    GpuTrial trial(shared, kind, fails_on);
    GpuData data{.gpu = gpu, .input = gpu.allocate(kBlock), .output = gpu.allocate(2 * kBlock)};
    if (warm) {
      GpuData first{.gpu = gpu, .input = gpu.allocate(kBlock), .output = gpu.allocate(2 * kBlock)};
      if (trial.run(rank, first, 0) != kReached) shared.worst = kBadTrial;
      if (first.graph != nullptr) static_cast<void>(driver().api().graph_exec_destroy(first.graph));
    }
    if (const int outcome = trial.run(rank, data, n); outcome != kReached) shared.worst = outcome;
    if (data.graph != nullptr) static_cast<void>(driver().api().graph_exec_destroy(data.graph));
  };
  const bool well = Job(world.processes).run(body, kCallTimeout, [&] { begin_process(world); });
  failing_allocations::set_counted(shared.counted);
  if (shared.worst != kReached) return shared.worst;
  if (!well) std::abort();  // a process has crashed, or the driver's memory was not given back: its stderr says which
  return shared.counted < n ? kNotReached : kReached;
}

class GpuAllocationSweep : public ::testing::TestWithParam<std::tuple<GpuWorld, GpuCall, std::int32_t, bool, bool>> {};

TEST_P(GpuAllocationSweep, NoFailureHangsCrashesOrLies) {
  const auto& [world, kind, fails_on, warm, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  sweep(std::string(world.name) + ", " + kind.name,
        [&, fails_on = fails_on, warm = warm](std::int64_t n) { return try_call(world, kind, fails_on, warm, n); });
}

std::string name_of(const ::testing::TestParamInfo<GpuAllocationSweep::ParamType>& info) {
  const auto& [world, kind, fails_on, warm, lasts] = info.param;
  static_cast<void>(lasts);
  return std::string(world.name) + kind.name + std::to_string(fails_on) + (warm ? "Repeated" : "First");
}

// The set-up of one rank. A communicator that is made takes a call, which comes back.
int try_to_create(const GpuWorld& world, std::int32_t fails_on, std::int64_t n) {
  Shared& shared = make_shared_state();
  thread_local bool fails = false;
  const Job::Making making = {.begins =
                                  [&] {
                                    pthread_barrier_wait(&shared.meet);
                                    fails = shared.begun++ == fails_on;
                                    if (fails) failing_allocations::fail_after(n, false);
                                  },
                              .ends =
                                  [&](const Result<std::unique_ptr<Communicator>>& made) {
                                    if (fails) failing_allocations::fail_after(0, false);
                                    if (fails) shared.counted = failing_allocations::counted();
                                    if (!made && made.error().message.empty()) shared.worst = kNoMessage;
                                  }};
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    GpuData data{.gpu = gpu, .input = gpu.allocate(kBlock), .output = gpu.allocate(2 * kBlock)};
    // Short, because a rank that could not be made waits until the other one ends.
    CallOptions options = gpu.options();
    options.timeout = std::chrono::milliseconds(100);
    static_cast<void>(
        rank.all_reduce(pointer(data.input), pointer(data.output), kCount, DataType::kInt32, ReduceOp::kSum, options));
    gpu.synchronize();
  };
  const bool well = Job(world.processes)
                        .run(
                            body, kSetupTimeout, [&] { begin_process(world); }, &making);
  failing_allocations::set_counted(shared.counted);
  if (shared.worst != kReached) return shared.worst;
  if (!well) std::abort();
  return shared.counted < n ? kNotReached : kReached;
}

// The end of both communicators, after a call.
int try_to_end(const GpuWorld& world, std::int64_t n) {
  Shared& shared = make_shared_state();
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    GpuData data{.gpu = gpu, .input = gpu.allocate(kBlock), .output = gpu.allocate(2 * kBlock)};
    if (!sum(rank, data).ok()) shared.worst = kBadTrial;
    gpu.synchronize();
  };
  const cuda::fake::Control& fake = small_devices();
  begin_process(world);
  {
    Communicators ranks = ranks_on(world.processes.front());
    on_every_rank(ranks, [&](Communicator& rank) {
      body(rank, Gpu(world.processes.front().at(static_cast<std::size_t>(rank.rank()))));
    });
    failing_allocations::fail_after(n, true);
    ranks.clear();
    failing_allocations::fail_after(0, false);
  }
  if (shared.worst != kReached) return shared.worst;
  if (const std::string leaks = fake.leaks(); !leaks.empty()) {
    std::fprintf(stderr, "%s", leaks.c_str());
    return kLeak;
  }
  return failing_allocations::counted() < n ? kNotReached : kReached;
}

class GpuSetUpSweep : public ::testing::TestWithParam<std::tuple<GpuWorld, bool>> {};

TEST_P(GpuSetUpSweep, NoFailureHangsOrCrashes) {
  const auto& [world, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  for (std::int32_t fails_on = kFirstToFail; fails_on < 2; ++fails_on) {
    sweep(std::string(world.name) + ", set-up",
          [&, &world = world](std::int64_t n) { return try_to_create(world, fails_on, n); });
  }
}

class GpuEndSweep : public GpuSetUpSweep {};

TEST_P(GpuEndSweep, NoFailureHangsCrashesOrLeaks) {
  const auto& [world, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  sweep(std::string(world.name) + ", end", [&, &world = world](std::int64_t n) { return try_to_end(world, n); });
}

template <class Worlds, class Calls>
auto sweeps(Worlds worlds, Calls calls, bool lasts) {
  return ::testing::Combine(worlds, calls, ::testing::Range(kFirstToFail, 2), ::testing::Bool(),
                            ::testing::Values(lasts));
}

// What graphs of calls by the host use is never given back, so that no trial of those could tell a leak.
const auto kEveryCall = ::testing::ValuesIn(kCalls, kCalls + kCallCount);
const auto kCallsByTheHost = ::testing::ValuesIn(kCalls, kCalls + kHostCallCount);

INSTANTIATE_TEST_SUITE_P(Once, GpuAllocationSweep, sweeps(::testing::ValuesIn(kGpuWorlds), kEveryCall, false), name_of);
INSTANTIATE_TEST_SUITE_P(OnceByTheHost, GpuAllocationSweep,
                         sweeps(::testing::Values(kHostWorld), kCallsByTheHost, false), name_of);
// Memory stays exhausted until the call is back.
INSTANTIATE_TEST_SUITE_P(Lasting, GpuAllocationSweep, sweeps(::testing::ValuesIn(kGpuWorlds), kEveryCall, true),
                         name_of);
INSTANTIATE_TEST_SUITE_P(LastingByTheHost, GpuAllocationSweep,
                         sweeps(::testing::Values(kHostWorld), kCallsByTheHost, true), name_of);

std::string name_of_life(const ::testing::TestParamInfo<GpuSetUpSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}

// In two processes each rank ends its own communicator, as in one.
INSTANTIATE_TEST_SUITE_P(Worlds, GpuEndSweep,
                         ::testing::Combine(::testing::ValuesIn(kGpuWorlds, kGpuWorlds + 2), ::testing::Bool()),
                         name_of_life);
INSTANTIATE_TEST_SUITE_P(Worlds, GpuSetUpSweep, ::testing::Combine(::testing::ValuesIn(kGpuWorlds), ::testing::Bool()),
                         name_of_life);

}  // namespace
}  // namespace tutti::testing
