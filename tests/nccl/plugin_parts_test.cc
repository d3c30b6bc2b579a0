// Tests of the parts of the library that load plugins: names of files, the table of costs, the log of plugins.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "communicator/create.h"
#include "communicator/machine_ranks.h"
#include "nccl/plugins/cost_table.h"
#include "nccl/plugins/plugin_file.h"

namespace tutti::nccl {
namespace {

using Files = std::vector<std::string>;

TEST(NcclPluginFiles, FollowNcclsRules) {
  const auto files = [](const std::optional<std::string>& value) { return plugin_files("libnccl-tuner", value); };
  EXPECT_EQ(files(std::nullopt), Files{"libnccl-tuner.so"});
  EXPECT_EQ(files("none"), Files{});
  EXPECT_EQ(files("NONE"), Files{});
  EXPECT_EQ(files("static_plugin"), Files{""});
  EXPECT_EQ(files("ofi"), (Files{"ofi", "libnccl-tuner-ofi.so"}));
  EXPECT_EQ(files("lib"), (Files{"lib", "libnccl-tuner-lib.so"}));
  EXPECT_EQ(files("mine.so"), (Files{"mine.so", "libnccl-tuner-mine.so.so"}));
  EXPECT_EQ(files("libmine.so"), Files{"libmine.so"});
  EXPECT_EQ(files("./mine"), Files{"./mine"});
  EXPECT_EQ(files("/a/b.so"), Files{"/a/b.so"});
}

TEST(NcclPluginFiles, AMissingFileWithTheDefaultNameIsNoWarning) {
  const PluginType type{
      .variable = "NCCL_X_PLUGIN", .file = "libnccl-none-such", .symbol = "x_v", .versions = {1}, .other_versions = {}};
  testing::internal::CaptureStderr();
  EXPECT_FALSE(open_plugin(type, std::nullopt, Log(LogLevel::kWarn, -1)));
  EXPECT_FALSE(open_plugin(type, "none", Log(LogLevel::kDebug, -1)));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(open_plugin(type, std::nullopt, Log(LogLevel::kInfo, -1)));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("info: NCCL_X_PLUGIN=libnccl-none-such.so: "),
            std::string::npos);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(open_plugin(type, "some", Log(LogLevel::kWarn, -1)));
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find("NCCL_X_PLUGIN=some: the plugin is not used"), std::string::npos) << line;
  EXPECT_NE(line.find("libnccl-none-such-some.so"), std::string::npos) << line;
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
}

TEST(NcclPluginFacts, CountTheRanksOfEachMachine) {
  using Counts = std::vector<std::int32_t>;
  for (const auto& [nodes, counts] : {std::pair{1, Counts{3}}, std::pair{2, Counts{2, 1}}}) {
    const auto made = detail::create_all(3, {}, nodes, {});
    ASSERT_TRUE(made.ok()) << to_string(made.error());
    for (const auto& one : *made) EXPECT_EQ(detail::machine_ranks(*one), counts);
  }
}

double ring_takes_2us(Algorithm algorithm) { return algorithm == Algorithm::kRing ? 2.0 : 5.0; }

TEST(NcclCostTable, HasThePredictionsOfTheAlgorithmsThatTuttiHas) {
  const CostTable costs = predicted_costs(CollectiveKind::kAllReduce, kAllAlgorithms, kAllProtocols, ring_takes_2us);
  for (std::size_t algorithm = 0; algorithm < 7; ++algorithm) {
    const float expected = algorithm == kTreeNumber ? 5.0F : algorithm == kRingNumber ? 2.0F : kNotAvailable;
    for (const float cost : costs[algorithm]) EXPECT_EQ(cost, expected) << algorithm;
  }
  EXPECT_FALSE(tuned_function(CollectiveKind::kAllToAll));
  EXPECT_EQ(tuned_function(CollectiveKind::kReduceScatter), 3u);
}

TEST(NcclCostTable, TheCheapestAvailableEntryIsTaken) {
  constexpr auto kKind = CollectiveKind::kAllReduce;
  const CostTable offered = predicted_costs(kKind, kAllAlgorithms, kAllProtocols, ring_takes_2us);
  CostTable changed = offered;
  EXPECT_EQ(cheapest(kKind, offered, changed), Algorithm::kRing);
  changed[kTreeNumber][1] = 1.9F;
  EXPECT_EQ(cheapest(kKind, offered, changed), Algorithm::kDoubleTree);
  changed[kPatNumber][2] = 0;  // was not available
  EXPECT_EQ(cheapest(kKind, offered, changed), Algorithm::kDoubleTree);
  changed[kTreeNumber] = {std::nanf(""), -0.5F, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(cheapest(kKind, offered, changed), Algorithm::kRing);
  changed[kRingNumber].fill(kNotAvailable);
  EXPECT_EQ(cheapest(kKind, offered, changed), std::nullopt);
  const CostTable ring = predicted_costs(kKind, 1u << kRingNumber, kAllProtocols, ring_takes_2us);
  changed = ring;
  changed[kTreeNumber][2] = 0;  // NCCL_ALGO excludes it
  EXPECT_EQ(cheapest(kKind, ring, changed), Algorithm::kRing);
  const CostTable only = predicted_costs(CollectiveKind::kReduce, kAllAlgorithms, kAllProtocols, ring_takes_2us);
  EXPECT_EQ(cheapest(CollectiveKind::kReduce, only, only), Algorithm::kAuto);
}

}  // namespace
}  // namespace tutti::nccl
