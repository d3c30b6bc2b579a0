// Tests that the examination of the machine survives failed allocations, in a program whose allocations can fail.
#include "support/failing_allocations.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>

#include "model/calibration.h"
#include "topology/memory.h"

namespace tutti {
namespace {

// Calls `body` again and again; each time, one more allocation succeeds before one fails. Ends after a call in which
// none failed. Returns the number of failed ones. A crash ends this program.
std::int64_t fail_each_allocation(const std::function<void()>& body, bool lasting) {
  namespace failing = test::failing_allocations;
  failing::set_lasting(lasting);
  for (std::int64_t n = 1;; ++n) {
    failing::set_counted(0);
    failing::fail_after(n, false);
    try {
      body();
    } catch (const std::bad_alloc&) {  // the way in which these functions report it
    }
    failing::fail_after(0, false);
    if (failing::counted() < n) return n - 1;
  }
}

class FailingAllocations : public testing::TestWithParam<bool> {};

TEST_P(FailingAllocations, DoNotCrashTheReadingOfTheTuningFile) {
  std::string folder = testing::TempDir() + "tutti-cache-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const EnvironmentVariables variables = {{"XDG_CACHE_HOME", folder}};
  Parameters stored;
  stored.hardware = hardware_hash();
  EXPECT_TRUE(store_calibration(calibration_path("", variables), stored).ok());
  bool loaded = false;
  const auto load = [&] {
    const auto parameters = load_calibration("", variables);
    loaded = parameters.ok() && parameters->has_value();
  };
  EXPECT_GT(fail_each_allocation(load, GetParam()), 10) << "many files are read, with an allocation for most of them";
  EXPECT_TRUE(loaded) << "the last call, in which no allocation fails, reads the file";
  std::filesystem::remove_all(folder);
}

TEST_P(FailingAllocations, DoNotCrashTheReadingOfTheAvailableMemory) {
  const auto read = [] { static_cast<void>(available_memory()); };
  EXPECT_GT(fail_each_allocation(read, GetParam()), 0);
}

INSTANTIATE_TEST_SUITE_P(Every, FailingAllocations, testing::Bool(),
                         [](const auto& one) { return one.param ? "Lasting" : "Once"; });

}  // namespace
}  // namespace tutti
