#include "tools/topo/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "tools/common/svg_drawing.h"
#include "tools/topo/graph.h"

namespace tutti::tool {
namespace {

constexpr std::uint32_t kNone = ~0U;

// Lengths in pixels.
constexpr double kMargin = 28;
constexpr double kColumn = 84;  // width of the column of one part without children in the PCI tree
constexpr double kBox = 72;
constexpr double kBar = 30;
constexpr double kCpuBar = 44;
constexpr double kGap = 34;  // space between levels, for a link and its bandwidth
constexpr double kLeaf = 58;
constexpr double kTitle = 74;
constexpr double kSwitchGap = 46;

constexpr auto kRingColours = std::to_array<std::string_view>(
    {"#d1495b", "#00798c", "#edae49", "#6a4c93", "#2e933c", "#c8553d", "#30638e", "#8d6a9f"});

struct Colours {
  std::string_view fill, line;
};
Colours colours_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::kCpu: return {"#dbe7f3", "#3d6690"};
    case NodeKind::kPci: return {"#eceff1", "#78868e"};
    case NodeKind::kGpu: return {"#dff0d8", "#4c8a3f"};
    case NodeKind::kNvSwitch: return {"#d3eeec", "#1c8580"};
    case NodeKind::kNic: return {"#fdebd0", "#c27a1a"};
  }
  return {"#ffffff", "#000000"};
}

constexpr std::string_view kNvLinkColour = "#1c8580";
constexpr std::string_view kPciColour = "#78868e";
constexpr std::string_view kCpuColour = "#3d6690";

// The width of the line for a link, in pixels: with 16 times the bandwidth it is twice as wide, but at least 0.8 and at
// most 6 pixels.
double width_of(double gbytes_per_s) { return std::clamp(1.1 * std::pow(std::max(gbytes_per_s, 0.1), 0.25), 0.8, 6.0); }

SvgStroke stroke_of(const GraphLink& link, std::string_view colour) {
  return {.colour = colour, .width = width_of(link.gbytes_per_s)};
}

// The position and size of a part in the drawing.
struct PartBox {
  double x = 0, y = 0, width = 0, height = 0;
  std::size_t level = 0;
  bool leaf = false;

  double middle() const { return x + width / 2; }
  double bottom() const { return y + height; }
};

class Drawing {
 public:
  Drawing(const Graph& graph, const Routes& routes)
      : graph_(graph), routes_(routes), boxes_(graph.nodes.size()), link_to_(graph.nodes.size(), kNone) {
    children_.resize(graph.nodes.size());
    for (std::uint32_t i = 0; i < graph.links.size(); ++i) {
      const GraphLink& link = graph.links[i];
      const bool tree = link.kind == LinkKind::kPci && graph.nodes[link.to].kind != NodeKind::kCpu;
      if (!tree || link_to_[link.to] != kNone) continue;
      link_to_[link.to] = i;
      children_[link.from].push_back(link.to);
    }
  }

  std::string draw() {
    lay_out();
    draw_cpu_links();
    for (std::uint32_t node = 0; node < graph_.nodes.size(); ++node) {
      if (link_to_[node] != kNone) draw_up_link(node);
    }
    draw_other_links();
    for (std::uint32_t node = 0; node < graph_.nodes.size(); ++node) draw_node(node);
    draw_routes();
    return finish();
  }

 private:
  NodeKind kind(std::uint32_t node) const { return graph_.nodes[node].kind; }

  // Sets the positions of the CPUs, of all parts below them in the PCI tree, and of the NVSwitches. Other parts keep
  // the width 0 and are not drawn. Each part without children in the PCI tree has a column of its own, from left to
  // right. A part with children is as wide as the columns of its children together.
  void lay_out() {
    double x = kMargin;
    for (const std::uint32_t cpu : nodes_of(graph_, NodeKind::kCpu)) {
      const double begin = x;
      place_part(cpu, 0, x);
      x = std::max(x, begin + 2 * kColumn);  // a CPU is at least two columns wide, because its text needs the space
      boxes_[cpu].width = x - begin - (kColumn - kBox);
      boxes_[cpu].leaf = false;
      x += kColumn / 2;
    }
    right_ = std::max(x - kColumn / 2, kMargin + 6 * kColumn);
    top_ = kTitle + (nodes_of(graph_, NodeKind::kCpu).size() > 2 ? 44 : 0);
    const double leaf_y = top_ + kCpuBar + kGap + static_cast<double>(deepest_) * (kBar + kGap);
    for (std::uint32_t node = 0; node < graph_.nodes.size(); ++node) {
      PartBox& place = boxes_[node];
      place.height = place.leaf ? kLeaf : kind(node) == NodeKind::kCpu ? kCpuBar : kBar;
      place.y = place.leaf ? leaf_y : place.level == 0 ? top_ : top_ + kCpuBar + kGap + level_y(place.level - 1);
    }
    bottom_ = leaf_y + kLeaf;
    place_switches();
  }

