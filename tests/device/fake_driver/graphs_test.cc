// Tests of the fake driver: capture of streams into graphs, and replay of graphs.
#include <cstring>

#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

class GraphsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    stream_.emplace(good(Stream::create(driver())));
    other_.emplace(good(Stream::create(driver())));
    memory_.emplace(good(DeviceMemory::allocate(driver(), 4096)));
    event_.emplace(good(Event::create(driver())));
    joined_.emplace(good(Event::create(driver())));
  }
  void TearDown() override {
    memory_.reset();
    event_.reset();
    joined_.reset();
    stream_.reset();
    other_.reset();
    CudaTest::TearDown();
  }

  CUstream stream() const { return stream_->handle(); }
  CUstream other() const { return other_->handle(); }
  void begin(CaptureMode mode = CaptureMode::kGlobal) {
    ASSERT_EQ(api().stream_begin_capture(stream(), mode), CUresult::kSuccess);
  }
  CUgraph end() {
    CUgraph graph = nullptr;
    EXPECT_EQ(api().stream_end_capture(stream(), &graph), CUresult::kSuccess);
    return graph;
  }
  CUresult end_result() {
    CUgraph graph = nullptr;
    const CUresult result = api().stream_end_capture(stream(), &graph);
    EXPECT_EQ(graph, nullptr);
    return result;
  }
  // Replays the graph `times` times in the stream, waits for the replays, and destroys the graph.
  void replay(CUgraph graph, int times) {
    CUgraphExec executable = nullptr;
    ASSERT_EQ(api().graph_instantiate(&executable, graph, 0), CUresult::kSuccess);
    for (int i = 0; i < times; ++i) ASSERT_EQ(api().graph_launch(executable, stream()), CUresult::kSuccess);
    EXPECT_TRUE(stream_->synchronize().ok());
    EXPECT_EQ(api().graph_exec_destroy(executable), CUresult::kSuccess);
    EXPECT_EQ(api().graph_destroy(graph), CUresult::kSuccess);
  }
  // The pattern of fork and join: the other stream becomes part of the capture between the two events.
  void fork() {
    ASSERT_TRUE(event_->record(stream()).ok());
    ASSERT_TRUE(other_->wait(*event_).ok());
  }
  void join() {
    ASSERT_TRUE(joined_->record(other()).ok());
    ASSERT_TRUE(stream_->wait(*joined_).ok());
  }
  void count(CUstream stream_handle, std::atomic<int>& counter) {
    const auto add = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
    ASSERT_EQ(api().launch_host_func(stream_handle, add, &counter), CUresult::kSuccess);
  }

  std::optional<Stream> stream_, other_;
  std::optional<DeviceMemory> memory_;
  std::optional<Event> event_, joined_;
};

TEST_F(GraphsTest, NothingRunsInACaptureAndAllOfItInEachReplay) {
  std::atomic<int> counter{0};
  begin();
  CaptureStatus status = CaptureStatus::kNone;
  ASSERT_EQ(api().stream_is_capturing(stream(), &status), CUresult::kSuccess);
  EXPECT_EQ(status, CaptureStatus::kActive);
  ASSERT_EQ(api().memset_d8_async(memory_->address(), 1, 4, stream()), CUresult::kSuccess);
  count(stream(), counter);
  std::uint64_t id = 0;
  CUgraph under_way = nullptr;
  const CUgraphNode* tail = nullptr;
  std::size_t tails = 0;
  ASSERT_EQ(api().stream_get_capture_info(stream(), &status, &id, &under_way, &tail, &tails), CUresult::kSuccess);
  EXPECT_EQ(tails, 1U);
  EXPECT_NE(id, 0U);
  CUgraph graph = end();
  EXPECT_EQ(graph, under_way);
  std::size_t nodes = 0;
  ASSERT_EQ(api().graph_get_nodes(graph, nullptr, &nodes), CUresult::kSuccess);
  EXPECT_EQ(nodes, 2U);
  ASSERT_EQ(api().stream_is_capturing(stream(), &status), CUresult::kSuccess);
  EXPECT_EQ(status, CaptureStatus::kNone);
  EXPECT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(counter, 0);
  replay(graph, 3);
  EXPECT_EQ(counter, 3);
}

