// Tests calls with more than 2^31 elements, so that counts, offsets and bytes exceed 32 bits.
#include <fstream>
#include <sstream>

#include "conformance/suite.h"

namespace tutti::test {
namespace {

constexpr std::size_t kCount = (std::size_t{1} << 31) + 12'345;  // number of 8-bit integers
constexpr std::size_t kNeededBytes = std::size_t{10} << 30;

bool has_enough_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024 > kNeededBytes;
  }
  return false;
}

// A value that is cheap to compute and differs in every 64 KiB.
std::uint8_t element(std::int32_t rank, std::size_t i) {
  return static_cast<std::uint8_t>(i * 31 + (i >> 16) * 7 + static_cast<std::size_t>(rank) * 101);
}

class Huge : public testing::TestWithParam<JobConfiguration> {};

TEST_P(Huge, CallsOfMoreThan2To31ElementsAreRight) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "with the thread sanitizer, 2^31 accesses take more than ten minutes, and the test uses no special threads";
#endif
  if (!has_enough_memory()) GTEST_SKIP() << "10 GiB of memory are not available";
  Communicators ranks = make_configured_ranks(GetParam(), 2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<std::uint8_t> data(kCount);
    for (std::size_t i = 0; i < kCount; ++i) data[i] = element(rank.rank(), i);
    CallOptions options;
    options.timeout = 4 * patience();
    Status status = rank.all_reduce(data.data(), data.data(), kCount, DataType::kUint8, ReduceOp::kSum, options);
    ASSERT_TRUE(status.ok()) << tutti::to_string(status.error());
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto want = static_cast<std::uint8_t>(element(0, i) + element(1, i));
      if (data[i] != want) FAIL() << "all_reduce: element " << i << " is " << +data[i] << ", not " << +want;
    }
    // A point-to-point transfer in one direction: rank 0 sends its whole buffer.
    if (rank.rank() == 0) {
      for (std::size_t i = 0; i < kCount; ++i) data[i] = element(7, i);
      status = rank.send(data.data(), kCount, DataType::kUint8, 1, options);
    } else {
      status = rank.receive(data.data(), kCount, DataType::kUint8, 0, options);
    }
    ASSERT_TRUE(status.ok()) << tutti::to_string(status.error());
    for (std::size_t i = 0; i < kCount; i += 97) ASSERT_EQ(data[i], element(7, i)) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Huge, testing::Values(kConfigurations[0], kConfigurations[1]),
                         [](const auto& world) { return std::string(world.param.name); });

}  // namespace
}  // namespace tutti::test
