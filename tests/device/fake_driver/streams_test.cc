// Tests of the fake driver: streams and events. Work runs asynchronously and in order, and waits work.
#include <cstring>

#include "tests/device/unit/driver_support.h"
#include "tests/support/patience.h"

namespace tutti::cuda {
namespace {

class StreamsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    stream_.emplace(good(Stream::create(driver())));
    other_.emplace(good(Stream::create(driver())));
    memory_.emplace(good(DeviceMemory::allocate(driver(), 4096)));
    pinned_.emplace(good(PinnedMemory::allocate(driver(), 4096)));
    std::memset(pinned_->bytes().data(), 0, 4096);
  }
  void TearDown() override {
    memory_.reset();
    pinned_.reset();
    stream_.reset();
    other_.reset();
    CudaTest::TearDown();
  }

  CUstream stream() const { return stream_->handle(); }
  CUstream other() const { return other_->handle(); }
  CUdeviceptr device() const { return memory_->address(); }
  std::byte* host() const { return pinned_->bytes().data(); }
  std::uint32_t first_word() const {
    std::uint32_t word = 0;
    std::memcpy(&word, host(), sizeof(word));
    return word;
  }
  void set(unsigned char value, CUstream where) {
    ASSERT_EQ(api().memset_d8_async(device(), value, 4, where), CUresult::kSuccess);
  }
  void fetch(CUstream where) { ASSERT_EQ(api().memcpy_dtoh_async(host(), device(), 4, where), CUresult::kSuccess); }

  std::optional<Stream> stream_, other_;
  std::optional<DeviceMemory> memory_;
  std::optional<PinnedMemory> pinned_;
};

TEST_F(StreamsTest, CallsReturnBeforeTheWorkHasRun) {
  Gate gate;
  gate.put(api(), stream());
  set(7, stream());
  fetch(stream());
  EXPECT_FALSE(*stream_->finished());
  EXPECT_EQ(first_word(), 0U);
  gate.open();
  EXPECT_TRUE(stream_->synchronize().ok());
  EXPECT_TRUE(*stream_->finished());
  EXPECT_EQ(first_word(), 0x07070707U);
}

