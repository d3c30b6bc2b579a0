// Tests of calls on GPU memory in which allocations fail, on the fake driver: each allocation of a call fails in one
// trial (see support/allocation_sweep.h). Allocations of the fake driver itself never fail, because a real driver
// reports a lack of memory by its result and does not throw.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/assert.h"
#include "engine/segments.h"
#include "support/allocation_sweep.h"
#include "tests/device/calls/jobs_support.h"
#include "tests/support/shared_object.h"

namespace tutti::testing {
namespace {

using namespace tutti::test;  // sweep() and the outcomes of a trial

constexpr std::size_t kCount = 1'500;  // int32 elements of each rank: several tiles of the small devices
constexpr std::size_t kBlock = kCount * sizeof(std::int32_t);
constexpr std::size_t kLongCount =
    2 * detail::kSegmentBytes / sizeof(std::int32_t);  // the host divides it into segments
constexpr std::chrono::milliseconds kSetupTimeout{500};
const std::chrono::milliseconds kRegisterTimeout = scaled(std::chrono::milliseconds(2000));
constexpr std::chrono::milliseconds kCallTimeout{300};  // short, because many trials end with a timeout

struct GpuSetup {
  const char* name;
  std::vector<Devices> processes;  // the devices of the ranks in each process; two ranks in total
  bool reach = true;               // whether the GPUs have peer access; otherwise the host carries out the calls
};

const GpuSetup kGpuSetups[] = {{"OneProcessOneGpu", {{0, 0}}},
                               {"OneProcessTwoGpus", {{0, 1}}},
                               {"TwoProcessesOneGpu", {{0}, {0}}},
                               {"TwoProcessesTwoGpus", {{0}, {1}}},
                               {"ByTheHost", {{0}, {1}}, false}};
// Allocations fail on one rank at a time: on this rank and, if it is 0, also on rank 1.
constexpr std::int32_t kFirstToFail = TUTTI_EVERY_ALLOCATION ? 0 : 1;

std::int32_t value(std::int32_t rank, std::size_t i) { return (rank + 1) * 1000 + static_cast<std::int32_t>(i % 997); }

// The memory of one rank and the objects that a call creates.
struct GpuData {
  const Gpu& gpu;
  std::size_t count = kCount;  // elements of an all_reduce
  CallOptions options = gpu.options();
  cuda::DeviceMemory input = gpu.allocate(count * sizeof(std::int32_t));
  cuda::DeviceMemory output = gpu.allocate(std::max(2 * kBlock, input.bytes()));
  Memory window{};
  std::optional<Group> group{std::in_place};  // destroyed after the call, because a group that failed still has calls
  cuda::CUgraphExec graph = nullptr;
};

struct GpuCall {
  const char* name;
  Status (*call)(Communicator& rank, GpuData& data);
  std::int32_t (*expected)(Communicator& rank, std::size_t i);  // the expected value of element i of the output
  std::size_t count = kCount;  // elements of the output; if it is kLongCount, also of the input
  // Whether threads of the library may carry out the call. Then allocations of all threads can fail.
  bool in_background = false;
  bool registers = false;  // the call registers memory
  bool captures = false;   // the call is captured into a graph

