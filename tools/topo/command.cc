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

// Everything that is printed about a machine. The machine is this one, one from a file (--xml), or a shape (--shape).
struct MachineView {
  std::optional<Machine> machine{};  // set only if the machine is this one
  std::string file{};                // the path of the file; empty if the machine is not from a file
  std::vector<Finding> findings{};   // the findings about the file
  std::vector<std::string> notes{};  // the notes of discover(); empty unless the machine is this one
  Cluster cluster{};
  // Routes inside one such machine, and across several of them. Both are empty if the machine has too many GPUs or NICs
  // for a search. `across` is also empty if no NIC has a known speed.
  Routes within{};
  Routes across{};
};

// Reads a machine from a file. If the file is invalid, prints its findings to stderr and returns an error that is
// only a summary.
Result<MachineView> load_file(const std::string& path) {
  // Reads up to one byte more than the limit, so that read_xml() detects a file that is too long.
  const Result<std::string> text = read_file(path, kMaxXmlBytes + 1);
  TUTTI_TRY(text);
  XmlReading reading = read_xml(*text);
  if (!reading.usable()) {
    fmt::print(stderr, "{}", findings_text(path, reading.findings));
    return wrong_content(fmt::format("{} cannot be used", path));
  }
  MachineView view;
  view.file = path;
  view.findings = std::move(reading.findings);
  view.cluster.machine = std::move(reading.graph);
  if (view.cluster.machine.name.empty()) view.cluster.machine.name = path.substr(path.rfind('/') + 1);
  view.cluster.name = view.cluster.machine.name;
  return view;
}

Result<MachineView> load_this_machine() {
  Result<GpuTopology> gpus = discover_gpus();
  TUTTI_TRY(gpus);
  Result<Discovery> found = discover({}, *gpus);
  TUTTI_TRY(found);
  MachineView view;
  const auto architectures = kernels::device_architectures();
  view.machine = Machine{.host = discover_host(),
                         .simd = kernels::target_name(),
                         .gpus = *std::move(gpus),
                         .architectures = {architectures.begin(), architectures.end()},
                         .processors = std::move(found->processors)};
  view.notes = std::move(found->notes);
  view.cluster.machine = std::move(found->graph);
  view.cluster.name = view.cluster.machine.name;
  return view;
}

Result<MachineView> load_view(const TopoOptions& options) {
  if (!options.shape.empty()) {
    ShapeOptions shape;
    shape.name = options.shape;
    shape.machines = options.machines;
    Result<Cluster> cluster = make_shape(shape);
    TUTTI_TRY(cluster);
    MachineView view;
    view.cluster = *std::move(cluster);
    return view;
  }
  return options.xml.empty() ? load_this_machine() : load_file(options.xml);
}

void find_all_routes(MachineView& view) {
  const Graph& graph = view.cluster.machine;
  // No routes are searched for in a machine with more GPUs than this, or with more NICs than this. Usual machines have
  // fewer; a file that is meant to do harm could make the search take very long.
  constexpr std::size_t kMostSearched = 64;
  if (nodes_of(graph, NodeKind::kGpu).size() > kMostSearched) return;
  if (nodes_of(graph, NodeKind::kNic).size() > kMostSearched) return;
  view.within = find_routes(graph, {});
  bool wired = false;
  for (const std::uint32_t nic : nodes_of(graph, NodeKind::kNic)) wired |= graph.nodes[nic].nic.megabits_per_s > 0;
  SearchOptions across;
  across.across_machines = true;
  if (wired) view.across = find_routes(graph, across);
}

std::string text_of(const MachineView& view) {
  const Graph& graph = view.cluster.machine;
  std::string text;
  if (view.machine) {
    text += to_text(*view.machine) + "\n";
  } else if (view.cluster.machines > 1) {
    text += fmt::format("{}: {} machines, {} ranks; each machine:\n\n", view.cluster.name, view.cluster.machines,
                        view.cluster.ranks());
  }
  text += fmt::format("{}: {}\n\n{}", graph.name, parts_text(graph), graph_text(graph));
  if (const std::string matrix = matrix_text(graph); !matrix.empty()) {
    text += "\nHow the part of the row reaches that of the column:\n\n" + matrix;
  }
  if (const std::string routes = routes_text(graph, view.within); !routes.empty()) {
    text += "\nWithin one machine\n" + routes;
  }
  if (const std::string routes = routes_text(graph, view.across); !routes.empty()) {
    text += "\nAcross machines like this\n" + routes;
  }
  for (std::size_t i = 0; i < view.notes.size(); ++i) text += (i == 0 ? "\nnote: " : "note: ") + view.notes[i] + "\n";
  if (!view.file.empty()) {
    text +=
        view.findings.empty() ? "\nnothing is wrong with the file\n" : "\n" + findings_text(view.file, view.findings);
  }
  return text;
}

