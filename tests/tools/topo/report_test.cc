// Tests of the report of `tutti topo` on a machine: which part of the device code a GPU runs, which path calls take,
// and the text.
#include "tools/topo/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

using testing::HasSubstr;
using testing::Not;
using Kind = DeviceCode::Form;

Gpu gpu(int major, int minor) {
  return {.name = "G",
          .uuid = "GPU-01234567-89ab",
          .pci_id = "0000:01:00.0",
          .memory_bytes = std::uint64_t{3} << 29,
          .capability_major = major,
          .capability_minor = minor};
}

Machine machine(std::vector<Gpu> gpus, std::vector<int> architectures) {
  Machine made;
  made.host = {.cpus = {true, true, false, true, true, true}, .cpu_limit = 3, .l2_bytes = 1 << 20};
  made.simd = "AVX2";
  made.gpus.driver_version = 13020;
  made.gpus.paths.assign(gpus.size() * gpus.size(), GpuPath{.access = true, .nvlinks = {}});
  made.gpus.gpus = std::move(gpus);
  made.architectures = std::move(architectures);
  return made;
}

TEST(TopoReport, AGpuRunsMachineCodeOfItsMajorVersionOrThePtx) {
  const std::vector<int> built = {75, 80, 86, 90, 120};
  EXPECT_EQ(device_code_for(gpu(8, 0), built), (DeviceCode{Kind::kBinary, 80}));
  EXPECT_EQ(device_code_for(gpu(8, 9), built), (DeviceCode{Kind::kBinary, 86}));
  EXPECT_EQ(device_code_for(gpu(12, 1), built), (DeviceCode{Kind::kBinary, 120}));
  EXPECT_EQ(device_code_for(gpu(13, 0), built), (DeviceCode{Kind::kPtx, 120}));
  EXPECT_EQ(device_code_for(gpu(10, 0), built), (DeviceCode{Kind::kTooOld, 0})) << "the GPU is older than the PTX code";
  EXPECT_EQ(device_code_for(gpu(7, 0), built), (DeviceCode{Kind::kTooOld, 0}));
  EXPECT_EQ(device_code_for(gpu(9, 0), {}), DeviceCode{});
}

TEST(TopoReport, SaysWhyCallsGoByTheHost) {
  EXPECT_EQ(call_placement(machine({}, {90})).reason, "there is no GPU");
  EXPECT_EQ(call_placement(machine({gpu(9, 0)}, {})).reason, "this build has no device code");
  EXPECT_EQ(call_placement(machine({gpu(9, 0), gpu(7, 0)}, {90})).reason, "the device code has nothing for GPU 1");
  Machine apart = machine({gpu(9, 0), gpu(9, 0)}, {90});
  EXPECT_TRUE(call_placement(apart).on_device);
  EXPECT_EQ(call_placement(apart).reason, "all GPUs reach each other");
  apart.gpus.paths[2].access = false;
  EXPECT_FALSE(call_placement(apart).on_device);
  EXPECT_EQ(call_placement(apart).reason, "GPU 1 does not reach GPU 0");
}

TEST(TopoReport, TheTextShowsProcessorsGpusAndPaths) {
  Machine shown = machine({gpu(9, 0), gpu(13, 0), gpu(9, 0)}, {80, 90});
  for (const std::size_t itself : {0, 4, 8}) shown.gpus.paths[itself].same_gpu = true;
  shown.gpus.paths[1] = {.access = true, .atomics = true, .nvlinks = {4, 50, false}};
  shown.gpus.paths[2] = {.access = true, .atomics = true, .nvlinks = {18, 0, true}};
  shown.gpus.paths[3] = {.access = false, .nvlinks = {4, 50, false}};
  shown.gpus.paths[5] = {.access = false, .nvlinks = {}};
  shown.gpus.paths[6] = {.same_gpu = true, .access = true, .atomics = true, .nvlinks = {}};
  const std::string text = to_text(shown);
  EXPECT_THAT(text, HasSubstr("CPUs    3 cores for this process: 0-1, 3-5; limited to 3 by the cgroup\n"
                              "        L2 1.0 MiB, last level unknown; kernels for AVX2\n"));
  EXPECT_THAT(text, HasSubstr("driver  CUDA 13.2\n"));
  EXPECT_THAT(text, HasSubstr("device code for sm_80, sm_90, later ones by PTX of compute_90"));
  EXPECT_THAT(text,
              HasSubstr("  1    G     GPU-01234567  0000:01:00.0  1.5 GiB  0    13.0        by PTX of compute_90\n"));
  EXPECT_THAT(text, HasSubstr("\n  GPU  0                      1                 2\n"
                              "  0    -                      NVLink 5.0 x 4    NVLink x 18 by a switch\n"
                              "  1    none (NVLink 5.0 x 4)  -                 none\n"
                              "  2    same GPU               PCIe, no atomics  -\n"));
}

TEST(TopoReport, TheTextSaysWhatIsMissing) {
  Machine bare = machine({}, {});
  bare.gpus.driver_version = 0;
  bare.gpus.no_driver = "no CUDA driver: a reason";
  EXPECT_THAT(to_text(bare), HasSubstr("\nGPUs    none: no CUDA driver: a reason\n"));
  Machine blind = machine({gpu(9, 0)}, {});
  blind.gpus.no_nvml = "no NVML: another reason";
  const std::string text = to_text(blind);
  EXPECT_THAT(text, HasSubstr("\nNVLink  unknown: no NVML: another reason\n"));
  EXPECT_THAT(text, HasSubstr("this build has no device code"));
  EXPECT_THAT(text, HasSubstr("of ranks on this GPU can go by the host only: this build has no device code.\n"));
  EXPECT_THAT(text, Not(HasSubstr("of the row"))) << "a single GPU has no pairs";
}

}  // namespace
}  // namespace tutti::tool