TEST_F(GraphsTest, KernelsKeepTheArgumentsOfTheCapture) {
  fake().register_kernel({"add", {sizeof(std::uint64_t), sizeof(int)}, [](const fake::FakeLaunch& launch) {
                            auto* place = std::bit_cast<int*>(*static_cast<std::uint64_t*>(launch.arguments[0]));
                            *place += *static_cast<int*>(launch.arguments[1]);
                            return CUresult::kSuccess;
                          }});
  const auto loaded = module();
  CUfunction add = good(loaded.function("add"));
  std::uint64_t address = memory_->address();
  int value = 5;
  ASSERT_EQ(api().memset_d8_async(address, 0, 4, stream()), CUresult::kSuccess);
  begin(CaptureMode::kThreadLocal);
  ASSERT_EQ(launch(add, stream(), {&address, &value}), CUresult::kSuccess);
  CUgraph graph = end();
  value = 100;
  replay(graph, 4);
  int sum = 0;
  ASSERT_EQ(api().memcpy_dtoh_async(&sum, memory_->address(), sizeof(sum), stream()), CUresult::kSuccess);
  EXPECT_EQ(sum, 20);
}

// The two branches wait for each other, so a replay must run them at the same time.
TEST_F(GraphsTest, BranchesRunBesideEachOther) {
  const CUdeviceptr word = memory_->address();
  const CUdeviceptr answer = word + 8;
  ASSERT_EQ(api().memset_d8_async(word, 0, 16, stream()), CUresult::kSuccess);
  begin();
  fork();
  ASSERT_EQ(api().stream_wait_value32(stream(), word, 1, kWaitEqual), CUresult::kSuccess);
  ASSERT_EQ(api().stream_write_value32(stream(), answer, 1, 0), CUresult::kSuccess);
  ASSERT_EQ(api().stream_write_value32(other(), word, 1, 0), CUresult::kSuccess);
  ASSERT_EQ(api().stream_wait_value32(other(), answer, 1, kWaitEqual), CUresult::kSuccess);
  join();
  ASSERT_EQ(api().stream_write_value32(stream(), word, 0, 0), CUresult::kSuccess);
  ASSERT_EQ(api().stream_write_value32(stream(), answer, 0, 0), CUresult::kSuccess);
  replay(end(), 3);
}

TEST_F(GraphsTest, WhatWasNotJoinedIsRefused) {
  std::atomic<int> counter{0};
  begin();
  fork();
  count(other(), counter);
  EXPECT_EQ(end_result(), CUresult::kStreamCaptureUnjoined);
  count(other(), counter);  // the other stream is no longer capturing
  EXPECT_TRUE(other_->synchronize().ok());
  EXPECT_EQ(counter, 1);
}

TEST_F(GraphsTest, ExternalEventsAreNodesThatRunEachTime) {
  begin();
  ASSERT_EQ(api().event_record_with_flags(event_->handle(), stream(), kEventExternal), CUresult::kSuccess);
  CUgraph graph = end();
  std::size_t nodes = 0;
  ASSERT_EQ(api().graph_get_nodes(graph, nullptr, &nodes), CUresult::kSuccess);
  EXPECT_EQ(nodes, 1U);
  EXPECT_TRUE(*event_->finished());  // an external event does not belong to the capture, so it can be queried
  replay(graph, 2);
  EXPECT_TRUE(*event_->finished());
}