  static double level_y(std::size_t level) { return static_cast<double>(level) * (kBar + kGap); }

  // Places a part and everything below it. The recursion is not deep: a PCI tree from a file has at most kMaxXmlDepth
  // levels, and that of a real machine has fewer.
  void place_part(std::uint32_t node, std::size_t level, double& x) {
    PartBox& box = boxes_[node];
    box.level = level;
    box.x = x;
    if (children_[node].empty()) {
      box.leaf = level > 0;
      x += kColumn;
    } else if (level > 0) {
      deepest_ = std::max(deepest_, level);
    }
    for (const std::uint32_t child : children_[node]) place_part(child, level + 1, x);
    boxes_[node].width = std::max(x - boxes_[node].x - (kColumn - kBox), kBox);
  }

  void place_switches() {
    const std::vector<std::uint32_t> switches = nodes_of(graph_, NodeKind::kNvSwitch);
    const std::vector<std::uint32_t> gpus = nodes_of(graph_, NodeKind::kGpu);
    if (switches.empty() || gpus.empty()) return;
    double left = right_;
    double right = kMargin;
    for (const std::uint32_t gpu : gpus) {
      left = std::min(left, boxes_[gpu].x);
      right = std::max(right, boxes_[gpu].x + boxes_[gpu].width);
    }
    for (const std::uint32_t node : switches) {
      boxes_[node] = {left, bottom_ + kSwitchGap, right - left, kBar, 0, false};
      bottom_ += kSwitchGap + kBar;
    }
  }

  void draw_cpu_links() {
    for (const GraphLink& link : graph_.links) {
      if (link.kind != LinkKind::kCpu) continue;
      const PartBox& a = boxes_[std::min(link.from, link.to)];
      const PartBox& b = boxes_[std::max(link.from, link.to)];
      const std::string label = number_text(link.gbytes_per_s);
      const bool neighbours = b.x - (a.x + a.width) < kColumn;
      if (neighbours) {
        const double y = a.y + kCpuBar / 2;
        drawing_.line(a.x + a.width, y, b.x, y, stroke_of(link, kCpuColour));
        drawing_.text((a.x + a.width + b.x) / 2, y - 7, label, {.size = 10, .colour = kCpuColour});
        continue;
      }
      const double rise = std::min(20 + (b.middle() - a.middle()) / 40, 56.0);
      drawing_.path(fmt::format("M{:.1f} {:.1f} Q{:.1f} {:.1f} {:.1f} {:.1f}", a.middle(), a.y,
                                (a.middle() + b.middle()) / 2, a.y - 2 * rise, b.middle(), b.y),
                    stroke_of(link, kCpuColour));
      drawing_.text((a.middle() + b.middle()) / 2, a.y - rise - 3, label, {.size = 10, .colour = kCpuColour});
    }
  }

  void draw_up_link(std::uint32_t node) {
    const GraphLink& link = graph_.links[link_to_[node]];
    const PartBox& above = boxes_[link.from];
    const PartBox& box = boxes_[node];
    const double x = box.middle();
    drawing_.line(x, above.bottom(), x, box.y, stroke_of(link, kPciColour));
    drawing_.text(x + 5, box.y - 9, number_text(link.gbytes_per_s),
                  {.size = 10, .colour = "#5b676e", .anchor = "start"});
  }

