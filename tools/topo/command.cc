#include "tools/topo/command.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "kernels/cpu/reduce.h"
#include "kernels/device/device_image.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/validators.h"
#include "tools/topo/graph.h"
#include "tools/topo/report.h"
#include "tools/topo/routes.h"
#include "tools/topo/svg.h"
#include "tools/topo/transports.h"
#include "topology/cluster.h"
#include "topology/discover.h"
#include "topology/xml/xml.h"
#include "tutti/version.h"

namespace tutti::tool {
namespace {

struct TopoOptions {
  bool as_json = false;
  bool transports = false;
  std::string xml{};
  std::string shape{};
  std::uint32_t machines = 1;
  std::string write_xml{};
  std::string svg{};
};

// What is shown, wherever it came from.
struct Shown {
  std::optional<Machine> machine{};  // of this machine only
  std::string file{};                // of a file only
  std::vector<Finding> findings{};
  std::vector<std::string> notes{};  // of this machine only
  Cluster cluster{};
  Routes within{};  // one machine
  Routes across{};  // a machine of several alike; none where it has no NIC
};

// The findings of a file that is wrong have been printed; the error sums up.
Result<Shown> show_file(const std::string& path) {
  // One byte more than is read tells the reader that there is more.
  const Result<std::string> text = read_file(path, kMaxXmlBytes + 1);
  TUTTI_TRY(text);
  XmlReading reading = read_xml(*text);
  if (!reading.usable()) {
    fmt::print(stderr, "{}", findings_text(path, reading.findings));
    return wrong_content(fmt::format("{} cannot be used", path));
  }
  Shown shown;
  shown.file = path;
  shown.findings = std::move(reading.findings);
  shown.cluster.machine = std::move(reading.graph);
  if (shown.cluster.machine.name.empty()) shown.cluster.machine.name = path.substr(path.rfind('/') + 1);
  shown.cluster.name = shown.cluster.machine.name;
  return shown;
}

Result<Shown> show_this_machine() {
  Result<GpuTopology> gpus = discover_gpus();
  TUTTI_TRY(gpus);
  Result<Discovery> found = discover({}, *gpus);
  TUTTI_TRY(found);
  Shown shown;
  const auto architectures = kernels::device_architectures();
  shown.machine = Machine{.host = discover_host(),
                          .simd = kernels::target_name(),
                          .gpus = *std::move(gpus),
                          .architectures = {architectures.begin(), architectures.end()},
                          .processors = std::move(found->processors)};
  shown.notes = std::move(found->notes);
  shown.cluster.machine = std::move(found->graph);
  shown.cluster.name = shown.cluster.machine.name;
  return shown;
}

Result<Shown> show(const TopoOptions& options) {
  if (!options.shape.empty()) {
    ShapeOptions shape;
    shape.name = options.shape;
    shape.machines = options.machines;
    Result<Cluster> cluster = make_shape(shape);
    TUTTI_TRY(cluster);
    Shown shown;
    shown.cluster = *std::move(cluster);
    return shown;
  }
  return options.xml.empty() ? show_this_machine() : show_file(options.xml);
}

void find_all_routes(Shown& shown) {
  const Graph& graph = shown.cluster.machine;
  constexpr std::size_t kMostSearched = 64;  // GPUs, and NICs: a machine has fewer, a hostile file may have more
  if (nodes_of(graph, NodeKind::kGpu).size() > kMostSearched) return;
  if (nodes_of(graph, NodeKind::kNic).size() > kMostSearched) return;
  shown.within = find_routes(graph, {});
  bool wired = false;
  for (const std::uint32_t nic : nodes_of(graph, NodeKind::kNic)) wired |= graph.nodes[nic].nic.megabits_per_s > 0;
  SearchOptions across;
  across.across_machines = true;
  if (wired) shown.across = find_routes(graph, across);
}

std::string text_of(const Shown& shown) {
  const Graph& graph = shown.cluster.machine;
  std::string text;
  if (shown.machine) {
    text += to_text(*shown.machine) + "\n";
  } else if (shown.cluster.machines > 1) {
    text += fmt::format("{}: {} machines, {} ranks; each machine:\n\n", shown.cluster.name, shown.cluster.machines,
                        shown.cluster.ranks());
  }
  text += fmt::format("{}: {}\n\n{}", graph.name, parts_text(graph), graph_text(graph));
  if (const std::string matrix = matrix_text(graph); !matrix.empty()) {
    text += "\nHow the part of the row reaches that of the column:\n\n" + matrix;
  }
  if (const std::string routes = routes_text(graph, shown.within); !routes.empty()) {
    text += "\nWithin one machine\n" + routes;
  }
  if (const std::string routes = routes_text(graph, shown.across); !routes.empty()) {
    text += "\nAcross machines like this\n" + routes;
  }
  for (std::size_t i = 0; i < shown.notes.size(); ++i) text += (i == 0 ? "\nnote: " : "note: ") + shown.notes[i] + "\n";
  if (!shown.file.empty()) {
    text += shown.findings.empty() ? "\nnothing is wrong with the file\n"
                                   : "\n" + findings_text(shown.file, shown.findings);
  }
  return text;
}

std::string json_of(const Shown& shown) {
  using nlohmann::json;
  const Graph& graph = shown.cluster.machine;
  json document = {{"schema", "tutti-topo"}, {"version", 1}, {"tutti_version", std::string(version())}};
  if (shown.machine) document = to_json(*shown.machine);
  document["graph"] = graph_json(graph);
  document["machines"] = shown.cluster.machines;
  document["routes"] = {{"within", routes_json(graph, shown.within)}, {"across", routes_json(graph, shown.across)}};
  document["notes"] = shown.notes;
  document["file"] = shown.file.empty() ? json(nullptr) : json(shown.file);
  document["findings"] = json::array();
  for (const Finding& finding : shown.findings) document["findings"].push_back(finding_json(finding));
  // What a file says may be no UTF-8.
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Status write_files(const TopoOptions& options, const Shown& shown) {
  if (!options.write_xml.empty()) {
    const Result<std::string> xml = to_xml(shown.cluster.machine);
    TUTTI_TRY(xml);
    TUTTI_TRY(write_file(options.write_xml, *xml));
  }
  if (options.svg.empty()) return {};
  const bool several = shown.cluster.machines > 1 && !shown.across.rings.empty();
  return write_file(options.svg, graph_svg(shown.cluster.machine, several ? shown.across : shown.within));
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return output_was_taken("topo") ? kExitSuccess : kExitFailure;
}

int run_transports(const TopoOptions& options) {
  const Result<std::string> text = list_transports(options.as_json);
  if (text) return print(*text);
  return report("topo", text.error());
}

int run_topo(const TopoOptions& options) {
  if (options.transports) return run_transports(options);
  std::error_code unknown;  // one of them may not exist
  if (!options.write_xml.empty() && std::filesystem::equivalent(options.write_xml, options.xml, unknown)) {
    return report_usage("topo",
                        "--write-xml names the file that --xml reads: what Tutti does not know would be lost from it");
  }
  for (const std::string* path : {&options.write_xml, &options.svg}) {
    const Status writable = path->empty() ? Status() : check_writable(*path);
    if (!writable.ok()) return report("topo", writable.error());
  }
  Result<Shown> shown = show(options);
  if (!shown) return report("topo", shown.error());
  find_all_routes(*shown);
  if (const Status written = write_files(options, *shown); !written) return report("topo", written.error());
  return print(options.as_json ? json_of(*shown) : text_of(*shown));
}

}  // namespace

void add_topo_command(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<TopoOptions>();  // shared with the callback, which outlives this call
  CLI::App* command = app.add_subcommand(
      "topo", "What a machine is: processors, GPUs, NICs, how they are connected, and the rings and trees on it");
  command->footer(
      "Numbers of GPUs are the CUDA driver's: CUDA_VISIBLE_DEVICES counts. Without a driver or a GPU it says why and\n"
      "shows the rest. Exit status: 0; 1 if the driver or NVML fails or the file is wrong, with line and cause; 2 for\n"
      "an option that is not understood, for example an unknown shape. docs/topo.md has examples.");
  command->add_flag("--json", options->as_json, "One JSON object instead of text; docs/topo-json.md has its fields");
  CLI::Option* xml = command->add_option("--xml", options->xml, "Show the machine in this file in NCCL's XML format");
  CLI::Option* shape =
      command->add_option("--shape", options->shape, "Show a ready-made machine")->check(name_in(shape_names()));
  shape->excludes(xml);
  command->add_option("--nodes", options->machines, "So many machines of the shape")
      ->needs(shape)
      ->check(number_in(1u, kMaxMachines));
  command->add_option("--write-xml", options->write_xml, "Write the machine into this file in NCCL's XML format");
  command->add_option("--svg", options->svg, "Draw the machine, with its rings and trees, into this file");
  CLI::Option* transports =
      command->add_flag("--transports", options->transports,
                        "List what can carry messages to other machines, and why each is chosen or not; docs/rdma.md");
  for (const char* other : {"--xml", "--shape", "--write-xml", "--svg"})
    transports->excludes(command->get_option(other));
  command->callback([options, &exit_status] { exit_status = run_topo(*options); });
}

}  // namespace tutti::tool
