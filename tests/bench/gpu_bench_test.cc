// Tests of gpu_bench with the fake CUDA driver. The test gives the driver right and wrong kernels, and checks that
// the parts of the benchmark measure and verify them correctly. It also checks the exit status on different
// machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/gpu/calls_part.h"
#include "bench/gpu/kernels_part.h"
#include "bench/gpu/values.h"
#include "kernels/cpu/reduce.h"
#include "kernels/device/plain_work.h"
#include "tests/device/fake_driver/control.h"

namespace tutti::bench {
namespace {

using cuda::CUresult;
using cuda::fake::FakeLaunch;
using testing::HasSubstr;

// The fake driver accepts these bytes as device code.
constexpr char kImage[] = "fake image";

enum class Addition { kInOrder, kBackwards };

void reduce_on_host(const device::PlainWork& work, Addition order) {
  std::vector<const std::byte*> sources(work.sources, work.sources + work.source_count);
  if (order == Addition::kBackwards) std::reverse(sources.begin(), sources.end());
  std::vector<std::byte*> destinations(work.destinations, work.destinations + work.destination_count);
  kernels::reduce({.type = work.how.type, .op = work.how.op, .scale = {}}, sources, destinations, work.count);
}

void register_kernels(const cuda::fake::Control& fake, Addition order) {
  fake.register_kernel({"tutti_copy", {sizeof(device::CopyWork)}, [](const FakeLaunch& launch) {
                          const auto& work = *static_cast<device::CopyWork*>(launch.arguments[0]);
                          std::memcpy(work.destination, work.source, work.words * 16);
                          return CUresult::kSuccess;
                        }});
  fake.register_kernel({"tutti_reduce", {sizeof(device::PlainWork)}, [order](const FakeLaunch& launch) {
                          reduce_on_host(*static_cast<device::PlainWork*>(launch.arguments[0]), order);
                          return CUresult::kSuccess;
                        }});
  fake.register_kernel({"tutti_empty", {}, [](const FakeLaunch&) { return CUresult::kSuccess; }});
}

class GpuBench : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = cuda::fake::control();
    ASSERT_NE(fake_, nullptr) << "libcuda.so.1 is not the double: was the program linked with fake_driver?";
    register_kernels(*fake_, Addition::kInOrder);
    auto gpu = Gpu::open(0, std::as_bytes(std::span(kImage)));
    ASSERT_TRUE(gpu.ok()) << to_string(gpu.error());
    gpu_ = *std::move(gpu);
  }
  void TearDown() override {
    gpu_.reset();
    if (fake_ == nullptr) return;
    EXPECT_EQ(fake_->leaks(), "");
  }
  KernelsResult kernels(bool corrupt = false) {
    const auto result = measure_kernels(
        *gpu_, {.sizes = {48 << 10}, .rounds = {.rounds = 1, .passes = 1, .limit_s = 5}, .corrupt = corrupt});
    EXPECT_TRUE(result.ok()) << to_string(result.error());
    return result.ok() ? *result : KernelsResult{};
  }

