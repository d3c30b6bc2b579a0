// Tests of the comparison of predictions with published measurements: reading the measurements, and whether a fit
// recovers the parameters that produced them.
#include "tools/points/points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "algorithms/algorithms.h"
#include "model/simulate.h"
#include "topology/cluster.h"

namespace tutti::tool {
namespace {

constexpr char kSystems[] = R"({"systems": [{"name": "here", "rows": "a, \"b\"", "shape": "dgx-h100", "capability": 90,
  "training": "every other size", "algorithms": ["ring"], "protocols": ["ll", "simple"], "slot_bytes": [4194304],
  "fitted": ["nvlink.ll.latency_us", "nvlink.simple.gbytes_per_s"]}]})";

constexpr char kTable[] =
    "system,ranks,nodes,collective,algo,bytes,time_us\n"
    "\"a, \"\"b\"\"\",8,1,allreduce,default,64,20.5\n"
    "\"a, \"\"b\"\"\",8,1,allreduce,default,8,10\n"
    "\"a, \"\"b\"\"\",8,1,allgather,default,8,99\n"
    "another,8,1,allreduce,default,8,99\n"
    "\"a, \"\"b\"\"\",8,1,allreduce,default,1024,\n"
    "\"a, \"\"b\"\"\",8,1,allreduce,default,512,30\n";

TEST(Points, AreReadByMachinesAndBytes) {
  const auto systems = parse_systems(kSystems);
  ASSERT_TRUE(systems.ok()) << systems.error().message;
  const auto points = points_of(kTable, systems->at(0));
  ASSERT_TRUE(points.ok()) << points.error().message;
  ASSERT_EQ(points->size(), 3u) << "rows of other systems, of other collectives, and without a time are left out";
  EXPECT_EQ(points->at(0).bytes, 8u);
  EXPECT_EQ(points->at(1).time_us, 20.5);
  EXPECT_TRUE(points->at(0).fitted);
  EXPECT_FALSE(points->at(1).fitted);
  EXPECT_TRUE(points->at(2).fitted);
}

TEST(Points, WhatIsWrongIsNamed) {
  const auto message_of = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    const auto systems = parse_systems(text);
    return systems.ok() ? std::string("fine") : systems.error().message;
  };
  EXPECT_EQ(message_of(kSystems, "\"ring\"", "\"rong\""), "system 1: algorithms: there is no rong");
  EXPECT_EQ(message_of(kSystems, "nvlink.ll.", "nvlonk.ll."),
            "system 1: nvlonk.ll.latency_us: no parameter has this name");
  EXPECT_EQ(message_of(kSystems, "\"fitted\"", "\"fited\""), "system 1: fited: there is no such field");
  EXPECT_THAT(message_of(kSystems, "{\"systems\"", "\"systems\""), testing::HasSubstr("not JSON"));
  const auto short_line = points_of("system,ranks,nodes,collective,algo,bytes,time_us\na,1\n", {});
  ASSERT_FALSE(short_line.ok());
  EXPECT_EQ(short_line.error().message, "line 2: 2 fields, not 7");
  const auto twice = points_of("x,x,system,ranks,nodes,collective,algo,bytes,time_us\n", {});
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.error().message, "the table has two columns x");
}

// The times come from the model itself, with parameters other than the defaults. The fit must recover these
// parameters, and must predict the points that it has not used.
TEST(Points, AFitFindsTheParametersThatMadeThem) {
  const System system = parse_systems(kSystems)->at(0);
  std::vector<Point> points;
  for (std::uint64_t bytes = 64; bytes <= (1u << 28); bytes *= 4) {
    points.push_back({.ranks = 8, .machines = 1, .bytes = bytes, .time_us = 0, .fitted = points.size() % 2 == 0});
  }
  const auto predictor = Predictor::create(system, points);
  ASSERT_TRUE(predictor.ok()) << predictor.error().message;
  Parameters truth = default_gpu_parameters(90);
  ASSERT_TRUE(set_parameter(truth, "nvlink.ll.latency_us", 2.5).ok());
  ASSERT_TRUE(set_parameter(truth, "nvlink.simple.gbytes_per_s", 300).ok());
  for (Point& point : points) point.time_us = predictor->predict(point, truth)->time_us;
  const auto fitted = fit(system, *predictor, points, 3);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  EXPECT_NEAR(*parameter(*fitted, "nvlink.ll.latency_us"), 2.5, 0.1);
  EXPECT_NEAR(*parameter(*fitted, "nvlink.simple.gbytes_per_s"), 300, 10);
  for (const Point& point : points) {
    EXPECT_LT(std::abs(predictor->predict(point, *fitted)->time_us / point.time_us - 1), 0.03) << point.bytes;
  }
  EXPECT_FALSE(predictor->predict({.ranks = 16, .machines = 2, .bytes = 8}, truth).ok());
}

// Eight GPUs with two CPUs and two NICs. The sweep model assumes that every message has its links to itself, which
// is impossible here.
TEST(Points, NoLinkCarriesMoreThanItCan) {
  System system;
  system.name = "boxes";
  system.shape = "pcie-8gpu";
  system.capability = 80;
  system.algorithms = {Algorithm::kTwoShot};
  system.protocols = {Protocol::kSimple};
  const Point point{.ranks = 16, .machines = 2, .bytes = 256 << 20};
  const auto predictor = Predictor::create(system, {point});
  ASSERT_TRUE(predictor.ok()) << predictor.error().message;
  const Parameters parameters = default_gpu_parameters(80);
  const auto predicted = predictor->predict(point, parameters);
  ASSERT_TRUE(predicted.ok()) << predicted.error().message;
  const auto network = Network::create(*make_shape({.name = "pcie-8gpu", .machines = 2}));
  std::vector<std::uint32_t> nodes(16, 0);
  std::fill(nodes.begin() + 8, nodes.end(), 1);
  const auto plan = find_generator({.ranks = 16, .nodes = nodes}, Algorithm::kTwoShot);
  const auto swept = simulate(*plan, point.bytes, *network, parameters, {.model = SimulationModel::kSweep});
  ASSERT_TRUE(swept.ok()) << swept.error().message;
  ASSERT_GT(swept->busiest.at(0).utilisation, 1.1);
  EXPECT_DOUBLE_EQ(predicted->time_us, swept->busiest.at(0).utilisation * swept->time_us);
}

}  // namespace
}  // namespace tutti::tool
