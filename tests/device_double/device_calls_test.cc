// Calls that the GPUs carry out, from the public API to the device code: over the double of the driver, with several
// ranks on one pretend device, one each, and both. The bits are the host's; streams keep their order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device_double/calls_support.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using Kind = CollectiveKind;
using Devices = std::vector<std::int32_t>;

constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kBroadcast, Kind::kReduce, Kind::kAllGather,
                           Kind::kReduceScatter, Kind::kAllToAll,  Kind::kGather, Kind::kScatter};

unsigned launches() { return small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel"); }

class DeviceCalls : public ::testing::TestWithParam<Devices> {};

// Sums of bfloat16 are rounded: they are the same only in the same order.
TEST_P(DeviceCalls, GiveTheBitsOfTheHost) {
  const Devices& devices = GetParam();
  Communicators host = ranks_on(Devices(devices.size(), CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  for (const Kind kind : kKinds) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{777}, std::size_t{20'001}}) {
      for (const bool in_place : {false, true}) {
        if (kind == Kind::kScatter && in_place) continue;  // only the root has a form of it
        CallShape shape{.kind = kind, .count = count, .in_place = in_place};
        if (count == 777) shape.type = DataType::kBfloat16;
        if (kind == Kind::kReduce) shape.algorithm = Algorithm::kDirect;
        const unsigned before = launches();
        EXPECT_EQ(outcome(gpus, shape, devices), outcome(host, shape, {}))
            << to_string(kind) << " " << count << (in_place ? " in place" : "");
        EXPECT_GT(launches(), before) << "the host carried it out";
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Devices>& info) {
  std::string name = "On";
  for (const std::int32_t device : info.param) name += std::to_string(device);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCalls,
                         ::testing::Values(Devices{0}, Devices{0, 0}, Devices{0, 1}, Devices{0, 0, 0, 0},
                                           Devices{0, 1, 2, 3}, Devices{0, 0, 1, 1}, Devices{1, 0, 1}),
                         name_of);

}  // namespace
}  // namespace tutti::testing
