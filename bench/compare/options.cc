#include "bench/compare/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>

namespace tutti::compare {
namespace {

// The number in the first of the environment variables that is set; -1 if none is set.
int number_from(const std::array<const char*, 3>& variables) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable); text != nullptr) return std::atoi(text);
  }
  return -1;
}

}  // namespace

Result<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  std::string kind = "all_reduce";
  const std::map<std::string, Measure> measures = {
      {"time", Measure::kTime}, {"late", Measure::kLate}, {"idle", Measure::kIdle}};
  CLI::App app("One library's rank of a measured job");
  app.add_option("--measure", options.measure)->transform(CLI::CheckedTransformer(measures));
  app.add_option("--collective", kind);
  app.add_option("--sizes", options.sizes)->delimiter(',');
  app.add_option("--trials", options.trials)->check(CLI::Range(1, 1000));
  app.add_option("--target-ms", options.target_ms)->check(CLI::Range(0.1, 10'000.0));
  app.add_option("--pause-ms", options.pause_ms)->check(CLI::Range(1.0, 60'000.0));
  app.add_option("--pinned", options.pinned);
  app.add_option("--tutti-registered", options.tutti_registered);
  app.add_option("--tutti-malloc", options.tutti_malloc);
  app.add_option("--gloo-algorithm", options.gloo_algorithm);
  app.add_option("--control", options.control)->required();
  app.add_option("--results", options.results)->required();
  const auto refuse = [](std::string message) {
    return Error{
        .code = ErrorCode::kInvalidArgument, .scope = ErrorScope::kProcess, .rank = -1, .message = std::move(message)};
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11 reports errors by exceptions; they are converted here
    return refuse(error.what());
  }
  const std::optional<CollectiveKind> parsed = parse_collective(kind);
  if (!parsed) return refuse("--collective: unknown name " + kind);
  options.kind = *parsed;
  options.rank = number_from({"COMPARE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"});
  options.ranks = number_from({"COMPARE_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  return options;
}

}  // namespace tutti::compare
