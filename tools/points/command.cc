#include "tools/points/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "base/assert.h"
#include "tools/common/exit_status.h"
#include "tools/common/file.h"
#include "tools/common/messages.h"
#include "tools/common/system_error.h"
#include "tools/common/validators.h"
#include "tools/points/points.h"
#include "tools/sim/parameters.h"

namespace tutti::tool {
namespace {

struct PointsOptions {
  std::string table;
  // path of the file of systems; empty: find_systems() searches for it
  std::string systems;
  std::string only;
  // 0: do not fit; otherwise fit the parameters, with this number of starts
  std::uint32_t starts = 0;
  bool every_point = false;
};

// Relative errors |predicted / measured - 1| of the predictions for a set of points.
struct Errors {
  double median = 0;
  double worst = 0;
  std::uint64_t worst_bytes = 0;
  std::size_t count = 0;
};

int fail(const Error& error) { return report("points", error); }

// files of this size or larger are refused
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

Result<std::string> read_whole(const std::string& path) {
  Result<std::string> text = read_file(path, kMostBytes);
  if (!text || text->size() < kMostBytes) return text;
  return cannot_read(path, EFBIG);
}

std::string path_of(const PointsOptions& options, const System& system) {
  const std::size_t folder = options.systems.rfind('/');
  return (folder == std::string::npos ? "" : options.systems.substr(0, folder + 1)) + system.name + ".json";
}

std::string source_of(const System& system, const std::vector<Point>& points) {
  std::string names;
  for (const std::string& name : system.fitted) names += (names.empty() ? "" : ", ") + name;
  const auto count = std::count_if(points.begin(), points.end(), [](const Point& each) { return each.fitted; });
  return fmt::format("fitted by tutti points --fit: {} on {} points of \"{}\" ({}); all else: defaults of sm_{}", names,
                     count, system.rows,
                     system.training == Training::kEveryOtherSize ? "every other size" : "up to 16 machines",
                     system.capability);
}

// Computes the errors of the predictions for those points to which the parameters were not fitted. If `print` is
// true, prints a line of a table for every point, including the fitted ones.
Result<Errors> measure_errors(const Predictor& predictor, const std::vector<Point>& points,
                              const Parameters& parameters, bool print) {
  std::vector<std::pair<double, std::uint64_t>> errors;
  for (const Point& point : points) {
    const Result<Predicted> predicted = predictor.predict(point, parameters);
    if (!predicted.ok()) return predicted.error();
    const double error = predicted->time_us / point.time_us - 1;
    if (!point.fitted) errors.emplace_back(std::abs(error), point.bytes);
    if (!print) continue;
    fmt::print("| {} | {} | {:.1f} | {:.1f} | {:+.1f}% | {} {} | {} |\n", point.machines, point.bytes, point.time_us,
               predicted->time_us, 100 * error,
               predicted->algorithm == Algorithm::kAuto ? "in the switch" : to_string(predicted->algorithm),
               predicted->algorithm == Algorithm::kAuto ? "" : to_string(predicted->protocol),
               point.fitted ? "fitted" : "judged");
  }
  if (errors.empty()) return Errors{};
  std::sort(errors.begin(), errors.end());
  const std::size_t middle = errors.size() / 2;
  const double median =
      errors.size() % 2 == 1 ? errors[middle].first : (errors[middle - 1].first + errors[middle].first) / 2;
  return Errors{
      .median = median, .worst = errors.back().first, .worst_bytes = errors.back().second, .count = errors.size()};
}

Status run_system(const PointsOptions& options, const System& system, const std::string& table) {
  Result<std::vector<Point>> points = points_of(table, system);
  if (!points.ok()) return points.error();
  if (points->empty()) {
    fmt::print("| {} | not in the table | | | | |\n", system.name);
    return {};
  }
  const Result<Predictor> predictor = Predictor::create(system, *points);
  if (!predictor.ok()) return predictor.error();
  const std::string path = path_of(options, system);
  if (options.starts > 0) {
    Result<Parameters> fitted = fit(system, *predictor, *points, options.starts);
    if (!fitted.ok()) return fitted.error();
    fitted->source = source_of(system, *points);
    TUTTI_TRY(write_file(path, to_json(*fitted)));
  }
  const Result<Parameters> parameters = read_parameters(path);
  if (!parameters.ok()) return parameters.error();
  if (options.every_point) {
    fmt::print(
        "\n{}: {}\n\n| machines | bytes | measured us | predicted us | error | by | |\n|---|---|---|---|---|---|---|\n",
        system.name, parameters->source);
  }
  const Result<Errors> errors = measure_errors(*predictor, *points, *parameters, options.every_point);
  if (!errors.ok()) return errors.error();
  const double most_worst = 0.25, most_median = 0.1;
  if (options.every_point) fmt::print("\n");
  fmt::print("| {} | {} | {} | {} | {:.1f}% | {:.1f}% at {} | {} |\n", system.name, points->size() - errors->count,
             system.fitted.size(), errors->count, 100 * errors->median, 100 * errors->worst, errors->worst_bytes,
             errors->median <= most_median && errors->worst <= most_worst ? "" : "missed");
  return std::fflush(stdout) == 0 ? Status() : system_error("cannot write to stdout", errno);
}

// Searches for bench/points/systems.json: first in the working directory, then in the folders above this program,
// because a build places the program somewhere in Tutti's source tree.
Result<std::string> find_systems() {
  namespace fs = std::filesystem;
  const fs::path wanted = "bench/points/systems.json";
  std::error_code unknown;
  if (fs::exists(wanted, unknown)) return wanted.string();
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown);
  for (fs::path folder = program.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (fs::exists(folder / wanted, unknown)) return (folder / wanted).string();
    if (folder == folder.root_path()) break;
  }
  return Error{
      ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
      fmt::format("there is no {} in {} or above {}; name it with --systems FILE (it is in Tutti's source tree)",
                  wanted.string(), fs::current_path(unknown).string(), program.string())};
}

int run_points(PointsOptions options) {
  if (options.systems.empty()) {
    Result<std::string> found = find_systems();
    if (!found.ok()) return fail(found.error());
    options.systems = *std::move(found);
  }
  const Result<std::string> text = read_whole(options.systems);
  if (!text.ok()) return fail(text.error());
  const Result<std::string> table = read_whole(options.table);
  if (!table.ok()) return fail(table.error());
  const Result<std::vector<System>> systems = parse_systems(*text);
  if (!systems.ok()) return fail(wrong_content(fmt::format("{}: {}", options.systems, systems.error().message)));
  const auto is_wanted = [&](const System& system) { return options.only.empty() || system.name == options.only; };
  if (std::none_of(systems->begin(), systems->end(), is_wanted)) {
    std::vector<std::string_view> known;
    for (const System& system : *systems) known.push_back(system.name);
    return fail(wrong_option("--only", not_one_of(options.only, known)));
  }
  if (!options.every_point) {
    fmt::print(
        "| system | points fitted on | parameters | points judged by | median error | worst | |\n"
        "|---|---|---|---|---|---|---|\n");
  }
  for (const System& system : *systems) {
    if (!is_wanted(system)) continue;
    if (const Status ran = run_system(options, system, *table); !ran.ok()) return fail(ran.error());
  }
  return kExitSuccess;
}

}  // namespace

void add_points_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("points", "Compare predictions with published measurements");
  const auto options = std::make_shared<PointsOptions>();  // shared with the callback, which outlives this function
  command->add_option("table", options->table, "CSV of measurements, see docs/points.md")->required();
  command->add_option(
      "--systems", options->systems,
      "File that describes the systems; default: bench/points/systems.json here or in this program's tree");
  command->add_option("--only", options->only, "Compare only this system");
  command->add_flag("--every-point", options->every_point, "Print every point");
  command->add_option("--fit", options->starts, "Fit the parameter files again, from this many starting points")
      ->check(number_in(1u, 1000u));
  command->callback([options, &exit_code] { exit_code = run_points(*options); });
}

}  // namespace tutti::tool