TEST_F(GraphsTest, CallsThatCannotBeCapturedEndTheCapture) {
  begin();
  EXPECT_FALSE(DeviceMemory::allocate(driver(), 64).ok());
  EXPECT_EQ(api().memset_d8_async(memory_->address(), 0, 4, stream()), CUresult::kStreamCaptureInvalidated);
  EXPECT_EQ(end_result(), CUresult::kStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(api().stream_query(stream()), CUresult::kStreamCaptureUnsupported);
  EXPECT_EQ(end_result(), CUresult::kStreamCaptureInvalidated);
  begin();
  ASSERT_TRUE(event_->record(stream()).ok());
  EXPECT_EQ(api().event_query(event_->handle()), CUresult::kCapturedEvent);
  EXPECT_EQ(end_result(), CUresult::kStreamCaptureInvalidated);
  ASSERT_TRUE(event_->record(stream()).ok());
  EXPECT_TRUE(event_->synchronize().ok());  // after a recording outside a capture, the event can be used again
  EXPECT_EQ(api().stream_begin_capture(nullptr, CaptureMode::kGlobal), CUresult::kStreamCaptureUnsupported);
}

TEST_F(GraphsTest, TheFlagsOfACapturingStreamAreRefused) {
  unsigned flags = 0;
  EXPECT_EQ(api().stream_get_flags(stream(), &flags), CUresult::kSuccess);
  EXPECT_EQ(flags, kStreamNonBlocking);
  begin();
  fork();
  EXPECT_EQ(api().stream_get_flags(stream(), &flags), CUresult::kStreamCaptureUnsupported);
  EXPECT_EQ(api().stream_get_flags(other(), &flags), CUresult::kStreamCaptureUnsupported);
  join();
  EXPECT_EQ(api().graph_destroy(end()), CUresult::kSuccess);
  EXPECT_EQ(api().stream_get_flags(stream(), &flags), CUresult::kSuccess);
}

TEST_F(GraphsTest, ModesSayWhoMayStillAllocate) {
  const auto allocates = [&] { return DeviceMemory::allocate(driver(), 64).ok(); };
  const auto allocates_elsewhere = [&] {
    bool allocated = false;
    std::thread([&] {
      ASSERT_EQ(api().ctx_set_current(context()), CUresult::kSuccess);
      CUdeviceptr address = 0;
      allocated = api().mem_alloc(&address, 64) == CUresult::kSuccess;
      EXPECT_EQ(api().mem_free(address), CUresult::kSuccess);
    }).join();
    return allocated;
  };
  begin(CaptureMode::kRelaxed);
  EXPECT_TRUE(allocates());
  EXPECT_EQ(api().graph_destroy(end()), CUresult::kSuccess);
  begin(CaptureMode::kThreadLocal);
  EXPECT_TRUE(allocates_elsewhere());
  CaptureMode mode = CaptureMode::kRelaxed;
  ASSERT_EQ(api().thread_exchange_capture_mode(&mode), CUresult::kSuccess);
  EXPECT_EQ(mode, CaptureMode::kGlobal);
  EXPECT_TRUE(allocates());
  ASSERT_EQ(api().thread_exchange_capture_mode(&mode), CUresult::kSuccess);
  EXPECT_EQ(api().graph_destroy(end()), CUresult::kSuccess);
}

TEST_F(GraphsTest, TheLegacyStreamMayNotComeBetween) {
  const auto blocking = good(Stream::create(driver(), {.flags = kStreamDefault}));
  ASSERT_EQ(api().stream_begin_capture(blocking.handle(), CaptureMode::kRelaxed), CUresult::kSuccess);
  EXPECT_EQ(api().memset_d8_async(memory_->address(), 0, 4, nullptr), CUresult::kStreamCaptureImplicit);
  CUgraph graph = nullptr;
  EXPECT_EQ(api().stream_end_capture(blocking.handle(), &graph), CUresult::kStreamCaptureInvalidated);
}

TEST_F(GraphsTest, MemoryThatIsGoneIsAnIllegalAddressOfTheReplay) {
  CUcontext lent = fake().create_context(0);
  {
    const auto scope = good(ContextScope::enter(driver(), lent));
    const auto own = good(Stream::create(driver()));
    auto memory = std::optional(good(DeviceMemory::allocate(driver(), 64)));
    ASSERT_EQ(api().stream_begin_capture(own.handle(), CaptureMode::kGlobal), CUresult::kSuccess);
    ASSERT_EQ(api().memset_d8_async(memory->address(), 0, 4, own.handle()), CUresult::kSuccess);
    CUgraph graph = nullptr;
    ASSERT_EQ(api().stream_end_capture(own.handle(), &graph), CUresult::kSuccess);
    CUgraphExec executable = nullptr;
    ASSERT_EQ(api().graph_instantiate(&executable, graph, 0), CUresult::kSuccess);
    EXPECT_EQ(api().graph_destroy(graph), CUresult::kSuccess);
    memory.reset();
    ASSERT_EQ(api().graph_launch(executable, own.handle()), CUresult::kSuccess);
    EXPECT_EQ(api().stream_synchronize(own.handle()), CUresult::kIllegalAddress);
    fake().destroy_context(lent);
    EXPECT_EQ(api().graph_exec_destroy(executable), CUresult::kSuccess);
  }
}

}  // namespace
}  // namespace tutti::cuda