std::string json_of(const MachineView& view) {
  using nlohmann::json;
  const Graph& graph = view.cluster.machine;
  json document = {{"schema", "tutti-topo"}, {"version", 1}, {"tutti_version", std::string(version())}};
  if (view.machine) document = to_json(*view.machine);
  document["graph"] = graph_json(graph);
  document["machines"] = view.cluster.machines;
  document["routes"] = {{"within", routes_json(graph, view.within)}, {"across", routes_json(graph, view.across)}};
  document["notes"] = view.notes;
  document["file"] = view.file.empty() ? json(nullptr) : json(view.file);
  document["findings"] = json::array();
  for (const Finding& finding : view.findings) document["findings"].push_back(finding_json(finding));
  // Texts that come from a file may be invalid UTF-8. Invalid bytes are replaced, because dump() would throw otherwise.
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Status write_files(const TopoOptions& options, const MachineView& view) {
  if (!options.write_xml.empty()) {
    const Result<std::string> xml = to_xml(view.cluster.machine);
    TUTTI_TRY(xml);
    TUTTI_TRY(write_file(options.write_xml, *xml));
  }
  if (options.svg.empty()) return {};
  const bool several = view.cluster.machines > 1 && !view.across.rings.empty();
  return write_file(options.svg, graph_svg(view.cluster.machine, several ? view.across : view.within));
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return flush_output("topo") ? kExitSuccess : kExitFailure;
}

int run_transports(const TopoOptions& options) {
  const Result<std::string> text = list_transports(options.as_json);
  if (text) return print(*text);
  return report("topo", text.error());
}

int run_topo(const TopoOptions& options) {
  if (options.transports) return run_transports(options);
  std::error_code unknown;  // an error is ignored, because one of the two files may not exist
  if (!options.write_xml.empty() && std::filesystem::equivalent(options.write_xml, options.xml, unknown)) {
    return report_usage("topo",
                        "--write-xml names the file that --xml reads: what Tutti does not know would be lost from it");
  }
  for (const std::string* path : {&options.write_xml, &options.svg}) {
    const Status writable = path->empty() ? Status() : check_writable(*path);
    if (!writable.ok()) return report("topo", writable.error());
  }
  Result<MachineView> view = load_view(options);
  if (!view) return report("topo", view.error());
  find_all_routes(*view);
  if (const Status written = write_files(options, *view); !written) return report("topo", written.error());
  return print(options.as_json ? json_of(*view) : text_of(*view));
}

}  // namespace

void add_topo_command(CLI::App& app, int& exit_status) {
  auto options = std::make_shared<TopoOptions>();  // shared with the callback, which outlives this function
  CLI::App* command = app.add_subcommand(
      "topo", "Show a machine: processors, GPUs, NICs, how they are connected, and its rings and trees");
  command->footer(
      "GPUs have the CUDA driver's numbers (CUDA_VISIBLE_DEVICES applies). Without a driver or a GPU, the reason is\n"
      "printed. Exit status: 0; 1 if the driver or NVML fails or the file is invalid, with line and cause; 2 for\n"
      "an invalid option, for example an unknown shape. docs/topo.md has examples.");
  command->add_flag("--json", options->as_json,
                    "Print one JSON object instead of text; docs/topo-json.md describes its fields");
  CLI::Option* xml = command->add_option("--xml", options->xml, "Show the machine in this file in NCCL's XML format");
  CLI::Option* shape =
      command->add_option("--shape", options->shape, "Show a ready-made machine")->check(name_in(shape_names()));
  shape->excludes(xml);
  command->add_option("--nodes", options->machines, "Number of machines of the shape")
      ->needs(shape)
      ->check(number_in(1u, kMaxMachines));
  command->add_option("--write-xml", options->write_xml, "Write the machine to this file in NCCL's XML format");
  command->add_option("--svg", options->svg, "Draw the machine, with its rings and trees, as SVG to this file");
  CLI::Option* transports =
      command->add_flag("--transports", options->transports,
                        "List the transports to other machines, and why each is selected or not; docs/rdma.md");
  for (const char* other : {"--xml", "--shape", "--write-xml", "--svg"})
    transports->excludes(command->get_option(other));
  command->callback([options, &exit_status] { exit_status = run_topo(*options); });
}

}  // namespace tutti::tool
