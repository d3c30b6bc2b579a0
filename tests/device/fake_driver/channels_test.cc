// Tests of the fake driver: streams that share the hardware queues of a context ("channels", see queue.h). The expected
// results were measured on an H100 with driver 580.
#include <array>
#include <cstdlib>
#include <cstring>

#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

class ChannelsTest : public CudaTest {
 protected:
  static constexpr std::size_t kChannels = 8;

  void SetUp() override {
    const char* text = std::getenv(kVariable);
    if (text != nullptr) before_ = text;
    CudaTest::SetUp();
  }
  void TearDown() override {
    streams_.clear();
    pinned_.reset();
    memory_.reset();
    inside_.reset();
    if (lent_ != nullptr) fake().destroy_context(lent_);
    if (before_) {
      setenv(kVariable, before_->c_str(), 1);
    } else {
      unsetenv(kVariable);
    }
    CudaTest::TearDown();
  }

  // Makes a context whose streams share `channels` channels (null: the variable is not set), and `count` streams.
  void make(const char* channels, std::size_t count) {
    if (channels != nullptr) {
      setenv(kVariable, channels, 1);
    } else {
      unsetenv(kVariable);
    }
    lent_ = fake().create_context(0);
    inside_.emplace(good(ContextScope::enter(driver(), lent_)));
    pinned_.emplace(good(PinnedMemory::allocate(driver(), 64)));
    memory_.emplace(good(DeviceMemory::allocate(driver(), 64)));
    std::memset(pinned_->bytes().data(), 0, 64);
    for (std::size_t i = 0; i < count; ++i) streams_.push_back(good(Stream::create(driver())));
  }
  CUdeviceptr word() const { return address_of(pinned_->bytes().data()); }
  CUstream stream(std::size_t i) const { return streams_[i].handle(); }
  void wait_for_word(std::size_t i) {
    ASSERT_EQ(api().stream_wait_value32(stream(i), word(), 1, kWaitGreaterEqual), CUresult::kSuccess);
  }
  void write_word(std::size_t i) {
    ASSERT_EQ(api().stream_write_value32(stream(i), word(), 1, kWriteDefault), CUresult::kSuccess);
  }
  void write_word_by_host() const { std::atomic_ref(*std::bit_cast<std::uint32_t*>(word())).store(1); }
  // Four bytes for each stream, because streams that write to the same bytes at the same time would be a race.
  void work(std::size_t i) {
    ASSERT_EQ(api().memset_d8_async(memory_->address() + 4 * i, 1, 4, stream(i)), CUresult::kSuccess);
  }
  // Whether the stream has unfinished work and stays so. A test that expects this cannot fail on a slow machine.
  bool is_held_up(std::size_t i) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return !*streams_[i].finished();
  }
  bool synchronize(std::size_t i) const { return streams_[i].synchronize().ok(); }
  void expect_all_finish() const {
    for (std::size_t i = 0; i < streams_.size(); ++i) EXPECT_TRUE(synchronize(i));
  }

 private:
  static constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
  std::optional<std::string> before_;
  CUcontext lent_ = nullptr;
  std::optional<ContextScope> inside_;
  std::optional<PinnedMemory> pinned_;
  std::optional<DeviceMemory> memory_;
  std::vector<Stream> streams_;
};

TEST_F(ChannelsTest, SevenStreamsMayWaitForAWordThatAnEighthWrites) {
  make("8", kChannels);
  for (std::size_t i = 0; i < kChannels - 1; ++i) {
    wait_for_word(i);
    work(i);
  }
  write_word(kChannels - 1);
  expect_all_finish();
}

TEST_F(ChannelsTest, EightStreamsThatWaitForAWordHoldUpTheNinthUntilTheHostWritesIt) {
  make("8", kChannels + 1);
  for (std::size_t i = 0; i < kChannels; ++i) {
    wait_for_word(i);
    work(i);
  }
  write_word(kChannels);
  EXPECT_TRUE(is_held_up(kChannels));
  EXPECT_TRUE(is_held_up(0));
  write_word_by_host();
  expect_all_finish();
}

TEST_F(ChannelsTest, AWaitForAnEventHoldsUpItsChannel) {
  make("2", 3);
  const auto event = good(Event::create(driver()));
  Gate gate;
  gate.put(api(), stream(1));
  ASSERT_TRUE(event.record(stream(1)).ok());
  ASSERT_EQ(api().stream_wait_event(stream(0), event.handle(), 0), CUresult::kSuccess);
  work(2);  // in the channel of stream 0
  EXPECT_TRUE(is_held_up(2));
  gate.open();
  expect_all_finish();
}

TEST_F(ChannelsTest, WorkThatRunsHoldsUpOnlyWhatFollowsItInItsStream) {
  make("8", kChannels + 1);
  std::array<Gate, kChannels> gates;
  for (std::size_t i = 0; i < kChannels; ++i) gates[i].put(api(), stream(i));
  work(kChannels);
  EXPECT_TRUE(synchronize(kChannels));
  for (std::size_t i = 0; i < kChannels; ++i) work(i);
  work(kChannels);  // behind work of stream 0 that cannot begin
  EXPECT_TRUE(is_held_up(kChannels));
  gates[0].open();
  EXPECT_TRUE(synchronize(kChannels));
  for (Gate& gate : gates) gate.open();
  expect_all_finish();
}

TEST_F(ChannelsTest, AFailedContextHoldsUpNothing) {
  fake().register_kernel({"good", {}, [](const fake::FakeLaunch&) { return CUresult::kSuccess; }});
  fake().register_kernel({"bad", {}, [](const fake::FakeLaunch&) { return CUresult::kIllegalAddress; }});
  make("2", 3);
  const auto module =
      good(Module::load(driver(), "fake image"));  // before the wait, because loading waits for all work
  ASSERT_EQ(launch(good(module.function("good")), stream(1), {}), CUresult::kSuccess);  // the first launch does, too
  ASSERT_TRUE(synchronize(1));
  wait_for_word(0);
  work(2);
  ASSERT_EQ(launch(good(module.function("bad")), stream(1), {}), CUresult::kSuccess);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(synchronize(i));
}

TEST_F(ChannelsTest, WithoutTheVariableNoStreamHoldsUpAnother) {
  make(nullptr, 33);
  for (std::size_t i = 0; i < 32; ++i) wait_for_word(i);
  write_word(32);
  expect_all_finish();
}

}  // namespace
}  // namespace tutti::cuda