  bool is_segmented() const { return count == kLongCount; }
  std::size_t input_count() const { return is_segmented() ? kLongCount : kCount; }
};

std::int32_t sum_of_both(Communicator&, std::size_t i) { return value(0, i) + value(1, i); }
std::int32_t blocks_of_both(Communicator&, std::size_t i) {
  return value(static_cast<std::int32_t>(i / kCount), i % kCount);
}
std::int32_t block_of_other(Communicator& rank, std::size_t i) { return value(1 - rank.rank(), i); }

Status sum(Communicator& rank, GpuData& data) {
  return rank.all_reduce(pointer(data.input), pointer(data.output), data.count, DataType::kInt32, ReduceOp::kSum,
                         data.options);
}

Status sum_in_background(Communicator& rank, GpuData& data) {
  auto work = rank.start(
      {.input = pointer(data.input), .output = pointer(data.output), .count = kCount, .type = DataType::kInt32},
      data.options);
  return work ? work->wait() : Status(std::move(work).error());
}

Status gather(Communicator& rank, GpuData& data) {
  return rank.all_gather(pointer(data.input), pointer(data.output), kCount, DataType::kInt32, data.options);
}

Status gather_v(Communicator& rank, GpuData& data) {
  static constexpr std::size_t kCounts[] = {kCount, kCount};
  return rank.all_gather_v(pointer(data.input), pointer(data.output), {.counts = kCounts}, DataType::kInt32,
                           data.options);
}

Status exchange(Communicator& rank, GpuData& data) {
  const std::int32_t peer = 1 - rank.rank();
  TUTTI_TRY(data.group->send(rank, pointer(data.input), kCount, DataType::kInt32, peer, data.options));
  TUTTI_TRY(data.group->receive(rank, pointer(data.output), kCount, DataType::kInt32, peer, data.options));
  return data.group->run();
}

Status register_input(Communicator& rank, GpuData& data) {
  auto window = rank.register_memory(pointer(data.input), data.input.bytes());
  if (!window) return std::move(window).error();
  data.window = *std::move(window);
  return {};
}

// With registered memory; kernels carry it out.
Status sum_in_window(Communicator& rank, GpuData& data) {
  TUTTI_TRY(register_input(rank, data));
  return sum(rank, data);
}
// With registered memory; copy engines carry it out (TUTTI_DEVICE_COPIES).
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

constexpr GpuCall kCalls[] = {
    {"Sum", sum, sum_of_both},
    {"GatherInWindow", gather_in_window, blocks_of_both, 2 * kCount, false, true},
    {"Exchange", exchange, block_of_other},
    {"SumInBackground", sum_in_background, sum_of_both, kCount, true},
    {"Gather", gather, blocks_of_both, 2 * kCount},
    {"GatherV", gather_v, blocks_of_both, 2 * kCount},
    {"SumInWindow", sum_in_window, sum_of_both, kCount, false, true},
    {"CapturedSum", captured_sum, sum_of_both, kCount, false, false, true},
    {"LongSum", sum, sum_of_both, kLongCount},
};
constexpr std::size_t kShortCalls = 4;  // the short program only tests the first 4 calls

// The state that the processes of a trial share, in shared memory.
struct Shared {
  pthread_barrier_t meet;
  std::atomic<int> worst = kReached;
  std::atomic<std::int64_t> counted = 0;
  // The scope of the error of each rank's call; kCall if the call succeeded.
  std::array<std::atomic<ErrorScope>, 2> scopes{};
};

Shared& make_shared_state() {
  Shared& shared = shared_object<Shared>();
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

// Whether no allocation fails in trial n, so that the call must succeed.
bool must_succeed(std::int64_t n) { return n == 0 || n == INT64_MAX; }

// One trial of one rank: a call in which the n-th allocation fails on one rank, and then a second call, which must
// return.
class GpuTrial {
 public:
  GpuTrial(Shared& shared, const GpuCall& kind, std::int32_t fails_on, bool every_thread)
      : shared_(shared), kind_(kind), fails_on_(fails_on), every_thread_(every_thread) {}

  // Both ranks pass every meet(), even if they find errors. Otherwise the other rank would wait forever.
  int run(Communicator& rank, GpuData& data, std::int64_t n) {
    data.options.timeout = must_succeed(n) ? patience() : kCallTimeout;
    const bool begun = put_input(rank, data, 0);
    Status status = call(rank, data, n);
    const int outcome = begun ? judge(rank, data, n, status) : static_cast<int>(kBadTrial);
    const ErrorScope scope = status.ok() ? ErrorScope::kCall : status.error().scope;
    shared_.scopes.at(static_cast<std::size_t>(rank.rank())) = scope;
    meet();
    const int next = must_succeed(n) ? static_cast<int>(kReached) : run_next(rank, data, scope);
    return outcome != kReached ? outcome : next;
  }

  // Releases the memory of both ranks before either frees it.
  void end(GpuData& data) {
    if (data.graph != nullptr) static_cast<void>(driver().api().graph_exec_destroy(data.graph));
    data.window = {};
    meet();
  }

 private:
  void meet() { pthread_barrier_wait(&shared_.meet); }

  static bool put_input(Communicator& rank, GpuData& data, std::int32_t more) {
    std::vector<std::int32_t> values(data.count);
    for (std::size_t i = 0; i < data.count; ++i) values[i] = value(rank.rank(), i) + more;
    return copy(data.gpu, pointer(data.input), values.data(), data.input.bytes());
  }

  template <class Expected>
  static bool is_right(GpuData& data, std::size_t count, Expected expected) {
    std::vector<std::int32_t> values(count);
    if (!copy(data.gpu, values.data(), pointer(data.output), count * sizeof(std::int32_t))) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] != expected(i)) return false;
    }
    return true;
  }

