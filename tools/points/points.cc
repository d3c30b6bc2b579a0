#include "tools/points/points.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "algorithms/algorithms.h"
#include "model/simulate.h"
#include "topology/cluster.h"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;

Error invalid(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

std::optional<Protocol> parse_protocol(std::string_view name) {
  for (const Protocol each : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128, Protocol::kWindow}) {
    if (name == to_string(each)) return each;
  }
  return std::nullopt;
}

// Reads a field of one system that is a text or a list of texts. The result is always a list; it is empty if the
// field is absent.
Result<std::vector<std::string>> text_field(const Json& system, const std::string& field) {
  const auto found = system.find(field);
  if (found == system.end()) return std::vector<std::string>{};
  std::vector<std::string> values;
  for (const Json& each : found->is_array() ? *found : Json::array({*found})) {
    if (!each.is_string()) return invalid(fmt::format("{}: must be a text or a list of texts", field));
    values.push_back(each.get<std::string>());
  }
  return values;
}

// Reads a field of one system that is an integer. The result is 0 if the field is absent.
Result<std::uint32_t> integer_field(const Json& system, const std::string& field) {
  const auto found = system.find(field);
  if (found == system.end()) return 0u;
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() > (1u << 24)) {
    return invalid(fmt::format("{}: must be an integer, at most 16777216", field));
  }
  return found->get<std::uint32_t>();
}

Result<System> parse_system(const Json& json) {
  static const std::set<std::string> kKnown = {"name",      "rows",       "algorithm",  "ranks",
                                               "shape",     "capability", "training",   "algorithms",
                                               "protocols", "fitted",     "slot_bytes", "in_switch"};
  if (!json.is_object()) return invalid("a system must be a JSON object");
  for (const auto& [field, value] : json.items()) {
    if (!kKnown.contains(field)) return invalid(fmt::format("{}: there is no such field", field));
  }
  std::map<std::string, std::vector<std::string>> text;
  for (const char* field : {"name", "rows", "algorithm", "shape", "training", "algorithms", "protocols", "fitted"}) {
    Result<std::vector<std::string>> values = text_field(json, field);
    if (!values.ok()) return std::move(values).error();
    text[field] = *std::move(values);
  }
  const auto one = [&](const char* field) { return text[field].empty() ? std::string() : text[field][0]; };
  System system{.name = one("name"),
                .rows = one("rows"),
                .algorithm = one("algorithm"),
                .shape = one("shape"),
                .algorithms = {},
                .protocols = {},
                .slot_bytes = {},
                .fitted = text["fitted"]};
  if (system.name.empty() || system.rows.empty() || system.shape.empty())
    return invalid("name, rows and shape are required");
  const Result<std::uint32_t> ranks = integer_field(json, "ranks");
  const Result<std::uint32_t> capability = integer_field(json, "capability");
  if (!ranks.ok()) return ranks.error();
  if (!capability.ok()) return capability.error();
  for (const Json& each : json.value("slot_bytes", Json::array())) {
    if (!each.is_number_unsigned()) return invalid("slot_bytes: must be a list of integers");
    system.slot_bytes.push_back(each.get<std::uint64_t>());
  }
  system.ranks = *ranks;
  system.capability = static_cast<std::int32_t>(*capability);
  if (system.capability == 0) return invalid("capability is required: 80, 90 or 100");
  if (one("training") == "at most 16 machines") {
    system.training = Training::kAtMost16Machines;
  } else if (one("training") != "every other size") {
    return invalid("training: \"every other size\" or \"at most 16 machines\"");
  }
  for (const std::string& name : text["algorithms"]) {
    const auto algorithm = parse_algorithm(name);
    if (!algorithm) return invalid(fmt::format("algorithms: there is no {}", name));
    system.algorithms.push_back(*algorithm);
  }
  for (const std::string& name : text["protocols"]) {
    const auto protocol = parse_protocol(name);
    if (!protocol) return invalid(fmt::format("protocols: there is no {}", name));
    system.protocols.push_back(*protocol);
  }
  if (const auto found = json.find("in_switch"); found != json.end()) {
    if (!found->is_boolean()) return invalid("in_switch: true or false");
    system.in_switch = found->get<bool>();
  }
  if ((system.algorithms.empty() || system.protocols.empty()) && !system.in_switch) {
    return invalid("algorithms and protocols, or in_switch, are required");
  }
  for (const std::string& name : system.fitted) {
    const Result<double> known = parameter(Parameters{}, name);
    if (!known.ok()) return known.error();
  }
  return system;
}

// Splits one line of a CSV file into its fields. A field in quotes may contain commas, and two quotes in it stand for
// one.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else if (line[i] != '\r') {
      fields.back() += line[i];
    }
  }
  return fields;
}

template <class Number>
std::optional<Number> number_of(const std::string& text) {
  Number number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || !(number > 0)) return std::nullopt;
  return number;
}

// Sorts the points by machines, ranks and bytes, and sets Point::fitted of each.
void mark_fitted(std::vector<Point>& points, Training training) {
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return std::tie(a.machines, a.ranks, a.bytes) < std::tie(b.machines, b.ranks, b.bytes);
  });
  std::uint32_t machines = 0;
  std::size_t number = 0;
  for (Point& point : points) {
    if (point.machines != machines) number = 0;
    machines = point.machines;
    point.fitted = training == Training::kEveryOtherSize ? number % 2 == 0 : machines <= 16;
    ++number;
  }
}

}  // namespace

