// Helpers for tests that use the fake driver. CudaTest is a fixture: it opens the driver, makes the context of device 0
// current, and checks at the end of each test that no driver objects are leaked. CapturedGraph and BlockedStream work
// without the fixture, too.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cuda/resources.h"
#include "tests/device/fake_driver/control.h"

namespace tutti::cuda {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = fake::control();
    ASSERT_NE(fake_, nullptr) << "libcuda.so.1 is not the fake driver: was the program linked with fake_driver?";
    auto driver = Driver::open();
    ASSERT_TRUE(driver.ok()) << to_string(driver.error());
    driver_ = *driver;
    enter(0);
  }

  void TearDown() override {
    if (fake_ == nullptr) return;
    fake_->forget_faults();
    fake_->set_stuck_ms(0);
    leave();
    EXPECT_EQ(fake_->leaks(), "");
  }

  // Makes the primary context of `device` current, and releases that of the previous device.
  void enter(int device) {
    leave();
    auto primary = PrimaryContext::retain(*driver_, device);
    ASSERT_TRUE(primary.ok()) << to_string(primary.error());
    primary_.emplace(*std::move(primary));
    auto scope = ContextScope::enter(*driver_, primary_->context());
    ASSERT_TRUE(scope.ok());
    scope_.emplace(*std::move(scope));
  }
  void leave() {
    scope_.reset();
    primary_.reset();
  }

  const Driver& driver() const { return *driver_; }
  const DriverApi& api() const { return driver_->api(); }
  const fake::Control& fake() const { return *fake_; }
  CUcontext context() const { return primary_->context(); }

  // Loads a module with the kernels that are registered.
  Module module() const {
    auto module = Module::load(*driver_, "fake image");
    EXPECT_TRUE(module.ok());
    return *std::move(module);
  }
  CUresult launch(CUfunction function, CUstream stream, std::vector<void*> arguments, unsigned blocks = 1) const {
    return api().launch_kernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, arguments.data(), nullptr);
  }

  template <class T>
  static T good(Result<T> result) {
    EXPECT_TRUE(result.ok()) << to_string(result.error());
    return std::move(result).value();
  }

 private:
  const fake::Control* fake_ = nullptr;
  const Driver* driver_ = nullptr;
  std::optional<PrimaryContext> primary_;
  std::optional<ContextScope> scope_;
};

// Blocks a stream until open() is called. It uses a host function, so that only the stream waits and not the caller.
class Gate {
 public:
  void put(const DriverApi& api, CUstream stream) {
    ASSERT_EQ(api.launch_host_func(stream, wait, this), CUresult::kSuccess);
  }
  void open() { open_ = true; }
  bool reached() const { return reached_; }

 private:
  static void wait(void* self) {
    auto& gate = *static_cast<Gate*>(self);
    gate.reached_ = true;
    while (!gate.open_) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::atomic<bool> open_{false};
  std::atomic<bool> reached_{false};
};

inline CUdeviceptr address_of(const void* pointer) { return std::bit_cast<CUdeviceptr>(pointer); }

}  // namespace tutti::cuda

namespace tutti::test {

// Throws std::runtime_error if `result`, which the driver function `name` returned, is an error. It is for code that
// also runs in forked child processes, because the parent does not see the failed EXPECTs of a child.
inline void must_succeed(const cuda::Driver& driver, cuda::CUresult result, const char* name) {
  const Status status = driver.check(result, name);
  if (!status.ok()) throw std::runtime_error(to_string(status.error()));
}

// An executable graph of the work that `calls` adds to a stream. launch() adds the graph to the same stream.
class CapturedGraph {
 public:
  // With mode kGlobal, driver calls of any thread can invalidate the capture. The library still may make such calls,
  // because it changes the capture mode of its threads before (cuThreadExchangeStreamCaptureMode).
  CapturedGraph(const cuda::Driver& driver, cuda::CUstream stream, const std::function<void()>& calls,
                cuda::CaptureMode mode = cuda::CaptureMode::kThreadLocal)
      : driver_(driver), stream_(stream) {
    const cuda::DriverApi& api = driver.api();
    must_succeed(driver, api.stream_begin_capture(stream, mode), "cuStreamBeginCapture");
    calls();
    cuda::CUgraph graph = nullptr;
    must_succeed(driver, api.stream_end_capture(stream, &graph), "cuStreamEndCapture");
    must_succeed(driver, api.graph_instantiate(&executable_, graph, 0), "cuGraphInstantiateWithFlags");
    must_succeed(driver, api.graph_destroy(graph), "cuGraphDestroy");
  }
  // A failure ends the process, because a destructor must not throw.
  ~CapturedGraph() { must_succeed(driver_, driver_.api().graph_exec_destroy(executable_), "cuGraphExecDestroy"); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  void launch() const { must_succeed(driver_, driver_.api().graph_launch(executable_, stream_), "cuGraphLaunch"); }

 private:
  const cuda::Driver& driver_;
  cuda::CUstream stream_;
  cuda::CUgraphExec executable_ = nullptr;
};

// Blocks a stream until release() is called, which any thread may do. The stream waits for a word of pinned memory. The
// destructor also releases the stream, and then waits until its work is done.
class BlockedStream {
 public:
  BlockedStream(const cuda::Driver& driver, cuda::CUstream stream)
      : driver_(driver),
        stream_(stream),
        pinned_(*cuda::PinnedMemory::allocate(driver, 64)),
        word_(new (pinned_.bytes().data()) std::atomic<std::uint32_t>(0)) {
    must_succeed(driver, driver.api().stream_wait_value32(stream, pinned_.device_address(), 1, cuda::kWaitEqual),
                 "cuStreamWaitValue32");
  }
  ~BlockedStream() {
    release();
    EXPECT_EQ(driver_.api().stream_synchronize(stream_), cuda::CUresult::kSuccess);
  }
  BlockedStream(const BlockedStream&) = delete;
  BlockedStream& operator=(const BlockedStream&) = delete;
  void release() { word_->store(1); }

 private:
  const cuda::Driver& driver_;
  cuda::CUstream stream_;
  cuda::PinnedMemory pinned_;
  std::atomic<std::uint32_t>* word_;
};

}  // namespace tutti::test
