// Tests of the information that the CUDA driver and NVML give about GPUs, with the fake CUDA driver and the fake
// NVML library. They simulate four devices. Each has two NVLinks to the next device in a ring, and one to a switch.
#include "topology/gpus.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "tests/device/fake_driver/control.h"

namespace tutti {
namespace {

using testing::HasSubstr;

// The fake driver reads the variable when it is loaded, which is not before the first test.
const bool kFourDevices = setenv("FAKE_CUDA_DEVICES", "4", 1) == 0;

class Gpus : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kFourDevices);
    fake_ = cuda::fake::control();
    ASSERT_NE(fake_, nullptr) << "libcuda.so.1 is not the fake driver: was the program linked with fake_driver?";
  }
  void TearDown() override {
    unsetenv("FAKE_NVML_INIT");
    if (fake_ == nullptr) return;
    fake_->forget_faults();
    fake_->set_peer_access(2, 1, true);
  }
  const cuda::fake::Control& fake() const { return *fake_; }

  static GpuTopology found() {
    const auto topology = discover_gpus();
    EXPECT_TRUE(topology.ok()) << to_string(topology.error());
    return *topology;
  }

 private:
  const cuda::fake::Control* fake_ = nullptr;
};

TEST_F(Gpus, AreDescribed) {
  const GpuTopology topology = found();
  EXPECT_EQ(topology.driver_version, 13000);
  EXPECT_EQ(topology.no_driver, "");
  EXPECT_EQ(topology.no_nvml, "");
  ASSERT_EQ(topology.gpus.size(), 4U);
  const Gpu last{.name = "Pretend GPU",
                 .uuid = "GPU-fa000000-0000-0000-0000-000000000003",
                 .pci_id = "0000:13:00.0",
                 .memory_bytes = std::uint64_t{1} << 30,
                 .capability_major = 9,
                 .capability_minor = 0,
                 .multiprocessors = 8,
                 .mig_enabled = true};
  EXPECT_EQ(topology.gpus[3], last);
  EXPECT_EQ(topology.gpus[0].mig_enabled, false);
}

TEST_F(Gpus, ReachNeighboursByTheirLinksAndOthersByTheSwitch) {
  const GpuTopology topology = found();
  // The two links of the ring are one NVLink 5.0 and one NVLink 4.0. The older version counts.
  const GpuPath neighbour{.access = true, .atomics = true, .nvlinks = {2, 40, false}};
  EXPECT_EQ(topology.path(0, 1), neighbour);
  EXPECT_EQ(topology.path(1, 0), neighbour) << "only GPU 0 reports these links";
  EXPECT_EQ(topology.path(3, 0), neighbour);
  EXPECT_EQ(topology.path(0, 2), (GpuPath{.access = true, .atomics = true, .nvlinks = {1, 40, true}}));
  EXPECT_EQ(topology.path(2, 2), (GpuPath{.same_gpu = true, .access = true, .atomics = true, .nvlinks = {}}));
  EXPECT_EQ(first_unreachable(topology), std::nullopt);
}

TEST_F(Gpus, MayReachEachOtherInOneDirectionOnly) {
  fake().set_peer_access(2, 1, false);
  const GpuTopology topology = found();
  EXPECT_FALSE(topology.path(2, 1).access);
  EXPECT_FALSE(topology.path(2, 1).atomics);
  EXPECT_TRUE(topology.path(1, 2).access);
  EXPECT_EQ(first_unreachable(topology), (GpuPair{2, 1}));
}

TEST_F(Gpus, AreShownWithoutNvml) {
  setenv("FAKE_NVML_INIT", "9", 1);
  const GpuTopology topology = found();
  EXPECT_THAT(topology.no_nvml, HasSubstr("nvmlInit_v2 fails"));
  EXPECT_EQ(topology.gpus.size(), 4U);
  EXPECT_EQ(topology.gpus[3].mig_enabled, std::nullopt);
  EXPECT_EQ(topology.path(0, 1), (GpuPath{.access = true, .atomics = true, .nvlinks = {}}));
}

TEST_F(Gpus, FailuresOfTheDriverAreNamed) {
  for (const char* function :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetPCIBusId",
        "cuDeviceTotalMem", "cuDeviceGetAttribute", "cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute"}) {
    fake().fail(function, 1, cuda::CUresult::kInvalidDevice);
    const auto topology = discover_gpus();
    ASSERT_FALSE(topology.ok()) << function;
    EXPECT_THAT(topology.error().message, testing::StartsWith(function));
    EXPECT_THAT(topology.error().message, HasSubstr("CUDA_ERROR_INVALID_DEVICE"));
  }
}

}  // namespace
}  // namespace tutti