  void draw_other_links() {
    std::size_t arcs = 0;
    double deepest = 0;
    for (std::uint32_t i = 0; i < graph_.links.size(); ++i) {
      const GraphLink& link = graph_.links[i];
      const bool nvlink = link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
      if (link.kind == LinkKind::kC2c) draw_c2c(link);
      if (link.kind == LinkKind::kPci && link_to_[link.to] != i) draw_pcilink(link);
      if (!nvlink) continue;
      if (kind(link.from) == NodeKind::kGpu && kind(link.to) == NodeKind::kGpu) {
        deepest = std::max(deepest, draw_arc(link));
        ++arcs;
      } else {
        draw_to_switch(link);
      }
    }
    if (arcs == 0) return;
    bottom_ += deepest + 22;
    drawing_.text(kMargin, bottom_ - 4, arc_legend(), {.size = 11, .colour = kNvLinkColour, .anchor = "start"});
  }

  // A text with the bandwidth of each kind of NVLink or xGMI link between two GPUs. The arcs that show these links
  // have no labels of their own, because there are too many of them.
  std::string arc_legend() const {
    std::vector<std::pair<double, std::string>> kinds;
    for (const GraphLink& link : graph_.links) {
      const bool nvlink = link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
      if (!nvlink || kind(link.from) != NodeKind::kGpu || kind(link.to) != NodeKind::kGpu) continue;
      const std::string words =
          fmt::format("{} x {}: {} GB/s", to_string(link.kind), link.count, number_text(link.gbytes_per_s));
      const bool known = std::any_of(kinds.begin(), kinds.end(), [&](const auto& one) { return one.second == words; });
      if (!known) kinds.emplace_back(link.gbytes_per_s, words);
    }
    std::sort(kinds.begin(), kinds.end());
    std::string legend;
    for (const auto& one : kinds) legend += (legend.empty() ? "" : ";  ") + one.second;
    return legend;
  }

  // Draws the link between two GPUs as an arc below them. Returns how far the arc reaches down, in pixels.
  double draw_arc(const GraphLink& link) {
    const PartBox& a = boxes_[link.from];
    const PartBox& b = boxes_[link.to];
    const double depth = 14 + std::abs(a.middle() - b.middle()) / 9;
    const double y = std::max(a.bottom(), b.bottom());
    drawing_.path(
        fmt::format("M{:.1f} {:.1f} C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}", a.middle(), y, a.middle(),
                    y + depth * 4 / 3, b.middle(), y + depth * 4 / 3, b.middle(), y),
        {.colour = kNvLinkColour, .width = 0.6 * width_of(link.gbytes_per_s) * std::sqrt(link.count), .opacity = 0.75});
    return depth;
  }

  void draw_to_switch(const GraphLink& link) {
    const bool down = boxes_[link.from].y < boxes_[link.to].y;
    const std::uint32_t upper = down ? link.from : link.to;
    const PartBox& end = boxes_[down ? link.to : link.from];
    const double x = boxes_[upper].middle();
    drawing_.line(x, boxes_[upper].bottom(), x, end.y, stroke_of(link, kNvLinkColour));
    const double y = (boxes_[upper].bottom() + end.y) / 2;
    drawing_.text(x + 6, y - 1, number_text(link.gbytes_per_s),
                  {.size = 10, .colour = kNvLinkColour, .anchor = "start"});
    drawing_.text(x + 6, y + 11, fmt::format("x {}", link.count),
                  {.size = 9, .colour = kNvLinkColour, .anchor = "start"});
  }

  void draw_c2c(const GraphLink& link) {
    const PartBox& cpu = boxes_[link.from];
    const PartBox& gpu = boxes_[link.to];
    const double x = gpu.x + 9;
    drawing_.line(x, cpu.bottom(), x, gpu.y, stroke_of(link, kNvLinkColour));
    drawing_.text(x - 4, gpu.y - 22, number_text(link.gbytes_per_s),
                  {.size = 10, .colour = kNvLinkColour, .anchor = "end"});
  }

  void draw_pcilink(const GraphLink& link) {
    const PartBox& a = boxes_[link.from].x < boxes_[link.to].x ? boxes_[link.from] : boxes_[link.to];
    const PartBox& b = &a == &boxes_[link.from] ? boxes_[link.to] : boxes_[link.from];
    const double y = a.y + a.height / 2;
    SvgStroke stroke = stroke_of(link, kPciColour);
    stroke.dashes = "5 3";
    drawing_.line(a.x + a.width, y, b.x, b.y + b.height / 2, stroke);
  }