  // Determines the outcome of a call. `status` is the status of the call; if that is ok, it is replaced with the
  // communicator's asynchronous status.
  int judge(Communicator& rank, GpuData& data, std::int64_t n, Status& status) {
    if (!status.ok() && status.error().message.empty()) return kNoMessage;
    // The stream must continue, even if the call failed.
    if (driver().api().stream_synchronize(data.gpu.stream()) != cuda::CUresult::kSuccess) return kLostGpu;
    if (status.ok()) status = rank.async_status();
    if (must_succeed(n) && !status.ok()) {
      std::fprintf(stderr, "%s\n", to_string(status.error()).c_str());
      return kBadTrial;
    }
    const auto expected = [&](std::size_t i) { return kind_.expected(rank, i); };
    return !status.ok() || is_right(data, kind_.count, expected) ? kReached : kWrongData;
  }

  Status call(Communicator& rank, GpuData& data, std::int64_t n) {
    const bool fails = rank.rank() == fails_on_;
    meet();
    if (fails) failing_allocations::fail_after(n, every_thread_);
    meet();
    Status status;
    try {
      status = kind_.call(rank, data);
    } catch (const std::bad_alloc&) {
      std::fprintf(stderr, "std::bad_alloc was thrown from a public function\n");
      std::abort();  // end here, because the other rank waits for this one
    }
    meet();
    if (fails) failing_allocations::fail_after(0, false);
    if (fails) shared_.counted = failing_allocations::counted();
    data.group.reset();
    meet();
    return status;
  }

  // Runs the second call, with other input. If the other rank still waits in the first call and wrongly accepts the
  // data of this call, the wrong result shows it. `scope` is the scope of the error of this rank's first call.
  int run_next(Communicator& rank, GpuData& data, ErrorScope scope) {
    constexpr std::int32_t kMore = 7;
    if (!put_input(rank, data, kMore)) return kLostGpu;
    Status next = sum(rank, data);
    if (driver().api().stream_synchronize(data.gpu.stream()) != cuda::CUresult::kSuccess) return kLostGpu;
    if (next.ok()) next = rank.async_status();
    if (next.ok() && scope >= ErrorScope::kCommunicator) return kWrongScope;
    if (next.ok() && !is_right(data, data.count, [&](std::size_t i) { return sum_of_both(rank, i) + 2 * kMore; })) {
      return kWrongData;
    }
    const bool serves = shared_.scopes[0] == ErrorScope::kCall && shared_.scopes[1] == ErrorScope::kCall;
    return serves && !next.ok() && next.error().code != ErrorCode::kTimeout ? kWrongScope : kReached;
  }

  Shared& shared_;
  const GpuCall& kind_;
  const std::int32_t fails_on_;
  const bool every_thread_;
};

void begin_process(const GpuSetup& setup) {
  const cuda::fake::Control& fake = small_devices();
  fake.watch_threads(&failing_allocations::exempt_this_thread);
  fake.set_peer_access(0, 1, setup.reach);
  fake.set_peer_access(1, 0, setup.reach);
  alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
}