  const cuda::fake::Control* fake_ = nullptr;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(GpuBench, MeasuresEveryKernelTypeAndShape) {
  const KernelsResult result = kernels();
  EXPECT_EQ(result.wrong, 0U);
  ASSERT_EQ(result.copies.size(), 1U);
  EXPECT_GT(result.copies[0].gigabytes_per_s, 0);
  const std::vector<Row>& rows = result.sections.back().rows;
  ASSERT_EQ(rows.size(), 1 + 6 * 4U) << "one copy, and six types with 2 or 4 sources and 1 or 2 destinations";
  for (const Row& row : rows)
    EXPECT_NEAR(row["share"].get<double>(), row["GB/s"].get<double>() / row["copy GB/s"].get<double>(), 1e-9);
}

TEST_F(GpuBench, NoticesOtherOrdersAndStrayBytes) {
  register_kernels(*fake_, Addition::kBackwards);
  gpu_ = *Gpu::open(0, std::as_bytes(std::span(kImage)));  // opened again, to use the new kernels
  // Wrong are float64 and float32 with 4 sources, into 1 and into 2 destinations. Two sources give the same sum in
  // either order, and the sums of narrow types are exact in float32 here.
  EXPECT_EQ(kernels().wrong, 2 * (1 + 2U));
  register_kernels(*fake_, Addition::kInOrder);
  gpu_ = *Gpu::open(0, std::as_bytes(std::span(kImage)));
  EXPECT_EQ(kernels(true).wrong, 1 + 6 * 4U) << "one wrong byte in each first destination";
}

TEST_F(GpuBench, TimesCallsOfAllRanksAndChecksThem) {
  CallsOptions options{.ranks = {1, 3},
                       .sizes = {8, 100'000},
                       .gather_sizes = {4096, 100'000},
                       .rounds = {.rounds = 1, .passes = 1, .limit_s = 5},
                       .copies = {{1000, 1.0}},
                       .corrupt = false};
  const auto result = measure_calls(*gpu_, options);
  ASSERT_TRUE(result.ok()) << to_string(result.error());
  EXPECT_EQ(result->wrong, 0U);
  const std::vector<Row>& rows = result->sections[0].rows;
  ASSERT_EQ(rows.size(), 2 * 2 * 2U);
  for (const Row& row : rows) {
    EXPECT_EQ(row["right"], true);
    EXPECT_GT(row["time / empty"].get<double>(), 0);
  }
  EXPECT_NEAR(rows.back()["bound us"].get<double>(), 600, 1e-6) << "3 ranks read and write 100,000 bytes at 1 GB/s";
  EXPECT_GT(result->sections[1].rows[1]["steps of a rank"], result->sections[1].rows[0]["steps of a rank"]);
  const std::vector<Row>& gathers = result->sections[2].rows;
  ASSERT_EQ(gathers.size(), 2 * 2U) << "two sizes, each with kernels and with copies";
  EXPECT_EQ(gathers[3]["right"], true);
  EXPECT_NEAR(gathers[3]["bound us"].get<double>(), 400, 1e-6) << "2 outputs of 100,000 bytes at 1 GB/s";
  options.corrupt = true;
  EXPECT_EQ(measure_calls(*gpu_, options)->wrong, 2 * 2 * 2U + 2 + 2 * 2)
      << "one rank of each call with each algorithm, and of each gather";
}

TEST(GpuBenchValues, ShowEveryRanksPart) {
  const Period sum = sum_of_digits(3);
  const auto at = [](const Period& period, std::size_t i) {
    float value = 0;
    std::memcpy(&value, period.data() + i * sizeof(float), sizeof(float));
    return static_cast<int>(value);
  };
  const Period parts[] = {rank_digits(0), rank_digits(1), rank_digits(2)};
  for (std::size_t i = 0; i < kPeriodBytes / sizeof(float); ++i) {
    ASSERT_EQ(at(sum, i), at(parts[0], i) + at(parts[1], i) + at(parts[2], i));
    for (int rank = 0; rank < 3; ++rank) {
      const int digit = at(sum, i) >> (3 * rank) & 7;
      ASSERT_EQ(digit << (3 * rank), at(parts[rank], i)) << "each rank has its own digit";
    }
  }
}

struct ProgramResult {
  int status = -1;
  std::string text;  // standard output and standard error
};

ProgramResult gpu_bench(const std::string& environment, const std::string& arguments) {
  const std::string command = "env " + environment + " '" TUTTI_GPU_BENCH "' " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  ProgramResult program_result;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) program_result.text += part.data();
  const int status = pclose(pipe);
  program_result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return program_result;
}

const std::string kDouble = "LD_LIBRARY_PATH='" TUTTI_FAKE_DRIVER_DIR "'";

TEST(GpuBenchProgram, SmokeRunsWithoutKernelsAndSaysSo) {
  const ProgramResult program_result = gpu_bench(kDouble, "--smoke --rounds 1 --json /dev/stderr");
  EXPECT_EQ(program_result.status, 0) << program_result.text;
  EXPECT_THAT(program_result.text, HasSubstr("Not run, because the kernels are not available: "));
  EXPECT_THAT(program_result.text, HasSubstr("\n| 4 | 64 KiB | threads |"));
  EXPECT_THAT(program_result.text, HasSubstr("\"schema\": \"tutti-gpu-bench\""));
}

TEST(GpuBenchProgram, AWrongResultFails) {
  const ProgramResult program_result = gpu_bench(kDouble, "--smoke --rounds 1 --corrupt");
  EXPECT_EQ(program_result.status, 1);
  EXPECT_THAT(program_result.text, HasSubstr("results are WRONG"));
}

TEST(GpuBenchProgram, WithoutAGpuOrKernelsEndsWithThree) {
  EXPECT_EQ(gpu_bench(kDouble + " FAKE_CUDA_DEVICES=0", "--smoke").status, 3);
  const ProgramResult no_kernels = gpu_bench(kDouble, "");
  EXPECT_EQ(no_kernels.status, 3);
  EXPECT_THAT(no_kernels.text, testing::AnyOf(HasSubstr("no device code"), HasSubstr("cuModuleGetFunction")));
  EXPECT_EQ(gpu_bench(kDouble, "--device 5 --smoke").status, 1);
  EXPECT_EQ(gpu_bench(kDouble, "--smok").status, 2);
}

}  // namespace
}  // namespace tutti::bench
