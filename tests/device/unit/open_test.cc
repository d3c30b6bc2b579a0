// Tests of opening the driver on machines of different types. The test starts a program (probe.cc) with an environment
// in which it finds a suitable driver library, or no library, and checks its output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace {

using testing::HasSubstr;
using testing::Not;

// Runs the probe with these environment variables and returns its output (stdout and stderr).
std::string probe(const std::string& environment, const std::string& mode = "") {
  const std::string command = "env " + environment + " " TUTTI_CUDA_PROBE " " + mode + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string said;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) said += part.data();
  EXPECT_EQ(pclose(pipe), 0) << said;
  return said;
}

std::string with(const std::string& more = "") { return "LD_LIBRARY_PATH=" TUTTI_FAKE_DRIVER_DIR " " + more; }

TEST(CudaOpen, WithoutADriverSaysWhatToInstallAndThatHostMemoryWorks) {
  const std::string said = probe("LD_LIBRARY_PATH=");
  if (said.find("no CUDA driver") == std::string::npos) GTEST_SKIP() << "this machine has a driver: " << said;
  EXPECT_THAT(said, HasSubstr("before: not loaded, host memory is the host's"));
  EXPECT_THAT(said, HasSubstr("refused: unsupported: no CUDA driver: libcuda.so.1"));
  EXPECT_THAT(said, HasSubstr("install NVIDIA's driver"));
  EXPECT_THAT(said, HasSubstr("host memory works without it"));
  EXPECT_THAT(said, HasSubstr("nvml: unsupported: no NVML: libnvidia-ml.so.1"));
}

TEST(CudaOpen, TheDriverIsLoadedWhenItIsOpenedAndNotBefore) {
  const std::string said = probe(with("FAKE_CUDA_DEVICES=3"));
  EXPECT_THAT(said, HasSubstr("before: not loaded"));
  EXPECT_THAT(said, HasSubstr("opened: version 13.0, 3 devices"));
  EXPECT_THAT(said, HasSubstr("nvml: opened"));
}

TEST(CudaOpen, ADriverThatSomebodyElseLoadsIsNoticed) {
  EXPECT_THAT(probe(with(), "behind"), HasSubstr("behind our back: noticed"));
}

TEST(CudaOpen, TheToolkitsStubIsNamed) {
  const std::string said = probe(with("FAKE_CUDA_STUB=1"));
  EXPECT_THAT(said, HasSubstr("refused: unsupported"));
  EXPECT_THAT(said, HasSubstr("CUDA_ERROR_STUB_LIBRARY"));
  EXPECT_THAT(said, HasSubstr("take its folder out of LD_LIBRARY_PATH"));
}

TEST(CudaOpen, AnOldDriverIsToldWhichOneIsNeeded) {
  EXPECT_THAT(probe(with("FAKE_CUDA_VERSION=11000")), HasSubstr("the CUDA driver 11.0 is too old for Tutti: it lacks"));
  const std::string older = probe("LD_LIBRARY_PATH=" TUTTI_OLD_DRIVER_DIR);
  EXPECT_THAT(older,
              HasSubstr("the CUDA driver 11.4 is too old for Tutti: it lacks cuGetProcAddress_v2; 12.0 or newer"));
  EXPECT_THAT(older, HasSubstr("update the driver; host memory works without it"));
}

TEST(CudaOpen, AFunctionThatIsMissingIsNamed) {
  EXPECT_THAT(probe(with("FAKE_CUDA_WITHOUT=cuMemMap")), HasSubstr("it lacks cuMemMap"));
}

TEST(CudaOpen, AMachineWithoutADeviceIsNamed) {
  for (const char* how : {"FAKE_CUDA_DEVICES=0", "FAKE_CUDA_INIT=100"}) {
    const std::string said = probe(with(how));
    EXPECT_THAT(said, HasSubstr("refused: unsupported: cuInit fails: CUDA_ERROR_NO_DEVICE (100"));
    EXPECT_THAT(said, HasSubstr("CUDA_VISIBLE_DEVICES"));
  }
}

TEST(CudaOpen, AFaultCanComeFromOutside) {
  EXPECT_THAT(probe(with("FAKE_CUDA_FAIL=cuInit:1:803")), HasSubstr("refused: unsupported: cuInit fails"));
  EXPECT_THAT(probe(with("FAKE_CUDA_FAIL=cuInit:2:803")), HasSubstr("opened"));
}

TEST(CudaOpen, NvmlWithoutItsDriverIsNamed) {
  EXPECT_THAT(probe(with("FAKE_NVML_INIT=9")), HasSubstr("nvml: unsupported: nvmlInit_v2 fails: a pretend error (9)"));
}

TEST(CudaOpen, TheDoubleReportsLeaksWhenTheProcessEnds) {
  EXPECT_THAT(probe(with("FAKE_CUDA_LEAKS=1"), "leak"), HasSubstr("not given back:\ndevice memory"));
  EXPECT_THAT(probe(with("FAKE_CUDA_LEAKS=1")), Not(HasSubstr("not given back")));
}

}  // namespace