struct GpuCase {
  GpuSetup setup;
  GpuCall call;
  std::int32_t fails_on;
  bool warm;   // run the same call once before, without failures
  bool lasts;  // all later allocations of the call fail, too; otherwise only one fails
};

std::string name_of(const GpuCase& one) {
  return std::string(one.setup.name) + one.call.name + std::to_string(one.fails_on) + (one.warm ? "Repeated" : "First");
}
std::ostream& operator<<(std::ostream& stream, const GpuCase& one) { return stream << name_of(one); }

std::vector<GpuCase> cases(bool lasts) {
  std::vector<GpuCase> all;
  for (const GpuSetup& setup : kGpuSetups) {
    const bool shares_gpu =
        setup.processes.front().size() == 2 && setup.processes.front()[0] == setup.processes.front()[1];
    for (const GpuCall& call : std::span(kCalls).first(TUTTI_EVERY_ALLOCATION ? std::size(kCalls) : kShortCalls)) {
      if (call.registers && !setup.reach) continue;  // GPU memory cannot be registered without peer access
      if (call.is_segmented() && setup.reach) continue;
      if (call.captures && shares_gpu) continue;  // ranks that share a GPU must be captured by one thread
      for (std::int32_t fails_on = kFirstToFail; fails_on < 2; ++fails_on) {
        for (const bool warm : {false, true}) all.push_back({setup, call, fails_on, warm, lasts});
      }
    }
  }
  return all;
}

int try_call(const GpuCase& one, std::int64_t n) {
  setenv("TUTTI_DEVICE_COPIES", "1024", 1);
  Shared& shared = make_shared_state();
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    // If the host carries out the calls, threads of the library do so.
    GpuTrial trial(shared, one.call, one.fails_on, one.call.in_background || !one.setup.reach);
    int outcome = kReached;
    if (one.warm) {
      GpuData first{.gpu = gpu, .count = one.call.input_count()};
      outcome = trial.run(rank, first, 0);
      trial.end(first);
    }
    GpuData data{.gpu = gpu, .count = one.call.input_count()};
    const int second = trial.run(rank, data, n);
    if (outcome == kReached) outcome = second;
    if (outcome != kReached) shared.worst = outcome;
    trial.end(data);
  };
  Job job(one.setup.processes);
  if (one.call.captures && !one.setup.reach) job.may_keep_memory();
  // register_memory() uses the timeout of the communicator. A call that registers memory therefore gets a longer
  // timeout, so that the registration succeeds in the warm-up call, which has the same communicator.
  const auto timeout = must_succeed(n) ? patience() : one.call.registers ? kRegisterTimeout : kCallTimeout;
  const bool well = job.run(body, timeout, [&] { begin_process(one.setup); });
  failing_allocations::set_counted(shared.counted);
  if (shared.worst != kReached) return shared.worst;
  if (!well) std::abort();  // a process crashed or leaked objects of the driver; see its output on stderr
  return shared.counted < n ? kNotReached : kReached;
}

class GpuAllocationSweep : public ::testing::TestWithParam<GpuCase> {};

TEST_P(GpuAllocationSweep, NoFailureHangsCrashesOrLies) {
  failing_allocations::set_lasting(GetParam().lasts);
  sweep(name_of(GetParam()), [&](std::int64_t n) { return try_call(GetParam(), n); });
}