  void draw_node(std::uint32_t index) {
    const GraphNode& node = graph_.nodes[index];
    const PartBox& at = boxes_[index];
    if (at.width == 0) return;
    const auto [fill, line] = colours_of(node.kind);
    drawing_.box(at.x, at.y, at.width, at.height, {.fill = fill, .line = line, .radius = 5});
    const double x = at.middle();
    const std::size_t room = static_cast<std::size_t>(at.width / 6);
    if (at.leaf) return draw_leaf(node, at);
    const std::string detail = description(node);
    const bool tall = at.height >= kCpuBar && !detail.empty();
    const bool narrow = at.width < 1.5 * kColumn && node.kind == NodeKind::kPci;
    const std::string name = narrow ? short_bus_id(node) : node.name;
    drawing_.text(x, at.y + (tall ? 19 : at.height / 2 + 4), shorten(name, room),
                  {.size = narrow ? 11.0 : 12.0, .bold = true});
    if (tall) drawing_.text(x, at.y + 35, shorten(detail, room), {.size = 10, .colour = "#44515a"});
  }

  static std::string short_bus_id(const GraphNode& node) {
    const std::string& bus = node.pci.bus_id;
    return bus.starts_with("0000:") ? bus.substr(5) : bus;
  }

  void draw_leaf(const GraphNode& node, const PartBox& at) {
    const double x = at.middle();
    const std::string_view bus = node.pci.bus_id;
    std::string what;
    if (node.kind == NodeKind::kNic && node.nic.megabits_per_s > 0) {
      what = number_text(node.nic.megabits_per_s / 1'000) + " Gbit/s";
    } else if (node.kind == NodeKind::kGpu) {
      what = !node.gpu.gcn.empty()     ? "gcn " + node.gpu.gcn
             : node.gpu.capability > 0 ? fmt::format("sm_{}", node.gpu.capability)
                                       : std::string();
    }
    const bool named_by_bus = !bus.empty() && node.name.ends_with(bus);
    const std::string name = named_by_bus ? node.name.substr(0, node.name.find(' ')) : node.name;
    drawing_.text(x, at.y + 19, shorten(name, 11), {.size = 12, .bold = true});
    drawing_.text(x, at.y + 34, shorten(what, 12), {.size = 10, .colour = "#44515a"});
    drawing_.text(x, at.y + 49, short_bus_id(node), {.size = 9, .colour = "#78868e"});
  }

  // Draws the rings and trees below the machine, at most kMostDrawn of each: one row for each, with its GPUs in their
  // order. The trees are to the right of the rings.
  void draw_routes() {
    constexpr std::size_t kMostDrawn = 16;
    constexpr double kBetween = 60;
    const auto rings = std::min(routes_.rings.size(), kMostDrawn);
    const auto trees = std::min(routes_.trees.size(), kMostDrawn);
    const double top = bottom_;
    left_ = kMargin;
    if (rings > 0) {
      draw_heading(fmt::format("Rings: {} of {} GB/s each, {} GB/s in all", routes_.rings.size(),
                               number_text(routes_.rings.front().gbytes_per_s),
                               number_text(routes_.ring_gbytes_per_s)));
    }
    for (std::size_t i = 0; i < rings; ++i) {
      const Ring& ring = routes_.rings[i];
      draw_route(i, ring.gpus, nic_name(ring.nic_in), nic_name(ring.nic_out), true);
    }
    if (trees == 0) return;
    const double end = bottom_;
    if (rings > 0) left_ = std::max(routes_right_, left_ + 4 * kColumn) + kBetween;
    bottom_ = rings > 0 ? top : end;
    draw_heading(fmt::format("Trees, this machine's part: {} chains of {} GB/s each, {} GB/s in all",
                             routes_.trees.size(), number_text(routes_.trees.front().gbytes_per_s),
                             number_text(routes_.tree_gbytes_per_s)));
    right_ = std::max(right_, left_ + 6 * kColumn);  // space for the heading
    for (std::size_t i = 0; i < trees; ++i) {
      draw_route(i, routes_.trees[i].chain, nic_name(routes_.trees[i].nic), "", false);
    }
    bottom_ = std::max(bottom_, end);
  }

  std::string nic_name(const std::optional<std::uint32_t>& nic) const {
    const std::vector<std::uint32_t> nics = nodes_of(graph_, NodeKind::kNic);
    return nic && *nic < nics.size() ? graph_.nodes[nics[*nic]].name : std::string();
  }

  void draw_heading(const std::string& words) {
    bottom_ += 42;
    drawing_.text(left_, bottom_, words, {.size = 13, .bold = true, .anchor = "start"});
    bottom_ += 12;
  }

  void draw_route(std::size_t number, const std::vector<std::uint32_t>& gpus, const std::string& from,
                  const std::string& to, bool closed) {
    constexpr double kStep = 52;
    constexpr double kRadius = 12;
    const std::string_view colour = kRingColours[number % kRingColours.size()];
    const std::vector<std::uint32_t> nodes =
        nodes_of(graph_, nodes_of(graph_, NodeKind::kGpu).empty() ? NodeKind::kCpu : NodeKind::kGpu);
    const double y = bottom_ + 18;
    double x = left_ + 14 + (from.empty() ? 0 : 70);
    if (!from.empty()) {
      drawing_.text(left_, y + 4, shorten(from, 10), {.size = 11, .colour = "#c27a1a", .anchor = "start"});
      draw_arrow(x - 28, x - kRadius, y, colour);
    }
    const double first = x;
    for (std::size_t i = 0; i < gpus.size(); ++i, x += kStep) {
      if (i > 0) draw_arrow(x - kStep + kRadius, x - kRadius, y, colour);
      const GraphNode& node = graph_.nodes[nodes[gpus[i]]];
      const std::int32_t shown = node.kind == NodeKind::kGpu ? node.gpu.device : node.numa;
      drawing_.circle(x, y, kRadius, colour);
      drawing_.text(x, y + 4, fmt::format("{}", shown), {.size = 11, .colour = "#ffffff", .bold = true});
    }
    const double last = x - kStep;
    routes_right_ = std::max(routes_right_, x + (to.empty() ? 0 : 50));
    right_ = std::max(right_, routes_right_ - kStep + kRadius);
    if (!to.empty()) {
      draw_arrow(last + kRadius, last + 28, y, colour);
      drawing_.text(last + 34, y + 4, shorten(to, 10), {.size = 11, .colour = "#c27a1a", .anchor = "start"});
    } else if (closed && gpus.size() > 2) {
      drawing_.path(fmt::format("M{:.1f} {:.1f} v6 q0 6 -6 6 H{:.1f} q-6 0 -6 -6 v-3", last, y + kRadius, first + 6),
                    {.colour = colour, .width = 1.4});
    }
    bottom_ += closed && to.empty() ? 46 : 34;
  }

  // Draws a horizontal arrow from left to right.
  void draw_arrow(double from_x, double to_x, double y, std::string_view colour) {
    constexpr double kHead = 6;
    drawing_.line(from_x, y, to_x - kHead, y, {.colour = colour, .width = 1.6});
    drawing_.area(fmt::format("M{:.1f} {:.1f} l-7 -3.5 v7 z", to_x, y), colour);
  }

  std::string finish() {
    const double width = right_ + kMargin;
    const std::string name = graph_.name.empty() ? "machine" : graph_.name;
    drawing_.text(kMargin, 34, name, {.size = 18, .bold = true, .anchor = "start"});
    drawing_.text(kMargin, 54, parts_text(graph_) + "; numbers at links are GB/s in each direction",
                  {.size = 11, .colour = "#5b676e", .anchor = "start"});
    return drawing_.document(width, bottom_ + kMargin);
  }

  const Graph& graph_;
  const Routes& routes_;
  std::vector<PartBox> boxes_;
  std::vector<std::uint32_t> link_to_;
  std::vector<std::vector<std::uint32_t>> children_;
  SvgDrawing drawing_;
  std::size_t deepest_ = 0;
  double top_ = 0, right_ = 0, bottom_ = 0;
  double left_ = 0, routes_right_ = 0;  // left and right edge of the column of routes
};

}  // namespace

std::string graph_svg(const Graph& graph, const Routes& routes) {
  if (graph.nodes.size() <= kMaxDrawnParts) return Drawing(graph, routes).draw();
  SvgDrawing drawing;
  drawing.text(kMargin, 34, fmt::format("{} parts are too many for a drawing", graph.nodes.size()),
               {.size = 14, .anchor = "start"});
  return drawing.document(600, 60);
}

}  // namespace tutti::tool
