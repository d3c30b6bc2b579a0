// Tests of Nvml, with the fake NVML library.
#include "cuda/nvml.h"

#include <gmock/gmock.h>

namespace tutti::cuda {
namespace {

TEST(Nvml, TellsWhatGpusThereAreAndHowTheyAreConnected) {
  auto nvml = Nvml::open();
  ASSERT_TRUE(nvml.ok()) << to_string(nvml.error());
  EXPECT_EQ(*nvml->gpu_count(), 2U);
  const auto first = nvml->gpu(0);
  ASSERT_TRUE(first.ok()) << to_string(first.error());
  EXPECT_EQ(first->pci_id, "0000:10:00.0");
  EXPECT_EQ(first->uuid, "GPU-fa000000-0000-0000-0000-000000000000");
  EXPECT_EQ(first->name, "Pretend GPU");
  EXPECT_EQ(first->mig_enabled, false);
  const std::vector<NvLink> links = {{0, NvLink::Remote::kGpu, "0000:11:00.0", 50},
                                     {1, NvLink::Remote::kGpu, "0000:11:00.0", 40},
                                     {3, NvLink::Remote::kSwitch, "0000:50:00.0", 40}};
  EXPECT_EQ(first->links, links);  // link 2 is down
  EXPECT_EQ(nvml->gpu(1)->mig_enabled, true);
  EXPECT_EQ(*nvml->reach(0, 1), (PeerAccess{.read = true, .write = true, .nvlink = true, .atomics = false}));
}

TEST(Nvml, RefusesAGpuThatIsNotThere) {
  auto nvml = Nvml::open();
  ASSERT_TRUE(nvml.ok());
  const auto gpu = nvml->gpu(2);
  ASSERT_FALSE(gpu.ok());
  EXPECT_THAT(gpu.error().message, testing::HasSubstr("nvmlDeviceGetHandleByIndex_v2 of 2 fails"));
}

}  // namespace
}  // namespace tutti::cuda
