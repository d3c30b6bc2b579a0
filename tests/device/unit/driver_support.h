// CudaTest: the fixture of tests that use the fake driver. It opens the driver, makes the context of device 0 current,
// and checks at the end of each test that no driver objects are leaked.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <optional>
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
    fake_->set_stuck_ms(60'000);
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