Result<std::vector<System>> parse_systems(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false, true);
  const auto list = json.find("systems");
  if (json.is_discarded() || !json.is_object() || list == json.end() || !list->is_array()) {
    return invalid("the file of systems is not JSON with a list \"systems\"; see docs/points.md");
  }
  std::vector<System> systems;
  for (const Json& each : *list) {
    Result<System> system = parse_system(each);
    if (!system.ok()) return invalid(fmt::format("system {}: {}", systems.size() + 1, system.error().message));
    systems.push_back(*std::move(system));
  }
  return systems;
}

Result<std::vector<Point>> points_of(std::string_view csv, const System& system) {
  std::map<std::string, std::size_t> columns;
  std::vector<Point> points;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < csv.size();) {
    const std::size_t end = std::min(csv.find('\n', begin), csv.size());
    const std::vector<std::string> fields = fields_of(csv.substr(begin, end - begin));
    begin = end + 1;
    if (++number > kMostPoints) return invalid(fmt::format("the table has more than {} lines", kMostPoints));
    if (number == 1) {
      for (std::size_t i = 0; i < fields.size(); ++i) {
        if (columns.contains(fields[i])) return invalid(fmt::format("the table has two columns {}", fields[i]));
        columns[fields[i]] = i;
      }
      for (const char* name : {"system", "ranks", "nodes", "collective", "algo", "bytes", "time_us"}) {
        if (!columns.contains(name)) return invalid(fmt::format("the table has no column {}", name));
      }
      continue;
    }
    if (fields.size() < columns.size()) {
      return invalid(fmt::format("line {}: {} fields, not {}", number, fields.size(), columns.size()));
    }
    const auto field = [&](const char* name) { return fields[columns.at(name)]; };
    if (field("system") != system.rows || field("collective") != "allreduce") continue;
    if (!system.algorithm.empty() && field("algo") != system.algorithm) continue;
    const auto ranks = number_of<std::uint32_t>(field("ranks"));
    const auto machines = number_of<std::uint32_t>(field("nodes"));
    const auto bytes = number_of<std::uint64_t>(field("bytes"));
    const auto time_us = number_of<double>(field("time_us"));
    if (!ranks || !machines || !bytes || !time_us) continue;
    if (system.ranks != 0 && *ranks != system.ranks) continue;
    points.push_back({.ranks = *ranks, .machines = *machines, .bytes = *bytes, .time_us = *time_us});
  }
  mark_fitted(points, system.training);
  return points;
}

Result<Predictor> Predictor::create(const System& system, const std::vector<Point>& points) {
  Predictor predictor;
  predictor.system_ = system;
  std::set<std::uint32_t> machines;
  for (const Point& point : points) machines.insert(point.machines);
  for (const std::uint32_t each : machines) {
    const Result<Cluster> cluster = make_shape({.name = system.shape, .machines = each});
    if (!cluster.ok()) return cluster.error();
    Result<Network> network = Network::create(*cluster);
    if (!network.ok()) return std::move(network).error();
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t rank = 0; each > 1 && rank < cluster->ranks(); ++rank) {
      nodes.push_back(rank / cluster->ranks_per_machine);
    }
    PlannedCluster planned{.machines = each, .network = *std::move(network), .generators = {}, .in_switch = {}};
    if (system.in_switch) {
      Result<InSwitch> in_switch = InSwitch::create(*cluster);
      if (!in_switch.ok()) return std::move(in_switch).error();
      planned.in_switch = *std::move(in_switch);
    }
    for (const Algorithm algorithm : system.algorithms) {
      const Result<Generator> generator = find_generator({.ranks = cluster->ranks(), .nodes = nodes}, algorithm);
      if (!generator.ok()) return generator.error();
      planned.generators.push_back(*generator);
    }
    predictor.clusters_.push_back(std::move(planned));
  }
  return predictor;
}

Result<Predicted> Predictor::predict(const Point& point, const Parameters& parameters) const {
  const auto planned = std::find_if(clusters_.begin(), clusters_.end(),
                                    [&](const PlannedCluster& each) { return each.machines == point.machines; });
  if (planned == clusters_.end() || planned->network.ranks() != point.ranks) {
    return invalid(
        fmt::format("{} machines of the shape {} do not have {} ranks", point.machines, system_.shape, point.ranks));
  }
  Predicted best;
  const std::vector<std::uint64_t> default_slot_bytes{parameters.slot_bytes};
  Parameters cut = parameters;
  for (const std::uint64_t slot_bytes : system_.slot_bytes.empty() ? default_slot_bytes : system_.slot_bytes) {
    cut.slot_bytes = slot_bytes;
    if (system_.in_switch && parameters.switch_gbytes_per_s > 0) {
      const Result<double> time_us = planned->in_switch->all_reduce_us(point.bytes, cut);
      if (!time_us.ok()) return time_us.error();
      if (best.time_us == 0 || *time_us < best.time_us) best = {.time_us = *time_us, .algorithm = Algorithm::kAuto};
    }
    for (const Generator& generator : planned->generators) {
      for (const Protocol protocol : system_.protocols) {
        const Result<SimulateResult> result = simulate(generator, point.bytes, planned->network, cut,
                                                       {.model = SimulationModel::kSweep, .protocol = protocol});
        if (!result.ok()) return result.error();
        const double time_us = time_by_links_us(*result);
        if (best.time_us > 0 && time_us >= best.time_us) continue;
        best = {.time_us = time_us, .algorithm = generator.shape.algorithm, .protocol = protocol};
      }
    }
  }
  return best;
}

}  // namespace tutti::tool
