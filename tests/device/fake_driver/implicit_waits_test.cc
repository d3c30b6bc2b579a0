// Tests of the fake driver: calls that wait for all work of the context, although their documentation does not say so,
// and similar calls that do not. The expected results were measured on an H100 with driver 580.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/device/unit/driver_support.h"
#include "tests/support/patience.h"
#include "tests/support/threads.h"

namespace tutti::cuda {
namespace {

class ImplicitWaitsTest : public CudaTest {
 protected:
  void SetUp() override {
    const char* text = std::getenv(kVariable);
    if (text != nullptr) before_ = text;
    setenv(kVariable, "1", 1);
    CudaTest::SetUp();
    fake().register_kernel({"small", {}, [](const fake::FakeLaunch&) { return CUresult::kSuccess; }});
    fake().register_kernel({"large", {}, [](const fake::FakeLaunch&) { return CUresult::kSuccess; }, 1024, 512});
    module_.emplace(module());
    spinning_.emplace(good(Stream::create(driver())));
    other_.emplace(good(Stream::create(driver())));
    pinned_.emplace(good(PinnedMemory::allocate(driver(), 64)));
    std::memset(pinned_->bytes().data(), 0, 64);
  }
  void TearDown() override {
    pinned_.reset();
    other_.reset();
    spinning_.reset();
    module_.reset();
    if (before_) {
      setenv(kVariable, before_->c_str(), 1);
    } else {
      unsetenv(kVariable);
    }
    CudaTest::TearDown();
  }

  CUfunction function(const char* name) const { return good(module_->function(name)); }
  CUstream other() const { return other_->handle(); }
  CUdeviceptr word() const { return address_of(pinned_->bytes().data()); }

  // Makes a stream wait for a word, and lets another thread make the call. Returns whether the call returns although
  // the stream still waits.
  template <class Call>
  bool returns_at_once(const Call& call) {
    return while_a_stream_waits(call, [](const std::atomic<pid_t>&, const std::atomic<bool>& returned) {
      return test::eventually([&] { return returned.load(); });
    });
  }

  // The same for a call that must wait. Returns whether the call polls until the stream's work has ended.
  template <class Call>
  bool waits(const Call& call) {
    return while_a_stream_waits(call, [](const std::atomic<pid_t>& caller, const std::atomic<bool>& returned) {
      return test::eventually([&] { return caller != 0; }) && test::falls_asleep_repeatedly(caller) && !returned;
    });
  }

 private:
  // Returns check(the caller's thread, whether the call has returned). Then the host writes the word, and all work of
  // the context must end.
  template <class Call, class Check>
  bool while_a_stream_waits(const Call& call, const Check& check) {
    std::atomic_ref word_(*std::bit_cast<std::uint32_t*>(word()));
    word_.store(0);
    EXPECT_EQ(api().stream_wait_value32(spinning_->handle(), word(), 1, kWaitEqual), CUresult::kSuccess);
    std::atomic<pid_t> caller{0};
    std::atomic<bool> returned{false};
    std::thread thread([&] {
      EXPECT_EQ(api().ctx_set_current(context()), CUresult::kSuccess);
      caller = gettid();
      EXPECT_EQ(call(), CUresult::kSuccess);
      returned = true;
    });
    const bool right = check(caller, returned);
    word_.store(1);
    thread.join();
    EXPECT_EQ(api().ctx_synchronize(), CUresult::kSuccess);
    return right;
  }

  static constexpr const char* kVariable = "FAKE_CUDA_IMPLICIT_WAITS";
  std::optional<std::string> before_;
  std::optional<Module> module_;
  std::optional<Stream> spinning_, other_;
  std::optional<PinnedMemory> pinned_;
};

TEST_F(ImplicitWaitsTest, LoadsAndUnloadsOfModulesWait) {
  CUmodule made = nullptr;
  EXPECT_TRUE(waits([&] { return api().module_load_data(&made, "fake image"); }));
  EXPECT_TRUE(waits([&] { return api().module_unload(made); }));
}

TEST_F(ImplicitWaitsTest, FreeingMemoryWaitsAndAllocatingDoesNot) {
  CUdeviceptr made = 0;
  void* host = nullptr;
  EXPECT_TRUE(returns_at_once([&] { return api().mem_alloc(&made, 64); }));
  EXPECT_TRUE(returns_at_once([&] { return api().mem_host_alloc(&host, 64, kHostDeviceMap); }));
  EXPECT_TRUE(waits([&] { return api().mem_free(made); }));
  EXPECT_TRUE(waits([&] { return api().mem_free_host(host); }));
}

TEST_F(ImplicitWaitsTest, StreamsAndEventsAreMadeAndDestroyedAtOnce) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  EXPECT_TRUE(returns_at_once([&] { return api().stream_create(&stream, kStreamNonBlocking); }));
  EXPECT_TRUE(returns_at_once([&] { return api().stream_destroy(stream); }));
  EXPECT_TRUE(returns_at_once([&] { return api().event_create(&event, kEventDisableTiming); }));
  EXPECT_TRUE(returns_at_once([&] { return api().event_destroy(event); }));
}

TEST_F(ImplicitWaitsTest, ALaunchWaitsIfItNeedsMoreLocalMemoryThanAnyBefore) {
  int bytes = 0;
  ASSERT_EQ(api().func_get_attribute(&bytes, FunctionAttribute::kLocalBytes, function("large")), CUresult::kSuccess);
  EXPECT_EQ(bytes, 512);
  ASSERT_EQ(launch(function("small"), other(), {}), CUresult::kSuccess);
  EXPECT_TRUE(returns_at_once([&] { return launch(function("small"), other(), {}); }));
  EXPECT_TRUE(waits([&] { return launch(function("large"), other(), {}); }));
  EXPECT_TRUE(returns_at_once([&] { return launch(function("large"), other(), {}); }));
}

// The launch returns, but its work does not run, and neither does later work of the context.
TEST_F(ImplicitWaitsTest, TheFirstLaunchInAContextRunsAfterTheWorkThatIsQueued) {
  EXPECT_TRUE(returns_at_once([&] {
    const CUresult result = launch(function("large"), other(), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time in which the kernel could wrongly run
    EXPECT_EQ(api().stream_query(other()), CUresult::kNotReady);
    return result;
  }));
  EXPECT_TRUE(returns_at_once([&] {
    EXPECT_EQ(launch(function("large"), other(), {}), CUresult::kSuccess);
    return api().stream_synchronize(other());
  }));
}

}  // namespace
}  // namespace tutti::cuda