// A trial in which the n-th allocation of one rank's set-up fails. If a communicator is created nevertheless, a call on
// it must return.
int try_to_create(const GpuSetup& setup, std::int32_t fails_on, std::int64_t n) {
  Shared& shared = make_shared_state();
  thread_local bool fails = false;
  const Job::Making making = {.begins =
                                  [&](std::int32_t rank) {
                                    pthread_barrier_wait(&shared.meet);
                                    fails = rank == fails_on;
                                    if (fails) failing_allocations::fail_after(n, false);
                                  },
                              .ends =
                                  [&](const Result<std::unique_ptr<Communicator>>& made) {
                                    if (fails) failing_allocations::fail_after(0, false);
                                    if (fails) shared.counted = failing_allocations::counted();
                                    if (!made && made.error().message.empty()) shared.worst = kNoMessage;
                                    if (!made && must_succeed(n)) shared.worst = kBadTrial;
                                  }};
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    GpuData data{.gpu = gpu};
    // A short timeout: a rank that failed to set up waits for the other rank to finish, so this bounds the trial.
    CallOptions options = gpu.options();
    options.timeout = std::chrono::milliseconds(100);
    static_cast<void>(
        rank.all_reduce(pointer(data.input), pointer(data.output), kCount, DataType::kInt32, ReduceOp::kSum, options));
    if (driver().api().stream_synchronize(gpu.stream()) != cuda::CUresult::kSuccess) shared.worst = kLostGpu;
  };
  const bool well = Job(setup.processes)
                        .run(
                            body, must_succeed(n) ? patience() : kSetupTimeout, [&] { begin_process(setup); }, &making);
  failing_allocations::set_counted(shared.counted);
  if (shared.worst != kReached) return shared.worst;
  if (!well) std::abort();
  return shared.counted < n ? kNotReached : kReached;
}

// A trial in which the n-th allocation fails while both communicators are destroyed, after a call.
int try_to_end(const GpuSetup& setup, std::int64_t n) {
  Shared& shared = make_shared_state();
  const auto body = [&](Communicator& rank, const Gpu& gpu) {
    GpuData data{.gpu = gpu};
    if (!sum(rank, data).ok()) shared.worst = kBadTrial;
    if (driver().api().stream_synchronize(gpu.stream()) != cuda::CUresult::kSuccess) shared.worst = kLostGpu;
  };
  const cuda::fake::Control& fake = small_devices();
  begin_process(setup);
  {
    Communicators ranks = ranks_on(setup.processes.front());
    on_every_rank(ranks, [&](Communicator& rank) {
      body(rank, Gpu(setup.processes.front().at(static_cast<std::size_t>(rank.rank()))));
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

class GpuSetUpSweep : public ::testing::TestWithParam<std::tuple<GpuSetup, bool>> {};

TEST_P(GpuSetUpSweep, NoFailureHangsOrCrashes) {
  const auto& [setup, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  for (std::int32_t fails_on = kFirstToFail; fails_on < 2; ++fails_on) {
    sweep(std::string(setup.name) + ", set-up",
          [&, &setup = setup](std::int64_t n) { return try_to_create(setup, fails_on, n); });
  }
}

class GpuEndSweep : public GpuSetUpSweep {};

TEST_P(GpuEndSweep, NoFailureHangsCrashesOrLeaks) {
  const auto& [setup, lasts] = GetParam();
  failing_allocations::set_lasting(lasts);
  sweep(std::string(setup.name) + ", end", [&, &setup = setup](std::int64_t n) { return try_to_end(setup, n); });
}

INSTANTIATE_TEST_SUITE_P(Once, GpuAllocationSweep, ::testing::ValuesIn(cases(false)),
                         [](const auto& tested) { return name_of(tested.param); });
INSTANTIATE_TEST_SUITE_P(Lasting, GpuAllocationSweep, ::testing::ValuesIn(cases(true)),
                         [](const auto& tested) { return name_of(tested.param); });

std::string name_of_life(const ::testing::TestParamInfo<GpuSetUpSweep::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Lasting" : "Once");
}

// The end is only tested with both ranks in one process: with two processes, a rank that ends waits for the other rank.
INSTANTIATE_TEST_SUITE_P(Worlds, GpuEndSweep,
                         ::testing::Combine(::testing::ValuesIn(kGpuSetups, kGpuSetups + 2), ::testing::Bool()),
                         name_of_life);
INSTANTIATE_TEST_SUITE_P(Worlds, GpuSetUpSweep,
                         ::testing::Combine(::testing::ValuesIn(kGpuSetups, kGpuSetups + 4), ::testing::Bool()),
                         name_of_life);

}  // namespace
}  // namespace tutti::testing