TEST_F(StreamsTest, PageableMemoryIsCopiedBeforeTheCallReturns) {
  Gate gate;
  gate.put(api(), stream());
  std::uint32_t value = 5;
  std::atomic<bool> returned{false};
  std::thread copier([&] {
    EXPECT_EQ(api().ctx_set_current(context()), CUresult::kSuccess);
    EXPECT_EQ(api().memcpy_htod_async(device(), &value, sizeof(value), stream()), CUresult::kSuccess);
    returned = true;
  });
  while (!gate.reached()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time in which the call could wrongly return
  EXPECT_FALSE(returned);
  gate.open();
  copier.join();
  std::uint32_t back = 0;
  EXPECT_EQ(api().memcpy_dtoh_async(&back, device(), sizeof(back), stream()), CUresult::kSuccess);
  EXPECT_EQ(back, 5U);
}

TEST_F(StreamsTest, StreamsRunBesideEachOther) {
  Gate gate;
  gate.put(api(), stream());
  set(3, other());
  EXPECT_TRUE(other_->synchronize().ok());
  EXPECT_FALSE(*stream_->finished());
  gate.open();
  EXPECT_TRUE(stream_->synchronize().ok());
}

TEST_F(StreamsTest, WaitingForAnEventOrdersStreams) {
  const auto event = good(Event::create(driver()));
  EXPECT_TRUE(*event.finished());  // never recorded
  Gate gate;
  gate.put(api(), stream());
  set(9, stream());
  ASSERT_TRUE(event.record(stream()).ok());
  ASSERT_TRUE(other_->wait(event).ok());
  fetch(other());
  EXPECT_FALSE(*event.finished());
  EXPECT_FALSE(*other_->finished());
  gate.open();
  EXPECT_TRUE(event.synchronize().ok());
  EXPECT_TRUE(other_->synchronize().ok());
  EXPECT_EQ(first_word(), 0x09090909U);
}

TEST_F(StreamsTest, AWaitCountsTheRecordsBeforeItOnly) {
  const auto event = good(Event::create(driver()));
  ASSERT_TRUE(event.record(stream()).ok());
  ASSERT_TRUE(other_->wait(event).ok());
  Gate gate;
  gate.put(api(), stream());
  ASSERT_TRUE(event.record(stream()).ok());
  EXPECT_TRUE(other_->synchronize().ok());
  gate.open();
  EXPECT_TRUE(stream_->synchronize().ok());
}

TEST_F(StreamsTest, EventsTellTheTimeBetweenThem) {
  const auto start = good(Event::create(driver(), {.flags = kEventDefault}));
  const auto end = good(Event::create(driver(), {.flags = kEventDefault}));
  EXPECT_FALSE(elapsed_ms(driver(), start, end).ok());  // not recorded
  ASSERT_TRUE(start.record(stream()).ok());
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  ASSERT_EQ(api().launch_host_func(stream(), sleep, nullptr), CUresult::kSuccess);
  ASSERT_TRUE(end.record(stream()).ok());
  ASSERT_TRUE(end.synchronize().ok());
  EXPECT_GE(good(elapsed_ms(driver(), start, end)), 3.0);
  const auto untimed = good(Event::create(driver()));
  ASSERT_TRUE(untimed.record(stream()).ok());
  EXPECT_FALSE(elapsed_ms(driver(), start, untimed).ok());
}

TEST_F(StreamsTest, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  const auto blocking = good(Stream::create(driver(), {.flags = kStreamDefault}));
  Gate gate;
  gate.put(api(), blocking.handle());
  set(1, nullptr);
  fetch(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time in which the copy could wrongly run
  EXPECT_EQ(first_word(), 0U);
  EXPECT_EQ(api().stream_query(nullptr), CUresult::kNotReady);
  set(2, stream());  // a non-blocking stream does not wait for the legacy stream
  EXPECT_TRUE(stream_->synchronize().ok());
  gate.open();
  EXPECT_EQ(api().stream_synchronize(nullptr), CUresult::kSuccess);
  EXPECT_EQ(first_word(), 0x01010101U);
  Gate second;
  second.put(api(), nullptr);
  ASSERT_EQ(api().memset_d8_async(device(), 6, 4, blocking.handle()), CUresult::kSuccess);
  EXPECT_FALSE(*blocking.finished());
  second.open();
  EXPECT_TRUE(blocking.synchronize().ok());
}

TEST_F(StreamsTest, WaitsForWordsHoldTheStreamUp) {
  struct Case {
    unsigned flags;
    std::uint32_t wanted;
    std::uint32_t not_yet;
    std::uint32_t then;
  };
  for (const Case& c : {Case{kWaitGreaterEqual, 5, 4, 6}, Case{kWaitGreaterEqual, 1, 0xFFFFFFF0, 2},
                        Case{kWaitEqual, 5, 6, 5}, Case{kWaitAnd, 4, 3, 12}, Case{kWaitNor, 1, 0xFFFFFFFE, 0xFE}}) {
    ASSERT_EQ(api().stream_write_value32(stream(), device(), c.not_yet, kWriteDefault), CUresult::kSuccess);
    ASSERT_TRUE(stream_->synchronize().ok());
    ASSERT_EQ(api().stream_wait_value32(stream(), device(), c.wanted, c.flags), CUresult::kSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time in which the wait could wrongly end
    EXPECT_FALSE(*stream_->finished()) << c.flags;
    ASSERT_EQ(api().stream_write_value32(other(), device(), c.then, kWriteDefault), CUresult::kSuccess);
    EXPECT_TRUE(stream_->synchronize().ok()) << c.flags;
  }
  ASSERT_EQ(api().stream_wait_value64(stream(), device(), std::uint64_t{1} << 40U, kWaitEqual), CUresult::kSuccess);
  ASSERT_EQ(api().stream_write_value64(other(), device(), std::uint64_t{1} << 40U, 0), CUresult::kSuccess);
  EXPECT_TRUE(stream_->synchronize().ok());
}

TEST_F(StreamsTest, AWaitThatNobodyEndsIsTold) {
  CUcontext lent = fake().create_context(1);
  {
    const auto scope = good(ContextScope::enter(driver(), lent));
    const auto own = good(Stream::create(driver()));
    const auto word = good(DeviceMemory::allocate(driver(), 8));
    ASSERT_EQ(api().memset_d8_async(word.address(), 0, 8, own.handle()), CUresult::kSuccess);
    testing::internal::CaptureStderr();
    fake().set_stuck_ms(30);
    ASSERT_EQ(api().stream_wait_value32(own.handle(), word.address(), 1, kWaitEqual), CUresult::kSuccess);
    const Status status = own.synchronize();
    // The stream's own wait can time out after that of synchronize(). After its message it breaks the context.
    EXPECT_TRUE(test::eventually([&] { return !Event::create(driver()).ok(); })) << "the context has not failed";
    EXPECT_NE(testing::internal::GetCapturedStderr().find("cuStreamWaitValue is stuck"), std::string::npos);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().scope, ErrorScope::kProcess);
    fake().destroy_context(lent);
  }
}

TEST_F(StreamsTest, HostFunctionsMayNotCallTheDriver) {
  struct HostFunctionResult {
    const DriverApi* api;
    CUresult result = CUresult::kSuccess;
  } inside{&api()};
  const auto call = [](void* data) {
    auto& self = *static_cast<HostFunctionResult*>(data);
    int count = 0;
    self.result = self.api->device_get_count(&count);
  };
  ASSERT_EQ(api().launch_host_func(stream(), call, &inside), CUresult::kSuccess);
  ASSERT_TRUE(stream_->synchronize().ok());
  EXPECT_EQ(inside.result, CUresult::kNotPermitted);
}

TEST_F(StreamsTest, ADestroyedStreamFinishesWhatItHasAndTakesNoMore) {
  Gate gate;
  CUstream handle = nullptr;
  {
    const auto dying = good(Stream::create(driver()));
    handle = dying.handle();
    gate.put(api(), handle);
    ASSERT_EQ(api().memset_d8_async(device(), 4, 4, handle), CUresult::kSuccess);
    ASSERT_EQ(api().memcpy_dtoh_async(host(), device(), 4, handle), CUresult::kSuccess);
    gate.open();
  }
  EXPECT_EQ(api().memset_d8_async(device(), 4, 4, handle), CUresult::kInvalidHandle);
  EXPECT_EQ(api().stream_destroy(handle), CUresult::kInvalidHandle);
  EXPECT_EQ(api().ctx_synchronize(), CUresult::kSuccess);
  EXPECT_EQ(first_word(), 0x04040404U);
}

TEST_F(StreamsTest, MisuseIsRefused) {
  const auto event = good(Event::create(driver()));
  const auto garbage = std::bit_cast<CUstream>(std::uintptr_t{0x1234});
  EXPECT_EQ(api().stream_synchronize(garbage), CUresult::kInvalidHandle);
  EXPECT_EQ(api().event_record(std::bit_cast<CUevent>(stream()), stream()), CUresult::kInvalidHandle);
  EXPECT_EQ(api().memset_d8_async(device(), 0, 4097, stream()), CUresult::kInvalidValue);       // too long
  EXPECT_EQ(api().memset_d8_async(address_of(this), 0, 4, stream()), CUresult::kInvalidValue);  // host memory
  EXPECT_EQ(api().memcpy_dtoh_async(host(), address_of(this), 4, stream()), CUresult::kInvalidValue);
  EXPECT_EQ(api().memcpy_htod_async(device(), std::bit_cast<void*>(device()), 4, stream()), CUresult::kInvalidValue);
  EXPECT_EQ(api().stream_wait_value32(stream(), device() + 2, 0, 0), CUresult::kInvalidValue);  // misaligned
  auto primary = good(PrimaryContext::retain(driver(), 1));
  const auto scope = good(ContextScope::enter(driver(), primary.context()));
  const auto far = good(Stream::create(driver()));
  EXPECT_FALSE(event.record(far.handle()).ok());                                             // of another device
  EXPECT_EQ(api().memset_d8_async(device(), 0, 4, far.handle()), CUresult::kInvalidValue);   // without peer access
  EXPECT_EQ(api().ctx_enable_peer_access(primary.context(), 0), CUresult::kInvalidContext);  // to itself
  EXPECT_EQ(api().event_destroy(nullptr), CUresult::kInvalidHandle);
  EXPECT_EQ(api().mem_free(device() + 256), CUresult::kInvalidValue);
}

}  // namespace
}  // namespace tutti::cuda
