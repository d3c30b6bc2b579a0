// Tests of the output of `tutti topo` for a graph: text, JSON and drawing.
#include "tools/topo/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <pugixml.hpp>
#include <string>

#include "tests/topology/xml_files.h"
#include "tools/topo/routes.h"
#include "tools/topo/svg.h"
#include "topology/cluster.h"

namespace tutti::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Graph two_sockets() { return *parse_xml(tutti::testing::kTwoSockets); }

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(TopoGraph, NamesEveryPartWithItsLinks) {
  const Graph graph = two_sockets();
  const std::string text = graph_text(graph);
  for (const GraphNode& node : graph.nodes) EXPECT_THAT(text, HasSubstr(node.name));
  EXPECT_THAT(text, HasSubstr("NVLink x 4 to gpu1: 82.4"));
  EXPECT_THAT(text, HasSubstr("NVLink x 14 to nvswitch: 288"));
  EXPECT_THAT(text, HasSubstr("C2C x 2 to cpu1: 50"));
  EXPECT_THAT(text, HasSubstr("CPU to cpu1: 22"));
  EXPECT_EQ(parts_text(graph), "2 CPUs, 2 PCI switches, 1 card with several ports, 3 GPUs, 1 NVSwitch, 4 NICs");
}

TEST(TopoGraph, TheMatrixHasNcclsNamesAndWhatTheyMean) {
  const std::string text = matrix_text(two_sockets());
  EXPECT_THAT(text, HasSubstr("gpu0  -     NVL   SYS   PIX     SYS"));
  EXPECT_THAT(text, HasSubstr("SYS"));
  EXPECT_THAT(text, HasSubstr("between sockets"));
  EXPECT_THAT(text, Not(HasSubstr("not at all")));
  Graph alone = two_sockets();
  std::erase_if(alone.links, [](const GraphLink& link) { return link.kind == LinkKind::kCpu; });
  EXPECT_THAT(matrix_text(alone), HasSubstr("not at all"));
}

TEST(TopoGraph, JsonHasThePartsTheLinksAndThePaths) {
  const Graph graph = two_sockets();
  const nlohmann::json document = graph_json(graph);
  EXPECT_EQ(document["parts"].size(), graph.nodes.size());
  EXPECT_EQ(document["links"].size(), graph.links.size());
  EXPECT_EQ(document["paths"].size(), 3U * 6U);  // from each GPU to each other GPU and each NIC
  EXPECT_EQ(document["paths"][0]["type"], "NVL");
  const nlohmann::json expected = {{"name", "mlx5_0"},
                                   {"kind", "nic"},
                                   {"pci_id", "0000:13:00.0"},
                                   {"pci_class", "0x020700"},
                                   {"device", 0},
                                   {"megabits_per_s", 400'000.0},
                                   {"gigatransfers_per_s", 32.0},
                                   {"lanes", 16}};
  EXPECT_THAT(document["parts"], ::testing::Contains(expected));
}

TEST(TopoGraph, TheDrawingIsXmlAndHasEveryPart) {
  for (const std::string& name : shape_names()) {
    ShapeOptions options;
    options.name = name;
    const Graph graph = make_shape(options)->machine;
    const Routes routes = find_routes(graph, {});
    const std::string svg = graph_svg(graph, routes);
    pugi::xml_document document;
    ASSERT_TRUE(document.load_string(svg.c_str())) << name;
    EXPECT_EQ(count_of(svg, "<rect"), graph.nodes.size() + 1) << name;  // one rectangle is the background
    EXPECT_EQ(count_of(svg, "<circle"),
              (routes.rings.size() + routes.trees.size()) * (routes.rings.empty() ? 0 : routes.rings[0].gpus.size()))
        << name;
  }
}

TEST(TopoGraph, NamesFromOutsideDoNotBreakTheDrawing) {
  Graph graph = two_sockets();
  graph.name = "<script>&\"";
  graph.nodes.front().name = "</svg>\x01";
  const std::string svg = graph_svg(graph, {});
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(svg.c_str()));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(count_of(svg, "</svg>"), 1U);
}

TEST(TopoGraph, AGraphTooLargeForADrawingSaysSo) {
  Graph graph;
  graph.nodes.resize(kMaxDrawnParts + 1);
  EXPECT_THAT(graph_svg(graph, {}), HasSubstr("2001 parts are too many for a drawing"));
}

TEST(TopoGraph, RoutesAreNamedByTheirParts) {
  ShapeOptions options;
  options.name = "dgx-h100";
  const Graph graph = make_shape(options)->machine;
  SearchOptions across;
  across.across_machines = true;
  const Routes routes = find_routes(graph, across);
  ASSERT_FALSE(routes.rings.empty());
  const std::string text = routes_text(graph, routes);
  EXPECT_THAT(text, HasSubstr("rings: "));
  EXPECT_THAT(text, HasSubstr("mlx5_0 > gpu"));
  const nlohmann::json document = routes_json(graph, routes);
  EXPECT_EQ(document["rings"].size(), routes.rings.size());
  EXPECT_EQ(document["rings"][0]["order"].size(), 8U);
  EXPECT_THAT(routes_text(graph, {}), IsEmpty());
}

TEST(TopoGraph, FindingsHaveTheFormOfACompiler) {
  const std::vector<Finding> findings{{Severity::kWarning, 3, 5, "this", "that"}};
  EXPECT_EQ(findings_text("a.xml", findings), "a.xml:3:5: warning: this; that\n");
}

TEST(TopoGraph, NumbersHaveThreeDigitsThatCount) {
  EXPECT_EQ(number_text(370.8), "371");
  EXPECT_EQ(number_text(48), "48");
  EXPECT_EQ(number_text(20.6), "20.6");
  EXPECT_EQ(number_text(3.125), "3.12");
}

}  // namespace
}  // namespace tutti::tool
